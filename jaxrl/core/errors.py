"""What a user did that cannot work, said in one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: one sentence with the thing, the value, and what would be right. The scripts
    print it and exit with code 2."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that does not exist, naming the nearest one that does."""
    options = sorted(known)
    close = nearest(name, options)
    every = f"it may be one of: {', '.join(options)}." if options else "there is none."
    hint = f"did you mean '{close}'?" if close else every
    return UserError(f"Unknown {kind} '{name}'; {hint}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that was probably meant by `name`; None where it is like none."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return close[0] if close else None
