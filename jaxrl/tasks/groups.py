"""Groups: several episodes of one task, to be compared with each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Key, Tasks, Tree


def starts(params: Tree, join: Callable[[Tree, Key], Tree]) -> Tasks:
    """Always the same environment, in which every task is one start, drawn anew: a task's id is the
    key
    that it starts from, and its parameters are join(params, key), as `wrappers.start_key` takes
    them. `params` lie in the state, as those of `fixed` do."""
    return Tasks(
        "starts",
        init=lambda key, policy: trees.strong(params),
        sample=lambda state, key, n: jax.random.split(key, n),
        params=lambda state, task: join(state, task),
    )


def repeated(tasks: Tasks, times: int) -> Tasks:
    """`tasks`, each of which is given to `times` (G) episodes that lie beside each other: of n
    episodes, those from i G up to (i + 1) G have the same task.

    As GRPO's groups (Shao et al., 2024): G answers to each prompt. Raises `UserError` unless
    times >= 1, and, when n episodes are asked for, unless it divides n.
    """
    if times < 1:
        raise UserError(f"repeated needs times >= 1, got {times}.")

    def sample(state, key, n):
        if n % times:
            raise UserError(f"{n} episodes do not form groups of {times}.")
        ids = tasks.sample(state, key, n // times)
        return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), ids)

    return dataclasses.replace(tasks, name=f"{tasks.name} in groups of {times}", sample=sample)
