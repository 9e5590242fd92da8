"""Tasks that do not learn: one environment, random environments, and several in turn."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Key, Tasks, Tree, struct


def _arrays(params: Tree) -> Tree:
    # An explicit dtype makes a Python number as strongly typed as an array that was restored.
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)


def fixed(params: Tree) -> Tasks:
    """Play all episodes with the same parameters. The state holds them, so they can be edited or
    vmapped."""
    return Tasks(
        "fixed",
        init=lambda key, policy, hyper: _arrays(params),
        sample=lambda state, key, n: (),
        params=lambda state, task: state,
    )


def randomize(draw: Callable[[Key], Tree]) -> Tasks:
    """Play every episode with parameters of its own: domain randomization (Tobin et al., 2017).

    draw: the parameters of one episode, from a key.

    The id of a task is the key that it was drawn with.
    """

    def sample(state, key, n):
        return jax.random.split(key, n)

    return Tasks(
        "randomize",
        init=lambda key, policy, hyper: (),
        sample=sample,
        params=lambda state, task: draw(task),
    )


def count(params: Tree) -> int:
    """Return the number K of tasks in the stacked `params` (leading axis [K]). Raises `UserError`
    unless all leaves share a leading axis."""
    sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(params)}
    if len(sizes) != 1 or () in sizes:
        raise UserError(f"Tasks need params with one shared leading axis, got {sorted(sizes)}.")
    ((number,),) = sizes
    return number


def each(params: Tree) -> Tasks:
    """Play all tasks at once: stream i always plays task i mod K of the stacked `params` (leading
    axis [K]), and that index is its id. So n * K episodes are n of each task, in turn."""
    number = count(params)
    return Tasks(
        "each",
        init=lambda key, policy, hyper: _arrays(params),
        sample=lambda state, key, n: jnp.arange(n, dtype=jnp.int32) % number,
        params=lambda state, task: jax.tree.map(lambda x: x[task], state),
        by_place=True,
    )


@struct
class Schedule:
    """State of `schedule`."""

    params: Tree
    """Parameters of the tasks, leading axis [K]."""
    windows: jax.Array
    """Windows so far: int32."""


def schedule(params: Tree, every: int) -> Tasks:
    """Play one task after the other, round and round.

    params: stacked parameters of the tasks, leading axis [K].
    every: windows of experience for each task.

    The id of a task is its index, 0 .. K - 1. An episode that runs when the task changes ends in
    the task that it began in. Raises `UserError` unless every > 0 and all leaves share a leading
    axis.
    """
    number = count(params)
    if every < 1:
        raise UserError(f"schedule needs every >= 1 window, got {every}.")

    def sample(state, key, n):
        return jnp.full(n, (state.windows // every) % number, jnp.int32)

    return Tasks(
        "schedule",
        init=lambda key, policy, hyper: Schedule(_arrays(params), jnp.int32(0)),
        sample=sample,
        params=lambda state, task: jax.tree.map(lambda x: x[task], state.params),
        update=lambda state, policy, transitions: Schedule(state.params, state.windows + 1),
    )


def draw_once(draw: Callable[[Key], Tree]) -> Tasks:
    """Play a whole run with parameters that are drawn when it starts. Each of several vmapped runs
    has an environment of its own.

    draw: the parameters of one run, from a key.
    """
    return Tasks(
        "draw_once",
        init=lambda key, policy, hyper: _arrays(draw(key)),
        sample=lambda state, key, n: (),
        params=lambda state, task: state,
    )
