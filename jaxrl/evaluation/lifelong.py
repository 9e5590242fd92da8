"""Metrics of lifelong learning: performance, forgetting, transfer, and comparisons with experts.

All are functions of a `History`: the returns in all K tasks, evaluated before learning and after
each period of learning one of them. A metric of each task is a `PerTask`. If a task has no value
(it was never learned, or never left, or no expert is known), it is masked and does not enter the
mean, whatever was evaluated; there are no NaNs, and no zeros in its place.

Sources:
Lopez-Paz and Ranzato (2017, "Gradient episodic memory for continual learning", arXiv:1706.08840,
section 2) for backward and forward transfer.
Wolczyk et al. (2021, "Continual World", arXiv:2105.10919, section 3) for performance, forgetting
and forward transfer as an area.
Baker et al. (2023, "A domain-agnostic approach for characterization of lifelong learning systems",
arXiv:2301.07799) with the metrics of its l2metrics package for performance maintenance, transfer as
a contrast, and performance and sample efficiency relative to single-task experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.types import Array, struct

NONE = -1  # the task of a row without learning before it


@struct
class History:
    """Evaluations in order of time; row 0 precedes any learning. P is their maximum number; rows
    that are not `recorded` may contain anything."""

    returns: Array  # float32 [P, K]: mean return in each task
    task: Array  # int32 [P]: the task learned since the previous row; NONE in row 0
    recorded: Array  # bool [P]; True comes before False


@struct
class PerTask:
    """A number for each task [K], which is 0 where it does not exist."""

    value: Array
    exists: Array  # bool

    def mean(self) -> m.Mean:
        """The mean over the tasks that have a value; a `Mean` with no weight if none has."""
        return m.mean(self.value, self.exists)


def make_per_task(value: Array, exists: Array) -> PerTask:
    """Mask `value` [K] by `exists`; where it does not exist, even NaN becomes 0."""
    return PerTask(jnp.where(exists, value, 0.0), exists)


def empty_history(rows: int, tasks: int) -> History:
    """A history of `rows` [P] and `tasks` [K] without any evaluation."""
    return History(jnp.zeros((rows, tasks)), jnp.full(rows, NONE, jnp.int32), jnp.zeros(rows, bool))


def record(history: History, row: Array, returns: Array, task: Array | int) -> History:
    """Record `returns` [K] after learning `task` in row number `row`, unless that is too large."""
    return History(
        history.returns.at[row].set(returns, mode="drop"),
        history.task.at[row].set(task, mode="drop"),
        history.recorded.at[row].set(True, mode="drop"),
    )


# ------------------------------------------------------------------------------- times of learning


def learning_mask(history: History) -> Array:
    """Mark the task that was learned in each recorded row: bool [P, K]."""
    tasks = jnp.arange(history.returns.shape[1])
    return (history.task[:, None] == tasks) & history.recorded[:, None]


def learned_tasks(history: History) -> Array:
    """Mark the tasks that were ever learned: bool [K]."""
    return learning_mask(history).any(0)


def last_row(history: History) -> Array:
    """The number of the last recorded row (0 if there is none), int32."""
    return jnp.maximum(history.recorded.sum(dtype=jnp.int32) - 1, 0)


def _returns_at(history: History, row: Array) -> Array:
    """Select each task's return in its own row: row [K] -> [K]."""
    return jnp.take_along_axis(history.returns, row[None], 0)[0]


def _first_learning_row(history: History) -> Array:
    """The first row [K] in which each task was learned."""
    return jnp.argmax(learning_mask(history), 0)


def _first_end(history: History) -> Array:
    """The last row [K] of the first block in which each task was learned."""
    now = learning_mask(history)
    begun = jnp.cumsum(now, 0) > 0
    interrupted = jnp.cumsum(begun & ~now & history.recorded[:, None], 0) > 0
    rows = jnp.arange(len(now))[:, None]
    return jnp.where(now & ~interrupted, rows, 0).max(0)


def _last_end(history: History) -> Array:
    """The last row [K] in which each task was learned."""
    rows = jnp.arange(len(history.task))[:, None]
    return jnp.where(learning_mask(history), rows, 0).max(0)


# ------------------------------------------------------------------------------- one life


def performance(history: History) -> PerTask:
    """The last return in each task that was learned.

    Its mean is the average performance of "Continual World".
    """
    return make_per_task(history.returns[last_row(history)], learned_tasks(history))


def forgetting(history: History) -> PerTask:
    """The loss in each task: its return when it was last learned, minus its last return.

    Exists for tasks that were learned and then left. "Continual World" counts the last task, which
    has not been left, as 0, so that its mean is (K - 1) / K of this one.
    """
    end, last = _last_end(history), last_row(history)
    lost = _returns_at(history, end) - history.returns[last]
    return make_per_task(lost, learned_tasks(history) & (end < last))


def backward_transfer(history: History) -> PerTask:
    """The effect of later learning on each task: its last return minus its return after the first
    block in which it was learned (GEM: R[T, i] - R[i, i]).

    Exists for tasks that were learned and left.
    """
    end, last = _first_end(history), last_row(history)
    gained = history.returns[last] - _returns_at(history, end)
    return make_per_task(gained, learned_tasks(history) & (end < last))


