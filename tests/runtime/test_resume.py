"""Work is never lost: killed processes leave runs that resume to the same bits."""

import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from jaxrl.runtime import checkpoints
from jaxrl.runtime import log as logs
from tests.runtime import tiny


def wait_for_rows(run, folder: Path, count: int) -> None:
    """Wait until the log has `count` lines or the process has ended."""
    log = folder / "metrics.jsonl"
    while run.poll() is None:
        if log.is_file() and log.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.001)


def start(folder: Path, *words: str):
    return tiny.process(
        "train", tiny.write_settings(folder), "--name", "run", *words
    ), folder / "run"


@pytest.mark.parametrize(
    ("count", "seeds", "more"), [(0, 1, 0.0), (3, 1, 0.02), (5, 2, 0.0)], ids=str
)
def test_killed_at_any_moment(finished_run, finished_pair, tmp_path, count, seeds, more):
    run, folder = start(tmp_path, "--seeds", str(seeds))
    while count == 0 and not folder.exists():  # killed as soon as there is a folder
        assert run.poll() is None, run.communicate()
        time.sleep(0.001)
    wait_for_rows(run, folder, count)
    time.sleep(more)
    run.kill()
    run.communicate()
    assert run.returncode == -signal.SIGKILL
    assert not (folder / "summary.json").exists()
    tiny.resume(folder)
    tiny.assert_same_run(folder, finished_run if seeds == 1 else finished_pair)
    assert tiny.summary(folder)["finished"]


def test_killed_again_and_again(finished_run, tmp_path):
    """Kill at random moments; every process gets a little further or not at all."""
    run, folder = start(tmp_path)
    for count in (1, 4):
        wait_for_rows(run, folder, count)
        run.kill()
        run.communicate()
        run = tiny.process("train", "--resume", str(folder))
    run.communicate()
    tiny.assert_same_run(tiny.resume(folder), finished_run)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_an_interrupt_saves_and_exits(finished_run, tmp_path, number, code, word):

    run, folder = start(tmp_path)
    wait_for_rows(run, folder, 2)
    run.send_signal(number)
    _, said = run.communicate()
    assert run.returncode == code, said
    assert f"{word}: saved. Continue with jaxrl resume {folder}" in said
    assert "Traceback" not in said
    stopped = tiny.summary(folder)
    assert not stopped["finished"] and stopped["stopped_because"] == word
    assert (folder / "learning_curve.png").exists()
    tiny.assert_same_run(tiny.resume(folder), finished_run)


def interrupted_run(tmp_path: Path, finished_run: Path) -> Path:
    """Return the run as after 16 of its 20 updates: killed while it wrote a row."""
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    shutil.rmtree(folder / "checkpoints" / "step_000000000020")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:25])
    return folder


def test_a_half_written_last_line(finished_run, tmp_path, capsys):
    tiny.assert_same_run(tiny.resume(interrupted_run(tmp_path, finished_run)), finished_run)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage"])
def test_a_damaged_log_keeps_no_checkpoint_from_going_on(finished_run, tmp_path, capsys, damage):
    folder = interrupted_run(tmp_path, finished_run)
    log = folder / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    if damage == "missing":
        log.unlink()
    elif damage == "garbage":
        log.write_bytes(b"".join([b"[]\n", *lines[:3], b'{"kind": 1}\n', *lines[3:]]))
    else:
        log.write_bytes(lines[0] + lines[1][:40] if damage == "cut" else b"")
    tiny.resume(folder)  # --quiet, which does not silence warnings
    said = capsys.readouterr().err.splitlines()
    if damage == "garbage":
        assert said == [f"In the log '{log}' 2 lines are not rows; skipped."]
        rows = logs.read(log, warn=lambda said: None)
        assert [{k: v for k, v in row.items() if k != "time"} for row in rows] == tiny.rows(
            finished_run
        )
    else:
        (sentence,) = said
        assert f"'{log}' has lost rows: " in sentence and "at update 16" in sentence
        before = 1 if damage == "cut" else 0
        assert tiny.rows(folder) == [
            *tiny.rows(finished_run)[:before],
            *tiny.rows(finished_run)[-3:],
        ]
    tiny.assert_same_arrays(tiny.arrays(folder), tiny.arrays(finished_run))
    summary = tiny.summary(folder)
    assert summary["finished"] and summary["returns"] == tiny.summary(finished_run)["returns"]
    newest = checkpoints.latest(folder / "checkpoints")
    assert checkpoints.restore_raw(newest)[1]["log_size"] == log.stat().st_size


@pytest.mark.parametrize("damage", ["truncated", "missing", "altered"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    finished_run, tmp_path, capsys, damage
):
    folder = interrupted_run(tmp_path, finished_run)
    newest = folder / "checkpoints" / "step_000000000016"
    file = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data[:-1] if damage == "truncated" else data)
    tiny.resume(folder)  # --quiet, which does not silence warnings
    said = capsys.readouterr().err
    assert f"{newest} is damaged" in said and damage in said and "It is skipped." in said
    tiny.assert_same_run(folder, finished_run)


def test_no_checkpoint_is_whole(finished_run, tmp_path, capsys):
    folder = interrupted_run(tmp_path, finished_run)
    for path in (folder / "checkpoints").iterdir():
        (path / "checksums.json").unlink()
    assert tiny.command_line.call(tiny.train_script.main, ["--resume", str(folder)]) == 2
    assert "All 2 checkpoints" in capsys.readouterr().err


def test_a_finished_run_says_so_and_is_left_alone(finished_run, capsys):
    files = lambda: {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in finished_run.rglob("*")}
    before = files()
    assert tiny.command_line.call(tiny.train_script.main, ["--resume", str(finished_run)]) == 0
    assert f"The run in {finished_run} is finished" in capsys.readouterr().err
    assert files() == before


def test_killed_after_the_last_checkpoint(finished_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    (folder / "summary.json").unlink()
    tiny.assert_same_run(tiny.resume(folder), finished_run)
    assert tiny.summary(folder)["returns"] == tiny.summary(finished_run)["returns"]


def test_a_folder_that_another_process_holds(finished_run, tmp_path, capsys):
    folder = interrupted_run(tmp_path, finished_run)
    before = (folder / "metrics.jsonl").read_bytes()
    handle = os.open(folder / ".lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        code = tiny.command_line.call(tiny.train_script.main, ["--resume", str(folder)])
    finally:
        os.close(handle)
    assert code == 2
    assert f"error: Another process is writing to '{folder}'." in capsys.readouterr().err
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--agent.clip", "0.3"], "agent.clip is 0.3 here and 0.2 in"),
        (["--steps", "9999"], "steps is 9999 here and 640 in"),
        (["--agent.hidden", "8,8"], r"agent.torso.hidden is [8, 8] here and [4] in"),
        (["--env-params", "force=3"], "env_params.force is 3 here and None in"),
    ],
)
def test_a_run_goes_on_unchanged_or_not_at_all(finished_run, capsys, words, said):
    argv = ["--resume", str(finished_run), *words]
    assert tiny.command_line.call(tiny.train_script.main, argv) == 2
    error = capsys.readouterr().err
    assert said in error and "--fork" in error
