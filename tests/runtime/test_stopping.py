"""Runs that end early: one line says why, what is left, and how to continue."""

import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import checkpoint_files, configuration, continuing, driver, stopping
from jaxrl.runtime.checkpoint_files import CheckpointError
from jaxrl.runtime.errors import Stopped
from tests.runtime import tiny


@pytest.fixture
def before_update(monkeypatch):
    """Make `before_update(n, act)`, which calls `act` before the chunk with a run's n-th update."""

    def arrange(number, act):
        compiled = driver.Program.compile

        def compile(self, progress):
            chunk = compiled(self, progress)

            def acting(progress, steps):
                if int(progress.run.step) < number <= int(progress.run.step) + steps:
                    act()
                return chunk(progress, steps)

            return acting

        monkeypatch.setattr(driver.Program, "compile", compile)

    return arrange


def throw(error):
    def throw():
        raise error

    return throw


def python(program, *words):
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )


def said_in_a_line(capsys):
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


# ---------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("number", stopping.INTERRUPTED)
def test_an_interrupt_is_noted_and_nothing_printed(capsys, number):
    """An interrupt may arrive in the middle of printing."""
    before, interrupt = signal.getsignal(number), stopping.Interrupt()
    with interrupt.catch():
        assert interrupt.reason is None
        signal.raise_signal(number)
    assert interrupt.reason == stopping.INTERRUPTED[number] and interrupt.number == number
    assert capsys.readouterr() == ("", "") and signal.getsignal(number) == before


def test_a_second_interrupt_ends_at_once():
    with stopping.Interrupt().catch(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    with stopping.Interrupt().catch(), pytest.raises(SystemExit) as error:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert error.value.code == 143


def test_a_computation_without_an_end_is_left_after_two_interrupts(tmp_path):
    settings = tiny.write_settings(tmp_path)
    run = tiny.process("train", settings, "--env", "tests.runtime.environments:never_returns")
    assert run.stderr is not None
    said = ""
    while "Compiling: " not in said:
        assert run.poll() is None, said
        said += run.stderr.readline()
    for _ in range(2):
        time.sleep(2.0)
        run.send_signal(signal.SIGINT)
    said = run.communicate()[1]
    assert run.returncode == 130 and "interrupted" in said, said


@pytest.mark.parametrize(
    ("word", "more", "number"),
    [
        ("Starting", 0.0, signal.SIGTERM),
        ("Starting", 0.3, signal.SIGINT),
        ("Compiling", 0.0, signal.SIGINT),
        ("Compiling", 0.3, signal.SIGTERM),
    ],
)
def test_interrupted_while_it_starts_or_compiles(finished_run, tmp_path, word, more, number):
    run = tiny.process("train", tiny.write_settings(tmp_path), "--name", "run")
    folder = tmp_path / "run"
    assert run.stderr is not None
    said = ""
    while said.splitlines()[-1:] != [f"{word} ..."]:
        assert run.poll() is None, said
        said += run.stderr.readline()
    time.sleep(more)
    run.send_signal(number)
    said += run.communicate()[1]
    assert "Traceback" not in said
    assert run.returncode == 128 + number, said
    word = stopping.INTERRUPTED[number]
    assert said.splitlines()[-1] == f"{word}: saved. Continue with jaxrl resume {folder}"
    tiny.assert_same_run(tiny.resume(folder), finished_run)


def test_interrupted_while_it_starts_it_does_not_compile(tmp_path, capsys, monkeypatch):
    start = driver.Program.start

    def interrupt(self, *arguments):
        signal.raise_signal(signal.SIGTERM)
        return start(self, *arguments)

    monkeypatch.setattr(driver.Program, "start", interrupt)
    monkeypatch.setattr(driver.Program, "compile", lambda *_: pytest.fail("compiled"))
    with pytest.raises(SystemExit) as error:
        tiny.call("train", tmp_path, "--name", "run")
    assert error.value.code == 143
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"terminated: saved. Continue with jaxrl resume {tmp_path / 'run'}"
    assert len(tiny.arrays(tmp_path / "run")) > 10


def test_an_interrupt_ends_a_first_phase_and_what_was_to_follow(tmp_path, capsys, monkeypatch):
    """The same holds for an interrupt before the first phase has begun."""
    first = tmp_path / "first.yaml"
    configuration.write(tiny.config(), first)
    check = continuing.check_warm_start

    def interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)
        return check(*arguments)

    monkeypatch.setattr(continuing, "check_warm_start", interrupt)
    monkeypatch.setattr(driver.Program, "start", lambda *_: pytest.fail("it began"))
    # As in a shell's foreground; in the background SIGINT may be ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert tiny.call("train", tmp_path, "--warm-start", str(first), "--quiet") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "interrupted\n"
    assert {p.name for p in tmp_path.iterdir()} == {"tiny.yaml", "first.yaml"}


