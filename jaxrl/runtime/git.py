"""The code that ran, as git knows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

CODE = ("jaxrl", "experiments")


def git(root: Path, *words: str) -> str:
    """Return the output of `git WORDS` in `root`. Raises `OSError` or `CalledProcessError`."""
    command = ("git", *words)
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def changes(root: Path, *exclude: str) -> str:
    """Return a line for each file of the code that differs from the commit, without `exclude`."""
    return git(root, "status", "--porcelain", "--", *CODE, *(f":!{path}" for path in exclude))


def commit(root: Path, *exclude: str) -> str:
    """Return the commit checked out in `root`, with a + if its code (without `exclude`) differs.

    "?" if `root` is not a repository.
    """
    if not (root / ".git").exists():  # it may lie in someone else's repository
        return "?"
    try:
        head = git(root, "rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if changes(root, *exclude) else "")
    except (OSError, subprocess.CalledProcessError):
        return "?"
