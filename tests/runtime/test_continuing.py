"""Folders of earlier runs are data: their code is not run, and changes to them are found."""

import json
import re
import shutil
import sys

import pytest
import yaml

from experiments import export_rule as export_script
from jaxrl import runtime
from jaxrl.commands import command_line
from jaxrl.commands import evaluate as evaluate_script
from jaxrl.core.errors import UserError
from jaxrl.runtime import checkpoint_files, configuration, continuing, run_folder
from jaxrl.runtime import training as training_module
from jaxrl.runtime.members import read_members
from tests.runtime import tiny

OWN = "tests.runtime.environments:own_cartpole"


@pytest.fixture
def copy(finished_run, tmp_path):
    """Return a copy of the finished run that may be written to."""
    return shutil.copytree(finished_run, tmp_path / "run")


def edit(folder, **changes):
    """Change settings in config.yaml, as an editor would."""
    path = folder / "config.yaml"
    data = yaml.safe_load(path.read_text())
    agent = data["agent"] | changes.pop("agent", {})
    path.write_text(yaml.safe_dump(data | {"agent": agent} | changes))


def as_of_an_earlier_version(folder):
    """Remove the settings from a folder's checkpoints, as in those of an earlier version."""
    for checkpoint in run_folder.checkpoints(folder).iterdir():
        content = json.loads((checkpoint / "meta.json").read_text())
        del content["meta"]["settings"]
        (checkpoint / "meta.json").write_text(json.dumps(content))
        (checkpoint / checkpoint_files.CHECKSUMS).unlink()
        checkpoint_files.seal(checkpoint)


# ------------------------------------------------------------------------------------- trust


@pytest.fixture
def marking_module(tmp_path, monkeypatch):
    """Make a module `marked` that leaves a mark when it is imported."""
    mark = tmp_path / "mark"
    (tmp_path / "marked.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    assert not mark.exists() and "marked" not in sys.modules


train = tiny.train_script.main
WAYS = {
    "load": lambda folder: runtime.load(folder),
    "resume": lambda folder: train(["--resume", str(folder)]),
    "fork": lambda folder: train(["--fork", str(folder), "--steps", "9999"]),
    "warm start": lambda folder: train(
        [tiny.write_settings(folder.parent), "--warm-start", str(folder), "--quiet"]
    ),
    "resumed sweep": lambda folder: tiny.sweep_script.main(["--resume", str(folder)]),
    "evaluate": lambda folder: evaluate_script.main([str(folder)]),
    "export a rule": lambda folder: export_script.main([str(folder), "rule.npz"]),
    "resume, from Python": lambda folder: runtime.train(tiny.config(resume=str(folder))),
    "fork, from Python": lambda folder: runtime.train(tiny.config(fork=str(folder))),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_anybody_elses_is_imported_without_consent(copy, marking_module, way):
    edit(copy, env="marked:environment")
    with pytest.raises(UserError) as error:
        WAYS[way](copy)
    assert str(error.value) == (
        f"'{copy}' names code outside of jaxrl, marked:environment; importing it runs it; if you "
        "trust it, add --trust (trust=True)."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "marked:environment"},
        {"env": "gymnasium/marked:Environment-v0"},
        {"env": "jaxrl.envs.games.opponents:against_random", "env_params": {"game": "marked:x"}},
        {"evaluate_env": "marked:environment"},
        {"evaluate-env": "marked:environment"},
        {"algorithm": "marked:build"},
        {"algorithm": "lifelong_ppo", "agent": {"components": ["ewc", "marked:part"]}},
    ],
    ids=str,
)
def test_whatever_names_code_needs_consent(copy, marking_module, changes):
    edit(copy, **changes)
    with pytest.raises(UserError, match=r"names code outside of jaxrl, .*marked:"):
        runtime.load(copy)


def test_a_name_is_no_code(copy):
    edit(copy, name="rate:small", out="of:date")
    assert run_folder.read_config(copy).name == "rate:small"


