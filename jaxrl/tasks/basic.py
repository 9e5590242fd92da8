"""Tasks that do not learn: one environment, random environments, and environments one after the
other."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Key, Tasks, Tree, struct


def _arrays(params: Tree) -> Tree:
    # With an explicit dtype, so that a Python number is as strongly typed as a restored array.
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)


def fixed(params: Tree) -> Tasks:
    """Always the same parameters. They lie in the state, so they can be edited or vmapped."""
    return Tasks(
        "fixed",
        init=lambda key, policy: _arrays(params),
        sample=lambda state, key, n: (),
        params=lambda state, task: state,
    )


def randomize(draw: Callable[[Key], Tree]) -> Tasks:
    """Domain randomization (Tobin et al., 2017): every episode has parameters of its own.

    `draw(key) -> params` for one episode. A task's id is the key that it was drawn with.
    """

    def sample(state, key, n):
        return jax.random.split(key, n)

    return Tasks(
        "randomize",
        init=lambda key, policy: (),
        sample=sample,
        params=lambda state, task: draw(task),
    )


def count(params: Tree) -> int:
    """How many tasks K the stacked `params` (leading axis [K]) are. Raises `UserError` unless all
    leaves share a leading axis."""
    sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(params)}
    if len(sizes) != 1 or () in sizes:
        raise UserError(f"Tasks need params with one shared leading axis, got {sorted(sizes)}.")
    ((number,),) = sizes
    return number


def each(params: Tree) -> Tasks:
    """All tasks at once: of the stacked `params` (leading axis [K]), stream i always plays
    task i mod K, its id. So evaluating n * K episodes gives n of each task, in turn."""
    number = count(params)
    return Tasks(
        "each",
        init=lambda key, policy: _arrays(params),
        sample=lambda state, key, n: jnp.arange(n, dtype=jnp.int32) % number,
        params=lambda state, task: jax.tree.map(lambda x: x[task], state),
    )


@struct
class Schedule:
    params: Tree  # leading axis [K]
    windows: jax.Array  # int32: updates seen so far


def schedule(params: Tree, every: int) -> Tasks:
    """One task after the other, round and round: the stacked `params` (leading axis [K]), each
    for `every` windows of experience. An id is the task's index, 0 .. K - 1; an episode that
    runs when the task changes ends in the task it began in. Raises `UserError` unless every > 0
    and all leaves share a leading axis."""
    number = count(params)
    if every < 1:
        raise UserError(f"schedule needs every >= 1 window, got {every}.")

    def sample(state, key, n):
        return jnp.full(n, (state.windows // every) % number, jnp.int32)

    return Tasks(
        "schedule",
        init=lambda key, policy: Schedule(_arrays(params), jnp.int32(0)),
        sample=sample,
        params=lambda state, task: jax.tree.map(lambda x: x[task], state.params),
        update=lambda state, policy, transitions: Schedule(state.params, state.windows + 1),
    )


def drawn(draw: Callable[[Key], Tree]) -> Tasks:
    """One environment for a whole run, `draw(key) -> params`, drawn when the run starts: vmapped
    runs each live in an environment of their own."""
    return Tasks(
        "drawn",
        init=lambda key, policy: _arrays(draw(key)),
        sample=lambda state, key, n: (),
        params=lambda state, task: state,
    )
