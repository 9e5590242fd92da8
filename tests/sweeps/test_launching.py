"""Launchers of sweeps: refusals, the loop over tasks, and tasks themselves, without any package."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import training
from jaxrl.runtime.display import Display
from jaxrl.runtime.errors import Stopped
from jaxrl.runtime.session import Session
from jaxrl.sweeps import launching, memory, sweeping, tasks
from jaxrl.sweeps.launching import Launch, Resources, train_all
from jaxrl.sweeps.parts import first_parts, read
from jaxrl.sweeps.tasks import Outcome, Task
from tests.runtime import tiny

VARY = ["--vary", "hidden=4/8", "learning-rate=1e-3,1e-4", "--seeds", "2", "--quiet"]
SOME = Resources(1, 0, 10**9)


class Done:
    """A job that has ended."""

    def __init__(self, outcome):
        self.outcome = outcome

    def poll(self):
        return self.outcome

    def cancel(self):
        raise AssertionError("it has ended")

    kill = cancel


class Endless(Done):
    """A job that ends when it is canceled."""

    def __init__(self):
        super().__init__(None)

    def cancel(self):
        self.outcome = Outcome("interrupted")


class Inline:
    """A launcher that runs a task as it is submitted, after the outcomes that a test has planned.

    planned: name of a part -> outcomes of its first submissions; None for one that does not end.
    """

    poll_seconds = 0.0

    def __init__(self, planned=None, at_once=None):
        self.planned, self.at_once = planned or {}, at_once
        self.submitted, self.checked, self.is_closed = [], [], False

    def check(self, needed):
        self.checked.append(needed)

    def submit(self, task, needed):
        self.submitted.append(task.name)
        if self.planned.get(task.name):
            outcome = self.planned[task.name].pop(0)
            return Endless() if outcome is None else Done(outcome)
        return Done(tasks.run(task))

    def close(self):
        self.is_closed = True


@pytest.fixture
def inline(monkeypatch):
    """Return a function that makes `--launcher ray` an `Inline` launcher."""

    def use(**options):
        launcher = Inline(**options)
        module = type("module", (), {"make": staticmethod(lambda launch: launcher)})
        monkeypatch.setitem(sys.modules, "tests.sweeps.inline", module)
        monkeypatch.setitem(launching.ELSEWHERE, "ray", "tests.sweeps.inline")
        return launcher

    return use


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    assert tiny.call("sweep", out, "--name", "sweep", *VARY) == 0
    return out / "sweep"


def sweep(out, *words):
    return tiny.call("sweep", out, "--name", "sweep", *VARY, "--launcher", "ray", *words)


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--launcher", "rya"], "Unknown launcher 'rya'; did you mean 'ray'?"),
        (["--cpus", "4"], "cpus has no effect with --launcher local; it is for --launcher ray or"),
        (["--launcher", "ray", "--hours", "2"], "hours has no effect with --launcher ray; it is"),
        (["--launcher", "ray", "--cpus", "0"], "cpus is 0; it must be at least 1."),
        (["--launcher", "ray", "--ram", "-1"], "ram is -1.0; it must be at least 0.0."),
        (["--launcher", "submitit", "--slurm", "gpu"], "--slurm needs pairs"),
        (["--optuna", "4"], "--optuna 4 needs --samples N, the number of points in all; it"),
        (["--optuna", "4", "--pbt", "64"], "--pbt and --optuna cannot be combined."),
    ],
)
def test_options_that_cannot_work(words, said, tmp_path, capsys):
    assert tiny.call("sweep", tmp_path, *VARY, *words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not list(tmp_path.glob("*/"))


@pytest.mark.parametrize(
    ("launcher", "package", "extra"), [("ray", "ray", "ray"), ("submitit", "submitit", "slurm")]
)
def test_a_package_that_is_missing(launcher, package, extra, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert tiny.call("sweep", tmp_path, *VARY, "--launcher", launcher) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: The package '{package}' is not installed; pip install")
    assert f"[{extra}]" in said and said.count("\n") == 1


def test_optuna_that_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ["--vary", "clip=0.1,0.2", "--samples", "4", "--optuna", "2"]
    assert tiny.call("sweep", tmp_path, *words) == 2
    assert "error: The package 'optuna' is not installed; pip" in capsys.readouterr().err


def test_nothing_of_a_cluster_is_imported_for_a_local_sweep():
    code = (
        "import sys, jaxrl.commands.sweep, jaxrl.sweeps; "
        "print(sorted({'ray', 'submitit', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=tiny.environment(), capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_resources_that_no_node_has(tmp_path, inline, capsys, monkeypatch):
    launcher = inline()

    def refuse(needed):
        raise UserError(f"No node has {needed}.")

    monkeypatch.setattr(launcher, "check", refuse)
    assert sweep(tmp_path, "--cpus", "64", "--ram", "2.5") == 2
    assert capsys.readouterr().err == "error: No node has 64 CPUs, 2.5 GB of memory.\n"
    assert not (tmp_path / "sweep").exists() and launcher.is_closed and not launcher.submitted


# ------------------------------------------------------------------------------------ sweeps


def assert_same_sweep(a, b):
    for name in ("sweep.csv", "ranking.csv"):
        assert (a / name).read_text() == (b / name).read_text()
    runs = sorted(path.parent.name for path in a.glob("*/config.yaml"))
    assert runs == sorted(path.parent.name for path in b.glob("*/config.yaml"))
    for name in runs:
        tiny.assert_same_run(a / name, b / name)


def test_a_sweep_elsewhere_is_the_sweep_here(local, tmp_path, inline, capsys):
    launcher = inline()
    assert sweep(tmp_path) == 0
    assert_same_sweep(tmp_path / "sweep", local)
    assert launcher.submitted == ["program1", "program2"] and launcher.is_closed
    assert all(needed.ram >= memory.PROCESS for needed in launcher.checked)
    assert not list((tmp_path / "sweep").glob(".stop-*"))
    assert capsys.readouterr().err == ""
    # Resuming it does nothing, here or elsewhere.
    assert tiny.command_line.call(
        tiny.sweep_script.main,
        ["--resume", str(tmp_path / "sweep"), "--quiet", "--launcher", "ray"],
    ) == 0  # fmt: skip
    assert launcher.submitted == ["program1", "program2"]


@pytest.mark.parametrize(("gpus", "generator"), [("1", "threefry2x32"), ("0", "pcg")])
def test_the_generator_is_that_of_the_device_elsewhere(gpus, generator, tmp_path, inline):
    inline(planned={"program1": [Outcome("user error", "enough")]})
    assert sweep(tmp_path, "--gpus", gpus, "--generator", "auto") == 2
    assert tiny.configuration.load(tmp_path / "sweep/config.yaml")["generator"] == generator


def test_a_lost_task_is_submitted_again(local, tmp_path, inline, capsys):
    lost = Outcome("lost", "the node is gone", "node7")
    launcher = inline(planned={"program1": [lost, lost]})
    assert sweep(tmp_path) == 0
    assert_same_sweep(tmp_path / "sweep", local)
    assert launcher.submitted.count("program1") == 3
    said = capsys.readouterr().err
    assert "program1 was lost on node7 (the node is gone); it continues from its beginning." in said


def test_a_task_that_is_lost_again_and_again(tmp_path, inline, capsys):
    launcher = inline(planned={"program2": [Outcome("lost", "it took all memory")] * 3})
    assert sweep(tmp_path) == 1
    assert launcher.submitted.count("program2") == 3
    said = capsys.readouterr().err
    assert "program2 was lost 3 times without a new checkpoint in between" in said
    resume = f"jaxrl sweep --resume {tmp_path / 'sweep'} --launcher ray"
    assert f"To resume the sweep: {resume}\n" in said


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError("The map has no exit."), 2, "error: The map has no exit."),
        (Stopped("The disk is full."), 1, "error: The disk is full."),
        (ZeroDivisionError("by zero"), 1, "error: program1 failed on "),
    ],
)
def test_an_error_in_a_task_is_not_tried_again(error, code, said, tmp_path, inline, monkeypatch,
                                               capsys):  # fmt: skip
    launcher = inline(planned={"program2": [None]})

    def fail(*args):
        raise error

    monkeypatch.setattr(training, "train", fail)
    assert sweep(tmp_path) == code
    assert launcher.submitted == ["program1", "program2"]
    assert said in capsys.readouterr().err
    if isinstance(error, ZeroDivisionError):
        log = (tmp_path / "sweep" / "program1.log").read_text()
        assert "Traceback" in log and "ZeroDivisionError: by zero" in log


def test_an_interrupt_cancels_tasks_and_a_resumed_sweep_is_the_same(
    local, tmp_path, inline, monkeypatch, capsys
):
    launcher = inline(planned={"program2": [None]})
    write = sweeping.results.write_comparison

    def interrupt(*args):
        write(*args)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(sweeping.results, "write_comparison", interrupt)
        with pytest.raises(SystemExit) as stopped:
            sweep(tmp_path)
    assert stopped.value.code == 130
    folder = tmp_path / "sweep"
    assert f"To resume the sweep: jaxrl sweep --resume {folder}" in capsys.readouterr().err
    assert not list(folder.glob(".stop-*"))
    assert tiny.summary(folder / "program1")["finished"] and not (folder / "program2").exists()
    words = ["--resume", str(folder), "--quiet"]
    assert tiny.command_line.call(tiny.sweep_script.main, words) == 0  # here
    assert_same_sweep(folder, local)
    assert launcher.submitted == ["program1", "program2"]


def test_a_second_interrupt_ends_tasks_at_once(tmp_path):
    killed = []

    class Stubborn(Endless):
        def poll(self):
            signal.raise_signal(signal.SIGINT)

        def cancel(self):
            pass

        def kill(self):
            killed.append(True)

    launcher = Inline()
    launcher.submit = lambda task, needed: Stubborn()
    with pytest.raises(KeyboardInterrupt):
        train_all(launcher, [(task_of(tmp_path, "a"), SOME)], lambda *_: None, Display(True))
    assert killed == [True] and not list(tmp_path.glob(".stop-*"))


def test_a_sweep_of_one_run_is_resumed_elsewhere(tmp_path, inline, monkeypatch):
    words = ["--vary", "clip=0.1,0.2", "--quiet", "--name"]
    assert tiny.call("sweep", tmp_path, *words, "whole") == 0
    happen = Session._on_event

    def interrupt(self, name, step, progress):
        if step >= 8 and self.interrupt.number is None:
            signal.raise_signal(signal.SIGINT)
        return happen(self, name, step, progress)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_on_event", interrupt)
        with pytest.raises(SystemExit):
            tiny.call("sweep", tmp_path, *words, "run")
    launcher = inline()
    words = ["--resume", str(tmp_path / "run"), "--quiet", "--launcher", "ray"]
    assert tiny.command_line.call(tiny.sweep_script.main, words) == 0
    assert launcher.submitted == [""]
    tiny.assert_same_run(tmp_path / "run", tmp_path / "whole")
    ranking = [(tmp_path / name / "ranking.csv").read_text() for name in ("run", "whole")]
    assert ranking[0] == ranking[1]


def test_no_more_tasks_at_once_than_a_launcher_takes(tmp_path):
    running, most = set(), []

    class Slow(Endless):
        def __init__(self, name):
            super().__init__()
            self.name, self.polls = name, 0
            running.add(name)
            most.append(len(running))

        def poll(self):
            self.polls += 1
            if self.polls > 1:
                running.discard(self.name)
                (tmp_path / self.name).mkdir()
                (tmp_path / self.name / "summary.json").write_text('{"finished": true}')
                return Outcome("ended")
            return None

    launcher = Inline(at_once=2)
    launcher.submit = lambda task, needed: Slow(task.name)
    todo = [(task_of(tmp_path, name), SOME) for name in "abcde"]
    ended = []
    train_all(launcher, todo, lambda task, said: ended.append(task.name), Display(True))
    assert sorted(ended) == list("abcde") and max(most) == 2


def test_a_part_in_use_is_waited_for(tmp_path, capsys):
    task = task_of(tmp_path, "a")
    seen = []

    class Looking(Inline):
        def submit(self, task, needed):
            seen.append(tasks.is_held(task))
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "summary.json").write_text('{"finished": true}')
            return Done(Outcome("ended"))

    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / ".a.lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        assert tasks.is_held(task)

        class Free(Display):
            def warn(self, message):
                super().warn(message)
                holder.stdin.close()

        train_all(Looking(), [(task, SOME)], lambda *_: None, Free(True))
    assert seen == [False]
    assert capsys.readouterr().err == "a waits for a process that trains it.\n"


def test_a_run_that_is_not_seen_here(tmp_path, monkeypatch):
    monkeypatch.setattr(launching, "SEEN_SECONDS", 0.0)
    launcher = Inline(planned={"a": [Outcome("ended", host="node7")]})
    with pytest.raises(UserError, match=r"was written on node7 and is not seen here; the folder"):
        train_all(launcher, [(task_of(tmp_path, "a"), SOME)], lambda *_: None, Display(True))


# -------------------------------------------------------------------------------------- tasks


def task_of(folder, name, **changes):
    options = tasks.invocation(tiny.config(quiet=True))
    return Task(str(folder), name, os.getcwd(), "launch", False, options | changes)


def test_a_task_finds_its_part_in_the_folder(local, tmp_path):
    config = tiny.config()
    names = [part.name for part in first_parts(config, read(local, config))]
    assert names == ["program1", "program2"]
    assert tasks.run(task_of(local, "program1")).kind == "ended"  # it was finished
    outcome = tasks.run(task_of(local, "program3"))
    assert (outcome.kind, outcome.message) == ("user error", f"'{local}' has no part 'program3'.")


def test_a_task_without_the_folder(tmp_path):
    outcome = tasks.run(task_of(tmp_path / "sweep", "program1"))
    assert outcome.kind == "user error" and "must lie on storage that all nodes" in outcome.message
    gone = dataclasses.replace(task_of(tmp_path, "program1"), cwd=str(tmp_path / "gone"))
    assert tasks.run(gone).kind == "user error"


def test_a_task_of_an_invocation_that_has_stopped(tmp_path):
    task = task_of(tmp_path, "program1")
    tasks.stop_file(tmp_path, task.launch).touch()
    assert tasks.run(task).kind == "interrupted"


def test_a_task_that_is_told_to_end_leaves_the_signals_as_they_were(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    stop = lambda *_: signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr(tasks, "_train_from_folder", stop)
    assert tasks.run(task_of(tmp_path, "program1")).kind == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_resume_commands_say_the_launcher(tmp_path):
    launch = Launch("submitit", cpus=4, ram=1.5, slurm={"partition": "gpu", "account": "lab"})
    assert sweeping.resume_command(tmp_path, launch) == (
        f"jaxrl sweep --resume {tmp_path} --launcher submitit --cpus 4 --ram 1.5 "
        "--slurm partition=gpu account=lab"
    )


# ---------------------------------------------------------------------------------- resources


def test_the_memory_of_a_task(monkeypatch):
    config = tiny.config(seeds=2)
    members = memory.seed_members(config)
    small = memory.host_needed(config, members)
    assert memory.PROCESS < small < 1.3 * memory.PROCESS
    monkeypatch.setattr(memory, "PLENTY", 10**9)  # so it is compiled
    compiled = memory.host_needed(config, members)
    assert memory.PROCESS < compiled < small
    more = memory.host_needed(dataclasses.replace(config, seeds=8), members_of(8))
    assert more > compiled
    assert memory.PROCESS < memory.host_needed(config, members, on_gpu=True) < compiled


def members_of(seeds):
    return memory.seed_members(tiny.config(seeds=seeds))


def test_memory_that_is_given_cuts_chunks(tmp_path, inline, monkeypatch):
    monkeypatch.setattr(memory, "PLENTY", 10**9)
    inline()
    free = []
    monkeypatch.setattr(memory, "even_chunk", lambda n, needed, there: free.append(there) or n)
    assert sweep(tmp_path, "--ram", "3") == 0
    assert set(free) == {10**9}
