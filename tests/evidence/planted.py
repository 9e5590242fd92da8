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

# The same claim with sides that can be measured: by a module that is no part of the declaration, as
# the code of this project is none.
WORKING = TEXT.replace("from experiments.claims", "import planted_part\nfrom experiments.claims", 1)
WORKING = WORKING.replace('{"score": keys}', '{"score": planted_part.score(trial, keys)}')
PART = (
    '"""Measure."""'
    + """

import jax
import numpy as np

SEEN = []  # keys of all seeds that were measured


def score(trial, keys):
    data = np.asarray(jax.random.key_data(keys))
    SEEN.extend(map(tuple, data.tolist()))
    height = 100.0 * trial.side.settings.get("discount", 0.5)
    return height + 5.0 * (data[:, 0] / 2**32)
"""
)


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *who, *words), cwd=root, check=True, capture_output=True)
    return done.stdout.decode()


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-qm", "A commit")


def repository(root: Path, *ids: str, text: str = TEXT) -> Path:
    """Make a repository at `root` with a claim, `text`, for each of `ids`, all committed.

    Returns the folder of the claims.
    """
    folder = root / "experiments" / "claims" / FAMILY
    folder.mkdir(parents=True)
    (root / "jaxrl").mkdir()
    (root / "jaxrl" / "part.py").write_text("X = 1\n")
    (root / "planted_part.py").write_text(PART)
    (root / ".gitignore").write_text("__pycache__/\nruns/\n")
    (folder / "_values.py").write_text(VALUES)
    for id in ids:
        (folder / f"{id.replace('-', '_')}.py").write_text(text)
    git(root, "init", "-q")
    commit(root)
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
