"""Commands that stand in for SLURM's, as submitit calls them; jobs are processes on this machine.

`python slurm_stand_in.py FOLDER COMMAND WORD ...`, where FOLDER holds what is known of the jobs.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

FIRST = 1000  # number of the first job


def process(folder: Path, job: str) -> int:
    """Return the process of a job; it leads a group with those that it starts."""
    return int((folder / f"{job}.pid").read_text())


def is_running(folder: Path, job: str) -> bool:
    """Return whether a job's process runs."""
    try:
        state = Path(f"/proc/{process(folder, job)}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def sbatch(folder: Path, script: str) -> None:
    """Start a job."""
    job = str(FIRST + len(list(folder.glob("*.pid"))))
    shutil.copy(script, folder / f"{job}.sh")
    names = ("NODEID", "PROCID", "LOCALID")
    env = os.environ | {f"SLURM_{name}": "0" for name in names} | {"SLURM_JOB_ID": job}
    started = subprocess.Popen(
        ["bash", str(folder / f"{job}.sh")],
        env=env | {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here"},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (folder / f"{job}.pid").write_text(str(started.pid))
    print(f"Submitted batch job {job}")


def srun(folder: Path, *words: str) -> None:
    """Become the program of a job, whose output goes to files."""
    rest = list(words)
    while rest[0].startswith("--"):
        name = rest.pop(0)
        if name in ("--output", "--error"):
            path = rest.pop(0).replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", "0")
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(file, 1 if name == "--output" else 2)
    os.execvp(rest[0], rest)


def sacct(folder: Path, *words: str) -> None:
    """Print the states of jobs."""
    print("JobID|State|NodeList")
    for option, job in itertools.pairwise(words):
        if option == "-j":
            print(f"{job}|{'RUNNING' if is_running(folder, job) else 'NODE_FAIL'}|here")


def scancel(folder: Path, job: str) -> None:
    """Ask a job's program to end."""
    leader = process(folder, job)
    for child in Path(f"/proc/{leader}/task/{leader}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)


COMMANDS = {"sbatch": sbatch, "srun": srun, "sacct": sacct, "scancel": scancel}

if __name__ == "__main__":
    COMMANDS[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
