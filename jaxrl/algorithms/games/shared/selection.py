"""Parts of algorithms that choose among candidates and learn from selective, delayed labels."""

from __future__ import annotations

from typing import Any

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Transition


def read_labels(x: Transition) -> tuple[Array, Array, Array]:
    """Return features [..., k, F], labels [..., k] and whether they are known [..., k] (1 or 0), of
    what transitions [...] revealed."""
    seen = x.next_timestep.observation
    return seen["seen"], seen["labels"], seen["known"]


def check_selection(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for an environment without candidates and labels."""
    del config
    needed = {"available", "candidates", "known", "labels", "seen"}
    space = env.observation_space
    if not isinstance(space, dict) or not needed <= set(space):
        raise UserError(
            f"{name} cannot act in '{env.name}': it chooses among candidates whose labels it sees. "
            "Use selective_labels."
        )
