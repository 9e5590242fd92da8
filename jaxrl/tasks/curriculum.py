"""Curricula by score: a finite set of tasks, drawn by what updates said about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.types import Array, Hyper, Tasks, Tree, struct
from jaxrl.tasks.basic import count


@struct
class Scores:
    """State of `curriculum`."""

    params: Tree
    """Parameters of the tasks, leading axis [K]."""
    score: Array
    """Score of each task, 0 before the first one: float32 [K]."""
    seen: Array
    """True for tasks that have a score: bool [K]."""
    last: Array
    """Number of the last episode that began in each task, 0 before the first one: int32 [K]."""
    episodes: Array
    """Episodes that have begun so far: int32."""
    hyper: dict[str, Any]
    """Hyperparameters of the draw, and `rate`, by their names in a run."""


class Probabilities(Protocol):
    def __call__(self, scores: Scores, hyper: Mapping[str, Array], /) -> Array:
        """Return the probability of each task, float32 [K].

        scores: what is known about the tasks.
        hyper: the hyperparameters of the draw, by the names in `Draw.hyper`.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """A way to draw tasks by their scores."""

    name: str
    """Name in messages."""
    probabilities: Probabilities
    """The function that makes probabilities of scores."""
    hyper: Hyper = dataclasses.field(default_factory=dict)
    """Default values of its hyperparameters."""


def curriculum(params: Tree, draw: Draw, rate: float = 1.0, path: str = "curriculum.") -> Tasks:
    """Draw tasks by scores: `net.feed(score=...)` [T, B] or [n] scores the steps of a batch.

    The score of a task moves toward the mean over its steps in a batch, padding left out. Steps
    whose score is not finite are left out too.

    params: stacked parameters of the tasks, leading axis [K].
    draw: `EVENLY`, `by_failure(...)`, `by_window(...)`, `by_rank(...)` or `by_value(...)`.
    rate: share of the newest batch in a task's score; its first score counts whole.
    path: what comes before the names of the hyperparameters, which are `rate` and those of `draw`.

    The id of a task is its index, 0 .. K - 1. Raises `UserError` unless all leaves share a leading
    axis.
    """
    number = count(params)
    defaults = {"rate": np.float32(rate), **draw.hyper}

    def init(key, policy, hyper):
        nothing = jnp.zeros(number, jnp.float32)
        own = {path + name: jnp.asarray(hyper[path + name], jnp.float32) for name in defaults}
        return Scores(
            trees.strong(params),
            nothing,
            jnp.zeros(number, bool),
            jnp.zeros(number, jnp.int32),
            jnp.int32(0),
            own,
        )

    def sample(state: Scores, key, n):
        own = {name: state.hyper[path + name] for name in draw.hyper}
        logits = jnp.log(draw.probabilities(state, own))
        return jax.random.categorical(key, logits, shape=(n,)).astype(jnp.int32)

    def update(state: Scores, policy, transitions):
        begun = transitions.first.reshape(-1)
        order = state.episodes + jnp.cumsum(begun, dtype=jnp.int32)
        here = jax.ops.segment_max(jnp.where(begun, order, 0), transitions.task.reshape(-1), number)
        return dataclasses.replace(state, last=jnp.maximum(state.last, here), episodes=order[-1])

    def feedback(state: Scores, ids, score, mask):
        known = jnp.isfinite(score) if mask is None else jnp.isfinite(score) & mask
        add = lambda x: jax.ops.segment_sum(x.reshape(-1), ids.reshape(-1), number)
        steps = add(known.astype(jnp.float32))
        mean = add(jnp.where(known, score, 0.0)) / jnp.maximum(steps, 1.0)
        moved = jnp.where(
            state.seen, state.score + state.hyper[path + "rate"] * (mean - state.score), mean
        )
        here = steps > 0
        return dataclasses.replace(
            state, score=jnp.where(here, moved, state.score), seen=state.seen | here
        )

    return Tasks(
        f"curriculum({number}, {draw.name})",
        init,
        sample,
        params=lambda state, task: jax.tree.map(lambda x: x[task], state.params),
        update=update,
        feedback=feedback,
        hyper={path + name: np.float32(value) for name, value in defaults.items()},
    )


EVENLY = Draw("evenly", lambda scores, hyper: jnp.full(scores.score.shape, 1 / len(scores.score)))


