"""Divergence: a run whose numbers are no longer finite keeps the state before that step.

Every algorithm reports the metric `diverged`, the first such step, which the runtime reads. Each
member of a sweep has its own, so one that diverges does not affect the others. `learn` freezes the
state of an agent, `guard` the state of an algorithm that is written directly.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Algorithm, Array, Tree, struct


@struct
class Buffer:
    """A large part of a state that divergence does not freeze: a select would copy it in each step.

    What a step writes stays, also a step that diverged, as in a replay buffer of a source. Whatever
    reads it belongs to the state that is frozen. An agent keeps one in `Recipe.extra`.
    """

    content: Tree


def freeze(
    new: Tree, old: Tree, finite: Array, steps: Array, diverged: Array
) -> tuple[Tree, Array]:
    """Choose the state after a step: `new`, or `old` if this step or an earlier one diverged.

    finite: bool [], whether the numbers of this step are finite.
    steps: int32 [], number of steps before this one.
    diverged: int32 [], the first of them that diverged, or `metrics.NEVER`.

    Returns the state, and `diverged` with this step taken into account. Every `Buffer` in the state
    is the new one.
    """
    diverged = jnp.where(finite, diverged, jnp.minimum(diverged, steps))
    healthy = diverged == m.NEVER
    choose = lambda x, y: x if isinstance(x, Buffer) else trees.where(healthy, x, y)
    whole = lambda x: isinstance(x, Buffer) or is_shared(x)
    return jax.tree.map(choose, new, old, is_leaf=whole), diverged


class IsFinite(Protocol):
    def __call__(self, state: Tree, metrics: dict[str, Any], /) -> Array:
        """Return whether a step left an algorithm healthy: bool [].

        state: the state after the step.
        metrics: the metrics of the step.
        """
        ...


def guard(algorithm: Algorithm, finite: IsFinite, but: tuple[str, ...] = ()) -> Algorithm:
    """Freeze the state of `algorithm` before the first step that is not `finite`, and report that
    step as the metric `diverged`.

    The state is a dataclass with the int32 fields `steps`, 0 at first, which `guard` counts, and
    `diverged`, `metrics.NEVER` at first.

    but: fields of the state that are not selected, since a select copies them: large ones, which
        `algorithm` itself must leave alone after a bad step and while `state.diverged` is not
        `metrics.NEVER`.
    """

    def step(state, key):
        new, metrics = algorithm.step(state, key)
        kept, diverged = freeze(new, state, finite(new, metrics), state.steps, state.diverged)
        unselected = {name: getattr(new, name) for name in but}
        kept = dataclasses.replace(kept, steps=state.steps + 1, diverged=diverged, **unselected)
        return kept, metrics | {"diverged": m.First(diverged)}

    return dataclasses.replace(algorithm, step=step)


def forgive(state: Tree) -> Tree:
    """Return `state` as if it had never diverged, however it is wrapped, so that a frozen member
    gets another try under other settings."""

    def reset(path, leaf):
        name = getattr(path[-1], "name", None) if path else None
        return jnp.full_like(leaf, m.NEVER) if name == "diverged" else leaf

    return jax.tree_util.tree_map_with_path(reset, state)
