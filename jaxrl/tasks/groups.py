"""Groups of episodes of one task, to be compared with each other."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Key, Tasks, Tree


class Join(Protocol):
    def __call__(self, params: Tree, key: Key, /) -> Tree:
        """Return parameters that determine how an episode starts, as `wrappers.start_key` has them.

        params: the environment's parameters.
        key: the key that the episode starts from.
        """
        ...


def starts(params: Tree, join: Join) -> Tasks:
    """Play one environment from starts that are tasks, each drawn anew.

    params: the environment's parameters, which the state holds as `fixed` does.
    join: adds a start to them.

    The id of a task is the key that its episodes start from.
    """
    return Tasks(
        "starts",
        init=lambda key, policy, hyper: trees.strong(params),
        sample=lambda state, key, n: jax.random.split(key, n),
        params=lambda state, task: join(state, task),
    )


def repeat(tasks: Tasks, times: int) -> Tasks:
    """Give each of `tasks` to `times` (G) neighboring episodes: the episodes i G .. (i + 1) G - 1
    have the same task. GRPO's groups are such (Shao et al., 2024): G answers to each prompt.

    Raises `UserError` unless times >= 1, and when tasks are sampled for a number of episodes that
    is no multiple of it.
    """
    if times < 1:
        raise UserError(f"repeat needs times >= 1, got {times}.")

    def sample(state, key, n):
        if n % times:
            raise UserError(f"{n} episodes do not form groups of {times}.")
        ids = tasks.sample(state, key, n // times)
        return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), ids)

    return dataclasses.replace(tasks, name=f"{tasks.name} in groups of {times}", sample=sample)