# ---------------------------------------------------------------------------------- memory

OUT_OF_MEMORY = [
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 64 bytes.\nMore."),
    MemoryError("Unable to allocate 8 GiB for an array."),
    MemoryError(),
    RuntimeError("can't start new thread"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_memory_that_runs_out_ends_a_run_in_a_line(finished_run, tmp_path, capsys, before_update,
                                                   monkeypatch, error):  # fmt: skip
    before_update(10, throw(error))
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    said, folder = said_in_a_line(capsys), tmp_path / "run"
    what = stopping.first_line(error).rstrip(".")
    assert f"Memory ran out ({what}); a run with fewer environments or seeds" in said
    newest = folder / "checkpoints" / "step_000000000008"
    assert said.endswith(f"checkpoint is {newest}; continue with jaxrl resume {folder}")
    monkeypatch.undo()
    tiny.assert_same_run(tiny.resume(folder), finished_run)


def test_memory_that_runs_out_at_the_start_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(driver.Program, "start", lambda *_: throw(OUT_OF_MEMORY[0])())
    assert tiny.call("train", tmp_path, "--quiet") == 1
    assert said_in_a_line(capsys).endswith("needs less. Nothing new was saved.")
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.yaml"]


HUNGRY = """
import re, resource, sys
from pathlib import Path
from jaxrl.commands import train
from jaxrl.commands import command_line

settings, out = sys.argv[1:]
# First a run that fits, so that every thread has its stack.
assert command_line.call(train.main, [settings, "--name", "small", "--quiet"]) == 0
used = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))
words = ["--algorithm", "dqn", "--env", "cartpole", "--agent.capacity", "200000000"]
sys.exit(command_line.call(train.main, [*words, "--out", out, "--name", "large"]))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's /proc")
def test_a_real_limit_of_memory_does_not_hang(tmp_path):
    """Reading an array for which XLA had no memory would wait forever."""
    settings = tiny.write_settings(tmp_path)
    done = python(HUNGRY, settings, str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: Memory ran out (RESOURCE_EXHAUSTED: Out of memory" in done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"tiny.yaml", "small"}


# ---------------------------------------------------------------------------------- disks


def test_a_run_whose_folder_is_deleted(tmp_path, capsys, before_update):
    folder = tmp_path / "run"
    # In one step, since the run continues while its folder is removed.
    before_update(10, lambda: shutil.rmtree(folder.rename(tmp_path / "removed")))
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    assert said_in_a_line(capsys) == (
        f"error: The run's folder '{folder}' is gone, with everything that was saved."
    )
    assert not (folder / "config.yaml").exists()  # except what was being written just then


def test_a_run_whose_folder_is_deleted_after_its_last_checkpoint(tmp_path, capsys, monkeypatch):
    folder, save = tmp_path / "run", stopping.checkpoints.save

    def save_and_delete(path, step, *more, **named):
        save(path, step, *more, **named)
        if step == 20:
            shutil.rmtree(folder)

    monkeypatch.setattr(stopping.checkpoints, "save", save_and_delete)
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    assert f"'{folder}' is gone" in said_in_a_line(capsys)
    assert not folder.exists()


def test_a_run_whose_log_is_deleted(tmp_path, capsys, before_update, monkeypatch):
    folder = tmp_path / "run"
    before_update(10, (folder / "metrics.jsonl").unlink)
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    said = said_in_a_line(capsys)
    assert f"'{folder / 'metrics.jsonl'}' cannot be written: No such file" in said
    assert said.endswith(f"step_000000000008; continue with jaxrl resume {folder}")
    monkeypatch.undo()
    tiny.resume(folder)
    (said,) = capsys.readouterr().err.splitlines()
    assert "has lost rows: it had " in said and "at update 8" in said
    assert [row["updates"] for row in tiny.rows(folder)] == [9, 12, 15, 16, 18, 20, 20]


FILES_OF_A_SIZE = """
import resource, sys
from jaxrl.commands import train
from jaxrl.commands import command_line

resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, -1))
sys.exit(command_line.call(train.main, sys.argv[1:]))
"""


def test_a_log_that_reaches_the_limit_of_a_file(tmp_path):
    words = ("--steps", "12800", "--log-every", "32", "--checkpoint-every", "3200", "--quiet")
    settings = tiny.write_settings(tmp_path)
    run = python(FILES_OF_A_SIZE, settings, "--name", "run", *words)
    said = run.stderr
    folder = tmp_path / "run"
    assert run.returncode == 1, said
    assert f"error: '{folder / 'metrics.jsonl'}' cannot be written: File too large." in said
    newest = max((folder / "checkpoints").iterdir())
    assert 0 < int(newest.name.removeprefix("step_")) < 400
    assert f"{newest}; continue with jaxrl resume {folder}" in said and "Traceback" not in said
    tiny.resume(folder)
    trained = [row["updates"] for row in tiny.rows(folder) if row["kind"] == "train"]
    assert trained == list(range(1, 401))


def test_a_checkpoint_that_cannot_be_written(finished_run, tmp_path, capsys, monkeypatch,
                                             before_update):  # fmt: skip
    def full():
        full = OSError(28, "No space left on device")
        monkeypatch.setattr(checkpoint_files, "flush", lambda path: throw(full)())

    before_update(10, full)
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    said, folder = said_in_a_line(capsys), tmp_path / "run"
    # The checkpoint of step 12, or of step 8 if that was still being written.
    failed = 12 if "step_000000000012" in said else 8
    place = lambda step: folder / "checkpoints" / f"step_{step:012d}"
    assert f"checkpoint {place(failed)} cannot be written: [Errno 28] No space left" in said
    assert said.endswith(f"checkpoint is {place(failed - 4)}; continue with jaxrl resume {folder}")
    monkeypatch.undo()
    tiny.assert_same_run(tiny.resume(folder), finished_run)


def test_a_picture_that_cannot_be_written_is_no_reason_to_stop(tmp_path, capsys, before_update):
    folder = tmp_path / "run"
    before_update(10, (folder / "learning_curve.png").mkdir)
    tiny.train(tmp_path, "run")
    (said,) = capsys.readouterr().err.splitlines()
    assert said == f"'{folder / 'learning_curve.png'}' cannot be written: Is a directory."
    assert tiny.summary(folder)["finished"]


def test_a_summary_that_cannot_be_written(finished_run, tmp_path, capsys, before_update):
    folder = tmp_path / "run"
    before_update(10, (folder / "summary.json").mkdir)
    assert tiny.call("train", tmp_path, "--name", "run", "--quiet") == 1
    said = said_in_a_line(capsys)
    assert f"'{folder / 'summary.json'}' cannot be written: Is a directory." in said
    assert "step_000000000020; continue with" in said
    tiny.assert_same_run(folder, finished_run)


def test_what_the_program_did_is_not_explained_away(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").touch()
    for error in (
        RuntimeError("INTERNAL: a bug"),
        ConnectionError(104, "Connection reset by peer"),
        FileNotFoundError(2, "No such file", "elsewhere/levels.txt"),
        ValueError("a bug"),
    ):
        for where in (None, folder):
            with pytest.raises(type(error)) as found, stopping.explain_failures(where):
                raise error
            assert found.value is error
    # A checkpoint that cannot be read before a run is resumed is bad input.
    with pytest.raises(UserError, match="not whole"), stopping.explain_failures(None):
        raise CheckpointError("It is not whole.")
    # A full disk is reported wherever it was noticed.
    with (
        pytest.raises(Stopped, match="cannot be written: No space left"),
        stopping.explain_failures(None),
    ):
        raise OSError(28, "No space left on device")
    said = r"Read-only.*There is no checkpoint in"
    with pytest.raises(Stopped, match=said), stopping.explain_failures(folder):
        raise OSError(30, "Read-only file system", str(folder / "metrics.jsonl"))