@pytest.mark.slow
def test_code_that_is_trusted_is_used(copy, capsys):
    edit(copy, env=OWN)
    as_of_an_earlier_version(copy)
    assert runtime.load(copy, trust=True).env.name == "own_cartpole"
    assert runtime.load(copy, trust=frozenset({OWN})).env.name == "own_cartpole"

    def call(main, *argv):
        code = command_line.call(main, argv)
        return code, capsys.readouterr().err

    out = ("--out", str(copy.parent))
    assert call(train, "--resume", str(copy), "--trust")[0] == 0  # finished already
    code, said = call(train, "--fork", str(copy), "--trust", *out)
    assert code == 2 and "has already done 640 environment steps" in said
    here = tiny.write_settings(copy.parent)
    code, said = call(train, here, "--warm-start", str(copy), "--trust", "--agent.hidden", "5")
    assert code == 2 and "does not fit" in said
    code, said = call(export_script.main, str(copy), "rule.npz", "--trust")
    assert code == 2 and "is not a run that learned a rule" in said
    # Naming the code is consent to it.
    assert call(train, "--resume", str(copy), "--env", OWN)[0] == 0
    (copy.parent / "own.yaml").write_text(f"env: {OWN}\n")
    assert call(train, "--resume", str(copy), str(copy.parent / "own.yaml"))[0] == 0
    assert call(train, "--resume", str(copy), "--env", OWN + "s")[0] == 2
    assert call(train, "--resume", str(copy), "--no-trust")[0] == 2


@pytest.mark.parametrize("words", [["--trust"], ["--env", OWN]])
def test_evaluating_where_code_is_trusted(copy, words, capsys):
    edit(copy, env=OWN)
    as_of_an_earlier_version(copy)
    argv = [*words, "--episodes", "2", str(copy), "--video", "none"]
    assert command_line.call(evaluate_script.main, argv) == 0, capsys.readouterr().err
    evaluation = json.loads((copy / "evaluation.json").read_text())
    assert evaluation["env"] == "own_cartpole"


def test_trust_is_no_licence_to_call_anything(copy, tmp_path):
    touched = tmp_path / "touched"
    stmt = f"open({str(touched)!r}, 'w')"
    edit(copy, env="timeit:timeit", env_params={"stmt": stmt, "number": 1})
    as_of_an_earlier_version(copy)
    with pytest.raises(UserError, match="not declared to return an Environment"):
        runtime.load(copy, trust=True)
    assert not touched.exists()


# --------------------------------------------------------------------------- what was changed


def test_checkpoints_know_their_settings(finished_run):
    from jaxrl.runtime import checkpoints

    saved = checkpoints.read_meta(continuing.newest_checkpoint(finished_run))["settings"]
    assert saved == configuration.to_dict(run_folder.read_config(finished_run))


def unfinish(folder):
    (folder / "summary.json").unlink()
    return folder


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"agent": {"discount": 0.9}}, ["agent.discount is 0.9 in config.yaml and 0.99 in"]),
        (
            {"agent": {"torso": {"hidden": [5]}}},
            ["agent.torso.hidden is [5] in config.yaml and [4] in"],
        ),
        ({"env": "pendulum"}, ["env is 'pendulum' in config.yaml and 'cartpole' in"]),
        ({"env_params": {"force": 2}}, ["env_params.force is 2 in config.yaml and None in"]),
        (
            {
                "agent": {"clip": 1, "gae_lambda": 1, "discount": 1, "value_clip": 2},
                "env": "chain",
            },
            ["env is 'chain' in config.yaml", "agent.", "and 2 more differ"],
        ),
    ],
    ids=str,
)
def test_a_changed_configuration_is_refused_and_named(copy, changes, named):
    edit(unfinish(copy), **changes)
    steps = ["--steps", "9999"]
    for way in (
        lambda: runtime.load(copy),
        lambda: train(["--resume", str(copy)]),
        lambda: train(["--fork", str(copy), "--out", str(copy.parent), *steps]),
        lambda: evaluate_script.main([str(copy)]),
    ):
        with pytest.raises(UserError) as error:
            way()
        said = str(error.value)
        assert said.startswith(f"'{copy}' was changed: ") and "\n" not in said
        assert all(words in said for words in named), said


def test_another_algorithm_is_named_before_its_settings(copy):
    data = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump(data | {"algorithm": "a2c", "agent": {}}))
    with pytest.raises(UserError, match=r"algorithm is 'a2c' in config\.yaml and 'ppo' in"):
        runtime.load(copy)


def test_what_is_only_about_training_changes_no_policy(copy):
    edit(unfinish(copy), steps=9999, keep=1)
    assert runtime.load(copy).step == 20
    with pytest.raises(UserError, match=r"steps is 9999 in config\.yaml and 640 in its"):
        train(["--resume", str(copy)])


def test_devices_may_differ(copy):
    checkpoint = continuing.newest_checkpoint(copy)
    config = tiny.config(out=run_folder.read_config(copy).out, generator="pcg", name="run")
    for devices in (1, 2):
        other = configuration.override(config, {"devices": devices})
        continuing.check_matches_checkpoint(copy, other, checkpoint)
    with pytest.raises(UserError, match=r"seed is 1 in config\.yaml and 0 in"):
        continuing.check_matches_checkpoint(
            copy, configuration.override(config, {"seed": 1}), checkpoint
        )


