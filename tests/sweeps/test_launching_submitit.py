"""Sweeps by submitit's executor for processes on this machine, one of which is killed."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxrl.commands import command_line
from jaxrl.runtime import checkpoints, run_folder
from jaxrl.sweeps import launch_submitit
from jaxrl.sweeps.launching import Launch
from tests.runtime import tiny
from tests.sweeps import slurm_stand_in
from tests.sweeps.test_launching import assert_same_sweep

submitit = pytest.importorskip("submitit")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("srun") is not None, reason="this machine has SLURM"),
]

VARY = ["--vary", "hidden=4/8", "learning-rate=1e-3,1e-4", "--seeds", "2", "--steps", "16000"]
WORDS = ["--name", "sweep", *VARY]
ELSEWHERE = ["--launcher", "submitit"]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name, value in tiny.environment().items():
        monkeypatch.setenv(name, value)  # which the jobs inherit


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    assert tiny.call("sweep", out, *WORDS, "--quiet") == 0
    return out / "sweep"


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint, -1 if there is none."""
    folder = run_folder.checkpoints(run)
    return max(checkpoints.steps(folder), default=-1) if folder.is_dir() else -1


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "(job "),
        (signal.SIGUSR2, "(its process was told to end); "),  # at its time limit, or preempted
    ],
)
def test_a_job_that_is_killed_costs_the_work_since_the_last_checkpoint(
    number, reason, local, tmp_path, capfd
):
    folder = tmp_path / "sweep"

    def kill():
        while newest(folder / "program1") <= 0:
            time.sleep(0.02)
        # The first job is of the first part; its process trains in a child.
        job = min((folder / "submitit").glob("*_submitted.pkl"), key=os.path.getmtime)
        for child in children(int(job.name.split("_")[0])):
            os.kill(child, number)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert tiny.call("sweep", tmp_path, *WORDS, "--quiet", *ELSEWHERE) == 0
    killer.join()
    said = [line for line in capfd.readouterr().err.splitlines() if " was lost" in line]
    assert len(said) == 1 and said[0].startswith("program1 was lost") and reason in said[0]
    assert int(said[0].rstrip(".").split()[-1]) > 0  # the update from which it continues
    assert_same_sweep(folder, local)


def test_an_interrupt_saves_all_jobs_and_the_sweep_continues(local, tmp_path):
    folder = tmp_path / "sweep"
    run = tiny.process(
        "sweep", tiny.write_settings(tmp_path), *WORDS, *ELSEWHERE, new_session=True
    )  # fmt: skip
    while run.poll() is None and newest(folder / "program1") <= 0:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C in a terminal, to all processes
    _, said = run.communicate()
    assert run.returncode == 130, said
    assert f"jaxrl sweep --resume {folder} --launcher submitit" in said
    summary = tiny.summary(folder / "program1")
    assert summary["stopped_because"] == "terminated", said
    assert newest(folder / "program1") == summary["updates"]
    words = ["--resume", str(folder), "--quiet"]
    assert command_line.call(tiny.sweep_script.main, [*words, *ELSEWHERE]) == 0
    assert_same_sweep(folder, local)


def test_a_node_of_slurm_that_fails(local, tmp_path, monkeypatch, capfd):
    """Programs that stand in for SLURM's run the jobs here."""
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    for name in slurm_stand_in.COMMANDS:
        words = f"{sys.executable} {slurm_stand_in.__file__} {slurm} {name}"
        (slurm / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (slurm / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
    monkeypatch.setattr(launch_submitit, "ASK_SECONDS", 1.0)
    folder = tmp_path / "sweep"

    def kill():
        while newest(folder / "program1") <= 0:
            time.sleep(0.02)
        os.killpg(slurm_stand_in.process(slurm, "1000"), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert tiny.call("sweep", tmp_path, *WORDS, "--quiet", *ELSEWHERE) == 0
    killer.join()
    (said,) = [line for line in capfd.readouterr().err.splitlines() if " was lost" in line]
    assert said.startswith("program1 was lost (job 1000 ended without a result, as NODE_FAIL); ")
    assert_same_sweep(folder, local)


def test_what_slurm_is_asked_for(tmp_path, monkeypatch, capsys):
    """`sbatch` is a script that keeps what it is given and refuses it."""
    scripts, said = tmp_path / "bin", "sbatch: error: Requested node configuration is not available"
    scripts.mkdir()
    for name, line in (
        ("srun", "exit 0"),
        ("sbatch", f"cat $1 > {tmp_path}/asked; echo '{said}' >&2; exit 1"),
    ):
        (scripts / name).write_text(f"#!/bin/sh\n{line}\n")
        (scripts / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{scripts}:{os.environ['PATH']}")
    words = ["--cpus", "2", "--gpus", "1", "--ram", "3", "--hours", "0.5"]
    slurm = ["--slurm", "partition=gpu", "account=lab"]
    assert tiny.call("sweep", tmp_path, *WORDS, "--quiet", *ELSEWHERE, *words, *slurm) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"error: SLURM takes no job with 2 CPUs, 1 GPUs and 3 GB of memory: {said}."
    asked = {x.partition(" --")[2] for x in (tmp_path / "asked").read_text().splitlines()}
    assert {"account=lab", "partition=gpu", "cpus-per-task=2", "gpus-per-node=1"} < asked
    assert {"job-name=program1", "mem=2861MB", "time=30", "signal=USR2@90"} < asked


def test_resources_that_this_machine_has_not(tmp_path, capsys):
    assert tiny.call("sweep", tmp_path, *WORDS, *ELSEWHERE, "--cpus", "4000") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: This machine has no 4000 CPUs, ") and said.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_as_many_processes_as_there_are_cpus(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    at_once = lambda **options: launch_submitit.make(Launch("submitit", **options)).at_once
    assert (at_once(), at_once(cpus=3), at_once(cpus=100), at_once(gpus=1)) == (8, 2, 1, 1)
