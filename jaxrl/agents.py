"""The former name of `jaxrl.algorithms`, with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from jaxrl import algorithms


def __getattr__(name: str) -> Any:
    value = getattr(algorithms, name)
    warnings.warn(
        "jaxrl.agents is now jaxrl.algorithms; the old name will be removed in 0.5.",
        DeprecationWarning,
        stacklevel=2,
    )
    return value


def __dir__() -> list[str]:
    return dir(algorithms)