def by_failure(even: float = 0.0) -> Draw:
    """Draw tasks in proportion to 1 - s, where the score s is a rate of success, 0 for tasks never
    seen; evenly if all succeed.

    even: share of the draws that are even. With 0, tasks are never drawn again once they succeed,
        and a policy that forgets them does not show.

    Source: Kimi team, 2025, "Kimi k1.5: scaling reinforcement learning with LLMs", section 2.3.4
    (prioritized sampling), without `even`.
    """

    def probabilities(scores: Scores, hyper: Mapping[str, Array]) -> Array:
        weights = jnp.where(scores.seen, jnp.clip(1 - scores.score, 0, 1), 1)
        failing = _share(weights, jnp.ones_like(scores.seen))
        return (1 - hyper["even"]) * failing + hyper["even"] / len(weights)

    return Draw("by failure", probabilities, {"even": np.float32(even)})


def by_window(low: float = 0.0, high: float = 1.0, hard: float = 1.0, later: float = 1e9) -> Draw:
    """Draw tasks that are neither too hard nor too easy, evenly: low < s <= high, where the score s
    is a rate of success.

    Tasks never seen come first; if there is nothing between the limits, all are drawn.

    hard: in place of `high` once `later` episodes have begun.

    Source: Chen et al., 2025, "Unlocking the potential of difficulty prior in RL-based multimodal
    reasoning" (offline data curation in two stages).
    """

    def probabilities(scores: Scores, hyper: Mapping[str, Array]) -> Array:
        limit = jnp.where(scores.episodes < hyper["later"], hyper["high"], hyper["hard"])
        inside = (scores.score > hyper["low"]) & (scores.score <= limit)
        among = jnp.where(scores.seen.all(), inside, ~scores.seen)
        return _share(among.astype(jnp.float32), jnp.ones_like(among))

    values = {"low": low, "high": high, "hard": hard, "later": later}
    return Draw("by window", probabilities, {name: np.float32(x) for name, x in values.items()})


def by_rank(temperature: float = 0.1, staleness: float = 0.1) -> Draw:
    """Prefer tasks by the rank of their scores, those not seen for long, and those never seen.

    A task of rank r among the seen, the highest score first, has the weight
    (1 / r) ** (1 / temperature). See `by_value` for all else.

    temperature: below 1, high scores are preferred more.
    staleness: share of the draws that prefer tasks by how long ago they were played.

    Source: Jiang et al., 2021, "Prioritized level replay", sections 3 and 3.2.
    """

    def log_weights(score, seen):
        order = jnp.argsort(jnp.where(seen, -score, jnp.inf))
        rank = (
            jnp.zeros(score.shape).at[order].set(jnp.arange(1, len(score) + 1, dtype=jnp.float32))
        )
        return -jnp.log(rank)

    return _replay("by rank", log_weights, temperature, staleness)


def by_value(temperature: float = 1.0, staleness: float = 0.1) -> Draw:
    """Prefer tasks by their scores, those not seen for long, and those never seen.

    A task that was seen with the score S has the weight S ** (1 / temperature), 0 for S below 0. A
    share `staleness` of the draws among the seen is in proportion to the number of episodes since
    their last one instead. Tasks never seen are drawn evenly, with the share of them in all tasks
    as probability.

    temperature: below 1, high scores are preferred more.
    staleness: share of the draws that prefer tasks by how long ago they were played.

    Source: Jiang et al., 2021, "Prioritized level replay", sections 3 and 3.2.
    """
    return _replay(
        "by value", lambda score, seen: jnp.log(jnp.maximum(score, 0.0)), temperature, staleness
    )


class _LogWeights(Protocol):
    def __call__(self, score: Array, seen: Array, /) -> Array:
        """Return the logarithm of each task's weight at temperature 1, [K].

        score: of each task, [K]. seen: whether it has one, bool [K].
        """
        ...


def _replay(name: str, log_weights: _LogWeights, temperature: float, staleness: float) -> Draw:
    """Return the replay distribution of prioritized level replay with these weights."""

    def probabilities(scores: Scores, hyper: Mapping[str, Array]) -> Array:
        seen = scores.seen
        weights = log_weights(scores.score, seen) / hyper["temperature"]
        weights = jnp.where(seen, weights, -jnp.inf)
        weights = jnp.exp(weights - jnp.max(weights, initial=-1e30))  # else small ones are all 0
        age = jnp.where(seen, scores.episodes - scores.last, 0).astype(jnp.float32)
        again = (1 - hyper["staleness"]) * _share(weights, seen)
        again = again + hyper["staleness"] * _share(age, seen)
        new = (~seen).mean()
        return (1 - new) * again + new * _share(jnp.zeros_like(age), ~seen)

    hyper = {"temperature": np.float32(temperature), "staleness": np.float32(staleness)}
    return Draw(name, probabilities, hyper)


def _share(weights: Array, among: Array) -> Array:
    """Divide weights by their sum; if all are 0, return even shares `among` some, or 0 for none."""
    total, number = weights.sum(), among.sum()
    return jnp.where(total > 0, weights / jnp.maximum(total, 1e-30), among / jnp.maximum(number, 1))
