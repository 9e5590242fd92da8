"""Run folders that anyone may have made: each fault is one sentence and exit code 2, and nothing
outside of the folder is read or written."""

import json
import os
import shutil

import numpy as np
import pytest

import jaxrl
from jaxrl.commands import command_line
from jaxrl.commands import evaluate as evaluate_command
from jaxrl.commands import report as report_command
from jaxrl.commands import resume as resume_command
from jaxrl.runtime import checkpoint_files, checkpoints, configuration, continuing
from tests.runtime import tiny


@pytest.fixture
def folder(finished_run, tmp_path):
    """A copy of a run that its last checkpoint can be resumed from."""
    copy = tmp_path / "run"
    shutil.copytree(finished_run, copy)
    rewrite(copy / "summary.json", lambda summary: summary | {"finished": False})
    return copy


def rewrite(path, change):
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def report(folder):
    return command_line.call(
        report_command.main, [str(folder), "--out", str(folder.parent / "report.html")]
    )


def resume(folder):
    return command_line.call(resume_command.main, [str(folder), "--quiet"])


def evaluate(folder, *words):
    options = ["--episodes", "2", "--video", "none", *words]
    return command_line.call(evaluate_command.main, [str(folder), *options])


def newest(folder):
    return continuing.newest_checkpoint(folder)


def reseal(checkpoint, change):
    """Change a checkpoint's meta.json, with right checksums."""
    rewrite(checkpoint / "meta.json", change)
    (checkpoint / checkpoint_files.CHECKSUMS).unlink()
    checkpoint_files.seal(checkpoint)


# ------------------------------------------------------------------------------ checkpoints


def test_a_checkpoint_that_lacks_numbers_is_not_filled_with_zeros(folder):
    reseal(newest(folder), lambda content: content | {"packed": []})
    with pytest.raises(checkpoints.CheckpointError, match="lacks the numbers of"):
        jaxrl.load(folder)
    assert evaluate(folder) == resume(folder) == 2


def other_leaf(content, **change):
    """Change the first leaf that holds several numbers, and what is packed of it not."""
    i = next(i for i, x in enumerate(content["leaves"]) if x["shape"] and not x["generator"])
    content["leaves"][i] |= change
    return content


@pytest.mark.parametrize(
    "change",
    [
        lambda x: other_leaf(x, shape=[3, 7]),
        lambda x: other_leaf(x, dtype="int8"),
        lambda x: other_leaf(x, dtype=[]),
        lambda x: other_leaf(x, shape=[-1]),
        lambda x: other_leaf(x, shape=["a"]),
        lambda x: other_leaf(x, surprise=1),
        lambda x: x | {"leaves": None},
        lambda x: x | {"leaves": [[]]},
        lambda x: x | {"format": 99},
        lambda x: x | {"packed": [[0]]},
        lambda x: x | {"packed": [[10**6, "float32", [1]]]},
        lambda x: x | {"packed": [[0, "float32", [10**9]]]},
        lambda x: x | {"packed": [[0, "no", [1]]]},
        lambda x: x | {"meta": 3},
        lambda x: x | {"meta": x["meta"] | {"step": "far"}},
        lambda x: x | {"meta": x["meta"] | {"diverged": 1}},
        lambda x: [],
    ],
    ids=str,
)
def test_a_meta_json_that_jaxrl_did_not_write(folder, change, capsys):
    reseal(newest(folder), change)
    assert resume(folder) == 2
    assert "heckpoint" in capsys.readouterr().err
    assert evaluate(folder) == 2


@pytest.mark.parametrize("place", ["/dev/zero", "../../../secret", "fifo", "/etc/hostname"])
def test_checksums_of_files_elsewhere_are_refused(folder, place):
    checkpoint = newest(folder)
    (folder.parent / "secret").write_text("secret")
    os.mkfifo(checkpoint / "fifo")
    names = {place: {"size": 10**9, "sha256": "0"}}
    (checkpoint / checkpoint_files.CHECKSUMS).write_bytes(checkpoint_files._checksums(names))
    with pytest.raises(checkpoints.CheckpointError, match=r"elsewhere|not a plain file"):
        checkpoints.verify(checkpoint)


# ------------------------------------------------------------------------- links and devices


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "episode.gif", "config.yaml"])
def test_files_that_are_links_are_refused(folder, name, capsys):
    victim = folder.parent / "victim"
    victim.write_text((folder / name).read_text() if (folder / name).exists() else "secret")
    before = victim.read_text()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    assert report(folder) == resume(folder) == evaluate(folder) == 2
    assert f"{name}' is a link" in capsys.readouterr().err
    assert victim.read_text() == before and not (folder.parent / "report.html").exists()


def test_devices_are_refused(folder, capsys):
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    assert report(folder) == resume(folder) == 2
    assert "metrics.jsonl' is a device" in capsys.readouterr().err


def test_checkpoints_may_lie_on_another_disk(folder):
    (folder / "checkpoints").rename(folder.parent / "elsewhere")
    (folder / "checkpoints").symlink_to(folder.parent / "elsewhere")
    assert resume(folder) == 0


