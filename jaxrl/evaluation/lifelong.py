"""What a life of tasks was worth: performance, forgetting, transfer, and a comparison with experts.

All are functions of a `History`: the returns in all K tasks, evaluated before learning and after
each period of learning one of them. What each task has of a metric is a `PerTask`: where a task has
none (it was never learned, or never left, or no expert is known), it is masked and does not enter
the mean, whatever was evaluated; there are no NaNs and no zeros in its place.

Sources: Lopez-Paz and Ranzato (2017, "Gradient episodic memory for continual learning",
arXiv:1706.08840, section 2) for backward and forward transfer; Wolczyk et al. (2021, "Continual
Environment", arXiv:2105.10919, section 3) for performance, forgetting and forward transfer as an
area; Baker et al. (2023, "A domain-agnostic approach for characterization of lifelong learning
systems",
arXiv:2301.07799) with the metrics of its l2metrics package for performance maintenance, transfer as
a contrast, and performance and sample efficiency relative to single-task experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.types import Array, struct

NONE = -1  # the task of a row that no learning came before


@struct
class History:
    """Evaluations in the order of time; row 0 is before any learning. P is how many there may be at
    most; rows that are not `recorded` (yet) may hold anything."""

    returns: Array  # float32 [P, K]: mean return in each task
    task: Array  # int32 [P]: the task learned between the row before and this one; NONE in row 0
    recorded: Array  # bool [P]; True comes before False


@struct
class PerTask:
    """A number for each task [K], 0 where it does not exist."""

    value: Array
    exists: Array  # bool

    def mean(self) -> m.Mean:
        """Over the tasks that have one; a `Mean` of no weight if none has."""
        return m.mean(self.value, self.exists)


def per_task(value: Array, exists: Array) -> PerTask:
    """`value` [K] where `exists`; what it is elsewhere, NaN too, is forgotten."""
    return PerTask(jnp.where(exists, value, 0.0), exists)


def empty(rows: int, tasks: int) -> History:
    """A history of nothing: `rows` [P] of `tasks` [K]."""
    return History(jnp.zeros((rows, tasks)), jnp.full(rows, NONE, jnp.int32), jnp.zeros(rows, bool))


def record(history: History, row: Array, returns: Array, task: Array | int) -> History:
    """With row number `row`: `returns` [K] after learning `task`. Beyond the last: unchanged."""
    return History(
        history.returns.at[row].set(returns, mode="drop"),
        history.task.at[row].set(task, mode="drop"),
        history.recorded.at[row].set(True, mode="drop"),
    )


# ------------------------------------------------------------------------------- moments of a life


def learned(history: History) -> Array:
    """Which tasks were learned in which row: bool [P, K]."""
    tasks = jnp.arange(history.returns.shape[1])
    return (history.task[:, None] == tasks) & history.recorded[:, None]


def seen(history: History) -> Array:
    """Which tasks were ever learned: bool [K]."""
    return learned(history).any(0)


def last_row(history: History) -> Array:
    """The number of the last recorded row, int32."""
    return jnp.maximum(history.recorded.sum(dtype=jnp.int32) - 1, 0)


def _at(history: History, row: Array) -> Array:
    """Of each task its return in a row of its own, row [K] -> [K]."""
    return jnp.take_along_axis(history.returns, row[None], 0)[0]


def _first_learned(history: History) -> Array:
    return jnp.argmax(learned(history), 0)


def _first_end(history: History) -> Array:
    """The last row [K] of the first block in which each task was learned."""
    now = learned(history)
    begun = jnp.cumsum(now, 0) > 0
    interrupted = jnp.cumsum(begun & ~now & history.recorded[:, None], 0) > 0
    rows = jnp.arange(len(now))[:, None]
    return jnp.where(now & ~interrupted, rows, 0).max(0)


def _last_end(history: History) -> Array:
    rows = jnp.arange(len(history.task))[:, None]
    return jnp.where(learned(history), rows, 0).max(0)


# ------------------------------------------------------------------------------- of one life


def performance(history: History) -> PerTask:
    """The last return in each task that was learned (Continual Environment: average
    performance)."""
    return per_task(history.returns[last_row(history)], seen(history))


def forgetting(history: History) -> PerTask:
    """How much of each task was lost: its return when it was last learned, less its last return.

    Exists for tasks that were learned and then left; Continual Environment counts a task that has
    not been
    left, the last one, as 0, which makes its mean (K - 1) / K of this one.
    """
    end, last = _last_end(history), last_row(history)
    lost = _at(history, end) - history.returns[last]
    return per_task(lost, seen(history) & (end < last))


def backward_transfer(history: History) -> PerTask:
    """What later learning did to each task: its last return less the one after the first block in
    which it was learned (GEM: R[T, i] - R[i, i]). Exists for tasks that were learned and left."""
    end, last = _first_end(history), last_row(history)
    gained = history.returns[last] - _at(history, end)
    return per_task(gained, seen(history) & (end < last))


def forward_transfer(history: History) -> PerTask:
    """What earlier tasks did for each before it was first learned: its return just before, less
    that
    of row 0 (GEM: R[i - 1, i] - b[i]). Exists for tasks that were learned, but not as the first."""
    before = _first_learned(history) - 1
    gained = _at(history, jnp.maximum(before, 0)) - history.returns[0]
    return per_task(gained, seen(history) & (before > 0))


def performance_maintenance(history: History) -> PerTask:
    """How well each task is kept while others are learned: the mean over all rows in which another
    task was learned since, of the return less that when it was last learned (l2metrics: difference
    to the most recent learning evaluation point)."""
    now = learned(history)
    rows = jnp.arange(len(now))[:, None]
    latest = jax.lax.cummax(jnp.where(now, rows, -1))
    kept = history.returns - jnp.take_along_axis(history.returns, jnp.maximum(latest, 0), 0)
    counts = (latest >= 0) & ~now & history.recorded[:, None]
    number = counts.sum(0)
    mean = jnp.where(counts, kept, 0.0).sum(0) / jnp.maximum(number, 1)
    return per_task(mean, number > 0)


@struct
class Transfer:
    """Between pairs of tasks, [K, K]: learning the first, what it did for the second."""

    value: Array
    exists: Array

    def mean(self) -> m.Mean:
        return m.mean(self.value, self.exists)


def transfers(history: History) -> tuple[Transfer, Transfer]:
    """Forward and backward transfer of each pair as a contrast, (after - before) / (after +
    before) of the second task's return around a block of learning the first: forward while the
    second was never learned, backward once it was (l2metrics). Means over the blocks of a pair.

    Returns must be at least 0, such as success rates. Where both are 0 there is no contrast.
    """
    now = learned(history)  # [P, K]
    begins = now & ~jnp.pad(now, ((1, 0), (0, 0)))[:-1]
    # The row before the block of each learned row.
    rows = jnp.arange(len(now))[:, None]
    start = jax.lax.cummax(jnp.where(begins, rows, 0)).max(1)  # [P]
    ends = now & ~jnp.pad(now, ((0, 1), (0, 0)))[1:]
    before = history.returns[jnp.maximum(start - 1, 0)]
    total = history.returns + before
    contrast = (history.returns - before) / jnp.where(total > 0, total, 1.0)  # [P, K], second task
    known = jnp.cumsum(now, 0) > 0
    # [P, first, second]
    pair = ends[:, :, None] & (total > 0)[:, None] & ~jnp.eye(now.shape[1], dtype=bool)

    def over(blocks: Array) -> Transfer:
        number = blocks.sum(0)
        value = jnp.where(blocks, contrast[:, None], 0.0).sum(0) / jnp.maximum(number, 1)
        return Transfer(value, number > 0)

    return over(pair & ~known[:, None]), over(pair & known[:, None])


# ------------------------------------------------------------------------------- against experts


def _while_learning(history: History, experts: Array) -> tuple[Array, Array, Array]:
    """Returns while each task was learned, those of its expert after as much learning, and where
    both exist: [P, K] each. experts: [K, N], after 1 .. N periods of nothing else."""
    now = learned(history)
    order = jnp.cumsum(now, 0) - 1
    length = experts.shape[1]
    expert = jnp.take_along_axis(experts.T, jnp.clip(order, 0, length - 1), 0)
    return history.returns, expert, now & (order < length)


def relative_performance(history: History, experts: Array) -> PerTask:
    """Return while learning each task, relative to an expert that learns nothing else: the ratio of
    the two sums over as many periods as both have (l2metrics: performance relative to a single-task
    expert). experts [K, N]; returns must be at least 0, and an expert that never gets any has no
    ratio."""
    mine, expert, both = _while_learning(history, experts)
    total = jnp.where(both, expert, 0.0).sum(0)
    ratio = jnp.where(both, mine, 0.0).sum(0) / jnp.where(total > 0, total, 1.0)
    return per_task(ratio, both.any(0) & (total > 0))


def forward_transfer_area(history: History, experts: Array, best: float = 1.0) -> PerTask:
    """Continual Environment's forward transfer: (AUC - AUC_expert) / (best - AUC_expert), the areas
    under the curves of learning, as means over as many periods as both have. experts [K, N];
    returns at most `best`, and an expert that is best at once has no room for transfer."""
    mine, expert, both = _while_learning(history, experts)
    number = jnp.maximum(both.sum(0), 1)
    area = lambda x: jnp.where(both, x, 0.0).sum(0) / number
    room = best - area(expert)
    gained = (area(mine) - area(expert)) / jnp.where(room > 0, room, 1.0)
    return per_task(gained, both.any(0) & (room > 0))


def sample_efficiency(history: History, experts: Array) -> PerTask:
    """How high and how soon each task's curve saturates, relative to its expert's: (saturation /
    expert's) * (expert's periods to saturation / periods), where saturation is the highest return
    while learning and its time the first period that has it (l2metrics, without smoothing). experts
    [K, N]; returns must be at least 0."""
    mine, expert, both = _while_learning(history, experts)
    order = jnp.cumsum(learned(history), 0)  # periods of learning, from 1

    def saturation(curve: Array) -> tuple[Array, Array]:
        curve = jnp.where(both, curve, -jnp.inf)
        row = jnp.argmax(curve, 0)
        return curve.max(0), jnp.take_along_axis(order, row[None], 0)[0]

    (high, time), (expert_high, expert_time) = saturation(mine), saturation(expert)
    exists = both.any(0) & (expert_high > 0)
    ratio = jnp.where(exists, high, 0.0) / jnp.where(exists, expert_high, 1.0)
    return per_task(ratio * expert_time / jnp.maximum(time, 1), exists)
