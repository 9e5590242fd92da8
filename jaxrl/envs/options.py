"""Checks of the options that builders take; an impossible option is one sentence of error."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from jaxrl.core.errors import UserError


def at_least(env: str, option: str, value: Any, least: int, odd: bool = False) -> None:
    """Raise `UserError` unless `value` is an integer of at least `least` (and odd)."""
    try:
        fits = operator.index(value) >= least and (not odd or value % 2 == 1)
    except TypeError:
        fits = False
    if not fits:
        kind = "an odd integer" if odd else "an integer"
        raise UserError(f"The {option} of '{env}' is {value!r}; it must be {kind} from {least} up.")


def one_of(env: str, option: str, value: Any, known: Iterable[str]) -> None:
    """Raise `UserError` unless `value` is one of `known`."""
    known = tuple(known)
    if value not in known:
        right = " or ".join(f"'{name}'" for name in known)
        raise UserError(f"The {option} of '{env}' is {value!r}; it must be {right}.")
