"""Which code ran: what git knows of a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

CODE = ("jaxrl", "experiments")


def git(root: Path, *words: str) -> str:
    """What `git WORDS` prints in `root`. Raises `OSError` or `CalledProcessError`."""
    command = ("git", *words)
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def changes(root: Path, *but: str) -> str:
    """Files of the code that differ from the commit, a line each; of those, not `but`."""
    return git(root, "status", "--porcelain", "--", *CODE, *(f":!{path}" for path in but))


def commit(root: Path, *but: str) -> str:
    """The commit that is checked out in `root`, with a + where code (not `but`) differs from it;
    "?" where that is no repository."""
    if not (root / ".git").exists():  # it may lie in somebody else's
        return "?"
    try:
        head = git(root, "rev-parse", "--short=12", "HEAD").strip()
        return head + ("+" if changes(root, *but) else "")
    except (OSError, subprocess.CalledProcessError):
        return "?"
