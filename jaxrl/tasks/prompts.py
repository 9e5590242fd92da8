"""A finite set of prompts that is drawn when a run begins, asked as a curriculum says."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from jaxrl.core import trees
from jaxrl.core.types import Array, Key, Tasks, Tree, struct
from jaxrl.tasks.curriculum import Draw, curriculum
from jaxrl.tasks.groups import Join


@struct
class Prompts:
    """State of `prompts`."""

    params: Tree
    """The environment's parameters."""
    key: Key
    """Key that the starts of all prompts follow from."""
    scores: Tree
    """State of the curriculum."""


def prompts(
    params: Tree, join: Join, count: int, draw: Draw, rate: float = 1.0, path: str = "prompts."
) -> Tasks:
    """Play one environment from `count` (K) starts that are drawn once, as a new run begins.

    params, join: as in `starts`. draw, rate, path: as in `curriculum`, which draws by the scores of
    prompts.

    The id of a task is its index, 0 .. K - 1.
    """
    numbers = curriculum(np.arange(count), draw, rate, path)

    def init(key, policy, hyper):
        own, key = jax.random.split(key)
        return Prompts(trees.strong(params), own, numbers.init(key, policy, hyper))

    def with_scores(state: Prompts, scores: Tree) -> Prompts:
        return dataclasses.replace(state, scores=scores)

    def feedback(state: Prompts, ids: Tree, score: Array, mask: Array | None) -> Prompts:
        return with_scores(state, numbers.feedback(state.scores, ids, score, mask))

    return Tasks(
        f"prompts({count}, {draw.name})",
        init,
        sample=lambda state, key, n: numbers.sample(state.scores, key, n),
        params=lambda state, task: join(state.params, jax.random.fold_in(state.key, task)),
        update=lambda state, policy, window: with_scores(
            state, numbers.update(state.scores, policy, window)
        ),
        feedback=feedback,
        hyper=numbers.hyper,
    )