def test_a_setting_that_a_later_version_added_had_its_default(copy):
    (checkpoint,) = list(run_folder.checkpoints(copy).glob("*20"))
    content = json.loads((checkpoint / "meta.json").read_text())
    del content["meta"]["settings"]["agent"]["clip"], content["meta"]["settings"]["keep"]
    (checkpoint / "meta.json").write_text(json.dumps(content))
    config = run_folder.read_config(copy)
    continuing.check_matches_checkpoint(copy, config, checkpoint)
    with pytest.raises(UserError, match=re.escape("agent.clip is 0.9 in config.yaml and 0.2 in")):
        continuing.check_matches_checkpoint(
            copy, configuration.override(config, {"agent": {"clip": 0.9}}), checkpoint
        )


@pytest.mark.slow
def test_a_run_of_an_earlier_version_goes_on(finished_run, copy):
    as_of_an_earlier_version(unfinish(copy))
    shutil.rmtree(run_folder.checkpoints(copy) / "step_000000000020")
    tiny.assert_same_run(tiny.resume(copy), finished_run)


def test_a_run_with_settings_of_other_names_names_the_version_that_reads_it(copy, capsys):
    for meta in run_folder.checkpoints(copy).glob("*/meta.json"):
        content = json.loads(meta.read_text())
        content["meta"]["jaxrl"] = "0.1.0"
        meta.write_text(json.dumps(content))
    edit(copy, agent={"trace": 0.9})
    assert command_line.call(train, ["--resume", str(copy)]) == 2
    said = capsys.readouterr().err
    assert "was made by jaxrl 0.1.0, whose settings have other names" in said
    assert f"git checkout {run_folder.BEFORE_OLDEST}" in said


def test_a_configuration_that_was_emptied_is_no_run_of_defaults(copy):
    (copy / "config.yaml").write_text("")
    with pytest.raises(
        UserError, match=r"config\.yaml' is empty; a run's config\.yaml must hold all"
    ):
        runtime.load(copy)


def test_a_finished_run_answers_before_anything_is_built(copy, monkeypatch, capsys):
    def build(config):
        raise AssertionError("is not built")

    monkeypatch.setattr(training_module, "build", build)
    assert command_line.call(train, ["--resume", str(copy)]) == 0
    assert f"The run in {copy} is finished; to train longer, --fork it" in capsys.readouterr().err
    assert command_line.call(train, ["--resume", str(copy), "--agent.clip", "0.7"]) == 2
    assert "agent.clip is 0.7 here and 0.2 in" in capsys.readouterr().err


# ----------------------------------------------------------------------------- broken files


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"finished"', '{"finished": "no"}', "{}", "", "{", "\xff"]
)
def test_a_summary_of_another_kind_is_of_no_finished_run(tmp_path, text):
    (tmp_path / "summary.json").write_text(text, encoding="latin-1")
    assert continuing.is_finished(tmp_path) is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "it must hold a mapping of labels and hyper"),
        ("3", "it must hold a mapping of labels and hyper"),
        ("{}", "it must hold a mapping of labels and hyper"),
        ('{"labels": 3, "hyper": {}}', "labels must be a list of mappings"),
        ('{"labels": [], "hyper": {}}', "labels must be a list of mappings"),
        ('{"labels": [3], "hyper": {}}', "labels must be a list of mappings"),
        ('{"labels": [{}], "hyper": {}}', "seed among them"),
        ('{"labels": [{"seed": "x"}], "hyper": {}}', "seed among them"),
        ('{"labels": [{"seed": true}], "hyper": {}}', "seed among them"),
        ('{"labels": [{"seed": -1}], "hyper": {}}', "seed among them"),
        ('{"labels": [{"seed": 1, "clip": []}], "hyper": {}}', "seed among them, to numbers"),
        ('{"labels": [{"seed": 1}], "hyper": []}', "hyper must be a mapping"),
        ('{"labels": [{"seed": 1}], "hyper": {"clip": 1}}', "hyper.clip must be a list of numbers"),
        ('{"labels": [{"seed": 1}], "hyper": {"clip": ["x"]}}', "hyper.clip must be a list of"),
        (
            '{"labels": [{"seed": 1}], "hyper": {"clip": [1, 2]}}',
            "hyper.clip has 2 values for 1 members",
        ),
        ("{", "Expecting"),
    ],
)
def test_members_of_another_kind_are_refused(copy, text, said):
    (copy / "members.json").write_text(text)
    with pytest.raises(UserError, match=re.escape(said)) as error:
        read_members(copy)
    assert f"'{copy / 'members.json'}' cannot be read: " in str(error.value)
    assert "\n" not in str(error.value)
    assert command_line.call(evaluate_script.main, [str(copy)]) == 2
