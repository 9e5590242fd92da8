"""What becomes of a run once its numbers are not finite: it stays as it was before that step.

Every algorithm reports the metric `diverged`, the first such step, which the runtime reads; each
member of a sweep has its own, so that one costs nothing to the others. `learn` freezes an agent's
state, `guarded` that of an algorithm that is written directly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.types import Algorithm, Array, Tree


def freeze(
    new: Tree, old: Tree, finite: Array, steps: Array, diverged: Array
) -> tuple[Tree, Array]:
    """What a step leaves: `new`, or `old` if the step was not `finite` (bool scalar) or one before
    it was not; and the step at which that was first so.

    steps: int32, those done before this one. diverged: int32, the first bad one among them, or
    `metrics.NEVER`.
    """
    diverged = jnp.where(finite, diverged, jnp.minimum(diverged, steps))
    return trees.where(diverged == m.NEVER, new, old), diverged


def guarded(
    algorithm: Algorithm,
    finite: Callable[[Tree, dict[str, Any]], Array],
    but: tuple[str, ...] = (),
) -> Algorithm:
    """`algorithm`, whose state stays as it was before the first step after which
    `finite(state, metrics)` (bool scalar) is false; it reports that step as `diverged`.

    The state is a dataclass with the fields `steps`, which this counts, and `diverged`, both int32
    and of `init` 0 and `metrics.NEVER`. All else is selected, which copies it, `but` the fields of
    these names: what is large, and what `algorithm` itself leaves alone after a bad step and once
    `state.diverged` is not `metrics.NEVER`.
    """

    def step(state, key):
        new, metrics = algorithm.step(state, key)
        kept, diverged = freeze(new, state, finite(new, metrics), state.steps, state.diverged)
        unselected = {name: getattr(new, name) for name in but}
        kept = dataclasses.replace(kept, steps=state.steps + 1, diverged=diverged, **unselected)
        return kept, metrics | {"diverged": m.First(diverged)}

    return dataclasses.replace(algorithm, step=step)


def forgiven(state: Tree) -> Tree:
    """`state` as if it had never diverged, whatever it is wrapped in: under other settings what is
    frozen deserves another try."""

    def forgive(path, leaf):
        name = getattr(path[-1], "name", None) if path else None
        return jnp.full_like(leaf, m.NEVER) if name == "diverged" else leaf

    return jax.tree_util.tree_map_with_path(forgive, state)