# ------------------------------------------------------------------------------------- YAML

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    {
        "a day that is none": "steps: 2020-13-45",
        "a tagged text": "steps: !!int abc",
        "a tagged truth": "quiet: !!bool x",
        "a tagged time": "steps: !!timestamp x",
        "many digits": f"steps: {'1' * 5000}",
        "many brackets": f"steps: {'[' * 3000}",
        "a bomb": BOMB,
        "itself": "steps: &x [*x]",
        "keys that are lists": "? [1, 2]\n: 3",
        "a key twice": "steps: 1\nsteps: 2",
        "bytes": "steps: \x00",
    }.values(),
)
def test_yaml_that_cannot_be_read(folder, text, tmp_path, capsys):
    (folder / "config.yaml").write_text(text)
    assert report(folder) == resume(folder) == evaluate(folder) == 2
    assert capsys.readouterr().err.count("error: ") == 3
    (tmp_path / "mine.yaml").write_text(text)
    assert tiny.call("train", tmp_path, "--fork", str(folder)) == 2


def test_many_keys_take_no_time_that_grows_with_their_square(tmp_path):
    (tmp_path / "x.yaml").write_text("".join(f"k{i}: {i}\n" for i in range(20_000)))
    assert len(configuration.load(tmp_path / "x.yaml")) == 20_000


def test_control_characters_are_not_printed(folder, capsys):
    config = configuration.load(folder / "config.yaml") | {"env": "\x1b]0;title\x07"}
    (folder / "config.yaml").write_text(json.dumps(config))
    assert resume(folder) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said and r"\x1b]0;title" in said


# ------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "{}",
        "[]",
        '{"labels": [{"seed": 0}], "hyper": {}, "parents": ["x"]}',
        '{"labels": [{"seed": 0}], "hyper": {}, "parents": [0, 1]}',
        '{"labels": [{"seed": 0, "clip": 1%s}], "hyper": {}}' % ("0" * 400),
        '{"labels": [{"seed": 0}], "hyper": {"clip": [99999999999999999999]}}',
    ],
    ids=str,
)
def test_members_that_cannot_be_read(folder, text, capsys):
    (folder / "members.json").write_text(text)
    assert report(folder) == resume(folder) == evaluate(folder) == 2
    assert "members.json' cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x | {"seconds": [1], "versions": "x", "diverged": [3]},
        lambda x: x | {"seconds": {"training": "long"}, "versions": {"jax": [1]}},
        lambda x: x | {"steps_per_second": "fast", "device": {}, "finished": "yes"},
        lambda x: [x],
    ],
)
def test_a_summary_of_other_types_is_left_out(folder, change):
    rewrite(folder / "summary.json", change)
    assert report(folder) == 0


def test_rows_of_the_log_that_are_none_are_skipped(folder):
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    scalar, ragged, huge = (json.loads(json.dumps(rows[-1])) for _ in range(3))
    scalar["metrics"] = dict.fromkeys(scalar["metrics"], 1.0)
    ragged["metrics"] = {name: [1.0, 2.0] for name in ragged["metrics"]}
    huge["steps"] = 10**400
    bad = [*map(json.dumps, (scalar, ragged, huge)), "[" * 50_000]
    path.write_text("".join(f"{line}\n" for line in [*map(json.dumps, rows), *bad]))
    assert report(folder) == 0


# ------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize("value", ["-1", "0"])
def test_an_evaluation_of_no_steps_overwrites_nothing(folder, value, capsys):
    (folder / "evaluation.json").write_text("mine")
    assert evaluate(folder, "--max-steps", value) == 2
    assert f"max_steps is {value}; it must be at least 1." in capsys.readouterr().err
    assert (folder / "evaluation.json").read_text() == "mine"


def test_a_middle_phase_is_known_by_what_its_file_says(tmp_path):
    a, b, c = (tmp_path / f"{name}.yaml" for name in "abc")
    a.write_text("agent: {discount: 0.9}\n")
    b.write_text("warm_start: a.yaml\n")
    c.write_text("warm_start: b.yaml\n")
    name = lambda: (
        continuing.warm_start_experiment(configuration.experiment(configuration.read(c))).name
    )
    before = name()
    assert name() == before
    a.write_text("agent: {discount: 0.5}\n")
    assert name() != before


def test_a_config_that_is_deleted_is_not_all_that_is_gone(folder, capsys):
    from jaxrl.runtime import stopping

    (folder / "config.yaml").unlink()
    stopped = pytest.raises(stopping.Stopped, match=r"config.yaml' is gone.*its checkpoints are in")
    with stopped, stopping.explain_failures(folder):
        stopping.check_exists(folder)


def test_what_is_saved_is_what_is_loaded(folder):
    """The reader's checks refuse nothing that is whole."""
    checkpoint = newest(folder)
    arrays, _ = checkpoints.restore_raw(checkpoint)
    assert all(np.size(x) or 0 in x.shape for x in arrays.values()) and evaluate(folder) == 0
