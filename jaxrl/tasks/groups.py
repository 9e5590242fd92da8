"""Groups of episodes of one task, to be compared with each other."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, Tasks, Tree


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


def hinted_starts(params: Tree, join: Join, size: int) -> Tasks:
    """Return starts of groups of 2 `size` neighboring episodes, the second half of which has hints.

    params: the environment's, with a number `hinted`, 0 or 1 for never or always. Which start an
        episode has must not depend on it.
    join: as in `starts`.

    The id of a task is its key and whether it has a hint. Raises `UserError` for other params, and
    when tasks are sampled for a number of episodes that is no multiple of 2 `size`.
    """
    if not hasattr(params, "hinted"):
        raise UserError("Starts with hints need an environment with the parameter 'hinted'.")

    def sample(state: Tree, key: Key, n: int) -> tuple[Key, Array]:
        if n % (2 * size):
            raise UserError(f"{n} episodes do not form groups of {2 * size}.")
        keys = jnp.repeat(jax.random.split(key, n // (2 * size)), 2 * size, axis=0)
        return keys, jnp.arange(n) // size % 2 == 1

    def with_start(state: Tree, task: tuple[Key, Array]) -> Tree:
        key, hinted = task
        return join(dataclasses.replace(state, hinted=hinted.astype(jnp.float32)), key)

    init = lambda key, policy, hyper: trees.strong(params)
    return Tasks("hinted starts", init, sample, with_start, by_place=True)


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

    name = f"{tasks.name} in groups of {times}"
    return dataclasses.replace(tasks, name=name, sample=sample, by_place=True)