def forward_transfer(history: History) -> PerTask:
    """The effect of earlier learning on each task: its return just before it was first learned,
    minus its return in row 0 (GEM: R[i - 1, i] - b[i]).

    Exists for tasks that were learned, except for the first one.
    """
    before = _first_learning_row(history) - 1
    gained = _returns_at(history, jnp.maximum(before, 0)) - history.returns[0]
    return make_per_task(gained, learned_tasks(history) & (before > 0))


def performance_maintenance(history: History) -> PerTask:
    """The change of each task's return while others are learned.

    The mean, over all rows in which another task was learned since, of the return minus the return
    when the task was last learned (l2metrics: difference to the most recent learning evaluation
    point).
    """
    now = learning_mask(history)
    rows = jnp.arange(len(now))[:, None]
    latest = jax.lax.cummax(jnp.where(now, rows, -1))
    kept = history.returns - jnp.take_along_axis(history.returns, jnp.maximum(latest, 0), 0)
    counts = (latest >= 0) & ~now & history.recorded[:, None]
    number = counts.sum(0)
    mean = jnp.where(counts, kept, 0.0).sum(0) / jnp.maximum(number, 1)
    return make_per_task(mean, number > 0)


@struct
class Transfer:
    """The effect of learning a first task on a second one, for all pairs [K, K]."""

    value: Array
    exists: Array

    def mean(self) -> m.Mean:
        """The mean over the pairs that have a value."""
        return m.mean(self.value, self.exists)


def transfers(history: History) -> tuple[Transfer, Transfer]:
    """Forward and backward transfer between each pair of tasks, as contrasts (l2metrics).

    A contrast is (after - before) / (after + before), where these are the second task's returns
    after and before a block of learning the first. It counts as forward transfer if the second
    task was not learned before, else as backward transfer. Values are means over a pair's blocks.

    Returns must be at least 0, such as success rates. If both are 0, there is no contrast.
    """
    now = learning_mask(history)  # [P, K]
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


# ------------------------------------------------------------------------------- experts


def _while_learning(history: History, experts: Array) -> tuple[Array, Array, Array]:
    """Align returns while each task was learned with those of its expert.

    experts: [K, N], the experts' returns after 1 .. N periods of learning nothing else.

    Returns the returns, those of the expert after the same amount of learning, and where both
    exist: [P, K] each.
    """
    now = learning_mask(history)
    order = jnp.cumsum(now, 0) - 1
    length = experts.shape[1]
    expert = jnp.take_along_axis(experts.T, jnp.clip(order, 0, length - 1), 0)
    return history.returns, expert, now & (order < length)


def relative_performance(history: History, experts: Array) -> PerTask:
    """Return while learning each task, relative to an expert that learns nothing else.

    The ratio of the two sums, over as many periods as both have (l2metrics: performance relative to
    a single-task expert). experts [K, N]; returns must be at least 0. If an expert's returns are
    all 0, there is no ratio.
    """
    mine, expert, both = _while_learning(history, experts)
    total = jnp.where(both, expert, 0.0).sum(0)
    ratio = jnp.where(both, mine, 0.0).sum(0) / jnp.where(total > 0, total, 1.0)
    return make_per_task(ratio, both.any(0) & (total > 0))


def forward_transfer_area(history: History, experts: Array, best: float = 1.0) -> PerTask:
    """Forward transfer as an area under the learning curve, compared with an expert's.

    It is (AUC - AUC_expert) / (best - AUC_expert), as in "Continual World", where AUC is the mean
    return over as many periods as both have. experts [K, N]; returns must be at most `best`. If an
    expert is at its best from the start, there is no room for transfer, and the value does not
    exist.
    """
    mine, expert, both = _while_learning(history, experts)
    number = jnp.maximum(both.sum(0), 1)
    area = lambda x: jnp.where(both, x, 0.0).sum(0) / number
    room = best - area(expert)
    gained = (area(mine) - area(expert)) / jnp.where(room > 0, room, 1.0)
    return make_per_task(gained, both.any(0) & (room > 0))


def sample_efficiency(history: History, experts: Array) -> PerTask:
    """Height and speed of the learning curve's saturation, relative to an expert's.

    (saturation / expert's saturation) * (expert's periods to saturation / periods to saturation),
    where saturation is the highest return while learning, and its time the first period that
    reaches it (l2metrics, without smoothing). experts [K, N]; returns must be at least 0.
    """
    mine, expert, both = _while_learning(history, experts)
    order = jnp.cumsum(learning_mask(history), 0)  # number of the period of learning, from 1

    def saturation(curve: Array) -> tuple[Array, Array]:
        curve = jnp.where(both, curve, -jnp.inf)
        row = jnp.argmax(curve, 0)
        return curve.max(0), jnp.take_along_axis(order, row[None], 0)[0]

    (high, time), (expert_high, expert_time) = saturation(mine), saturation(expert)
    exists = both.any(0) & (expert_high > 0)
    ratio = jnp.where(exists, high, 0.0) / jnp.where(exists, expert_high, 1.0)
    return make_per_task(ratio * expert_time / jnp.maximum(time, 1), exists)
