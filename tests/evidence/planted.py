"""A repository of its own with a claim in it, which computes nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

FAMILY = "planted_family"
TEXT = f'''"""A claim."""

from experiments.evidence.declare import Arena, Claim, Metric, Mutation, Paper, Side, better
from experiments.claims.{FAMILY}._values import DISCOUNT

NOTES = "Of no account."
PAPER = Paper("On planting", "A. Author", 2020, "2001.00001", "It grows.")


def measure(trial, keys, hyper):
    """Measure it."""
    return {{"score": keys}}


def unused():
    return 1


CLAIM = Claim(
    paper=PAPER,
    claim="New is better than old.",
    left_out="All else.",
    parts=("jaxrl/part.py",),
    metric=Metric("score", 0.0, 1.0),
    environments=(Arena("cartpole", 1000, 0.0, 500.0),),
    sides={{"new": Side(None, {{"discount": DISCOUNT}}), "old": Side(None, deviates="Much.")}},
    clauses=(better("new", "old", 0.1),),
    seeds=5,
    minutes=2.0,
    measure=measure,
    notes=NOTES,
)
'''
VALUES = '"""Shared."""\n\nDISCOUNT = 0.9\n'


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *who, *words), cwd=root, check=True, capture_output=True)
    return done.stdout.decode()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "A commit")


def repository(root: Path, *ids: str) -> Path:
    """Make a repository at `root` with a claim for each of `ids`, all committed.

    Returns the folder of the claims.
    """
    folder = root / "experiments" / "claims" / FAMILY
    folder.mkdir(parents=True)
    (root / "jaxrl").mkdir()
    (root / "jaxrl" / "part.py").write_text("X = 1\n")
    (root / ".gitignore").write_text("__pycache__/\nruns/\n")
    (folder / "_values.py").write_text(VALUES)
    for id in ids:
        (folder / f"{id.replace('-', '_')}.py").write_text(TEXT)
    git(root, "init", "-q")
    commit(root)
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
