"""Pairs of segments: windows of recorded experience, of which a teacher prefers one.

A segment lies within one episode. A batch of pairs holds segments [T, 2 n]; the two of a pair are
neighbors, the preferred one first: columns 0, 2, 4... were chosen, 1, 3, 5... rejected, as in
`sources.pairs`. Columns that belong together (several pairs of one user, or a pair and segments
that nobody compared) are neighbors too, so that minibatches and shards keep them whole.

A label is the probability that the first segment is preferred: 1 or 0, 1/2 where the teacher
prefers neither. The order of a pair is drawn from it in every batch, so the mean loss of a tie is
the cross-entropy with the label 1/2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.shared import Original, Shared
from jaxrl.core.types import REPLICATED, Array, Batch, Key, Source, Transition, Tree, struct
from jaxrl.sources.rollouts import SPLIT, check_shards, window


class Compare(Protocol):
    """Function by which a teacher compares segments."""

    def __call__(self, first: Transition, second: Transition, user: Tree, /) -> Array:
        """Return the probability that the first segment is preferred, float32 [...]; exactly 1/2
        where the teacher prefers neither.

        first, second: segments [T, ...]. user: the user who is asked, leaves [...]; see `Teacher`.
        """
        ...


class Score(Protocol):
    """Function that tells what a teacher values in a step."""

    def __call__(self, step: Transition, user: Tree, /) -> Array:
        """Return the score of each step [T, ...], such as its reward or its advantage.

        step: [T, ...]. user: the user who is asked, leaves [...]; see `Teacher`.
        """
        ...


def reward_of(step: Transition, user: Tree) -> Array:
    """Return the reward of each step, which all users value."""
    return step.reward


def by_scores(
    score: Score = reward_of,
    discount: float = 1.0,
    rationality: float = float("inf"),
    equal: float = 0.0,
) -> Compare:
    """Compare segments by the sums of their steps' scores, as the simulated teacher of B-Pref (Lee
    et al., 2021, "B-Pref: benchmarking preference-based reinforcement learning", arXiv:2111.03026).

    sigmoid(rationality (s(first) - s(second))), s = sum_t discount^t score_t

    discount: per step from the beginning of a segment on, in (0, 1]. (The teacher of B-Pref, who
        may be short-sighted, discounts from its end.)
    rationality: beta; infinite for a teacher who always prefers the segment with the larger sum.
    equal: largest difference of the sums for which neither segment is preferred.
    """

    def compare(first: Transition, second: Transition, user: Tree) -> Array:
        def total(segment: Transition) -> Array:
            value = score(segment, user)
            weight = jnp.power(discount, jnp.arange(len(value)).astype(jnp.float32))
            return jnp.tensordot(weight, value.astype(jnp.float32), 1)

        difference = total(first) - total(second)
        if np.isinf(rationality):
            preferred = 0.5 * (1 + jnp.sign(difference))
        else:
            preferred = jax.nn.sigmoid(rationality * difference)
        return jnp.where(jnp.abs(difference) <= equal, 0.5, preferred)

    return compare


BY_REWARD = by_scores()


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher who labels pairs of segments.

    compare: what is preferred. user_of: recorded step -> what distinguishes the user who labels a
    set of pairs, such as the goal of the step's episode; the step is drawn for each set. None where
    all are alike. mistakes: probability that a label is the opposite of what it should be. soft:
    whether labels are the probabilities themselves, as if infinitely many teachers had been asked,
    instead of drawn once. skip_ties: whether pairs of which neither is preferred are left out; if
    not, their label is 1/2.
    """

    compare: Compare = BY_REWARD
    user_of: Callable[[Transition], Tree] | None = None
    mistakes: float = 0.0
    soft: bool = False
    skip_ties: bool = False

    def label(self, key: Key, first: Transition, second: Transition, user: Tree) -> Labels:
        """Return the labels of pairs of segments [T, ...]. user: leaves [...]."""
        preferred = self.compare(first, second, user)
        tie = preferred == 0.5
        right = self.mistakes + (1 - 2 * self.mistakes) * preferred
        drawn = right if self.soft else jax.random.bernoulli(key, right).astype(jnp.float32)
        label = jnp.where(tie, 0.5, drawn)
        return Labels(label, ~tie if self.skip_ties else jnp.ones(tie.shape, bool))


@struct
class Labels:
    """Labels of pairs [...].

    preferred: probability that the first segment is preferred. known: False where the teacher left
    the pair out.
    """

    preferred: Array
    known: Array


@struct
class Windows:
    """Windows of recorded steps [M] that lie within one episode each.

    count: number of windows that begin at a row up to this one, int32 [M]. lowest, highest: first
    and last row at which a window of the same episode begins, int32 [M].
    """

    count: Array
    lowest: Array
    highest: Array

    def draw(self, key: Key, shape: tuple[int, ...]) -> Array:
        """Draw rows at which windows begin, uniformly; row 0 if there are no windows."""
        total = self.count[-1]
        number = jax.random.randint(key, shape, 0, jnp.maximum(total, 1))
        row = jnp.searchsorted(self.count, number, side="right").astype(jnp.int32)
        return jnp.where(total > 0, row, 0)

    def shift(self, key: Key, row: Array, deviation: float) -> Array:
        """Move windows along their episodes by steps from a rounded normal distribution."""
        moved = row + jnp.round(deviation * jax.random.normal(key, row.shape)).astype(jnp.int32)
        return jnp.clip(moved, self.lowest[row], self.highest[row])


def find_windows(last: Array, length: int, held_out: int = 0, of_held_out: bool = False) -> Windows:
    """Return the windows of `length` steps of recorded steps [M], one episode after the other.

    last: bool [M], whether an episode, or what is recorded of it, ends with the step.
    held_out: every so many episodes, the windows of one are left out; 0 for none.
    of_held_out: whether only those windows are returned.
    """
    row = jnp.arange(len(last), dtype=jnp.int32)
    episode = jnp.cumsum(last) - last
    begin = jax.lax.cummax(jnp.where(jnp.concatenate([jnp.ones(1, bool), last[:-1]]), row, 0))
    # A record that is cut off ends with its last row.
    end = jax.lax.cummin(jnp.where(last.at[-1].set(True), row, len(last)), reverse=True)
    highest = end - length + 1
    starts = row <= highest
    if held_out:
        starts &= (episode % held_out == held_out - 1) == of_held_out
    return Windows(jnp.cumsum(starts, dtype=jnp.int32), begin, highest.astype(jnp.int32))


@struct
class SegmentPairs:
    """State of a source of pairs of segments.

    data: transitions [M], `Shared` or of this run. windows: of them. starts: rows at which the
    segments of all N sets of S pairs begin, int32 [N, S, 2]. labels: [N, S]. user: who labeled a
    set, leaves [N, ...]. batches: batches so far, int32. order: numbers of the sets of a batch,
    split over devices, int32 [n].
    """

    data: Any
    windows: Windows
    starts: Array
    labels: Labels
    user: Tree
    batches: Array
    order: Array


def segment_pairs(
    data: Transition | Source,
    teacher: Teacher,
    *,
    length: int,
    count: int,
    batch_size: int,
    size: int = 1,
    others: int = 0,
    shift: float = 0.0,
    updates: int = 1,
    held_out: int = 0,
    of_held_out: bool = False,
    name: str = "",
    num_shards: int = 1,
) -> Source:
    """Draw batches of `batch_size` (n) sets of pairs of segments, which are labeled in `init`.

    data: a dataset's transitions [M], whole episodes one after the other, which are `Shared`; or a
        source whose first window [L, B] is recorded in `init`, by its own player
        (`sources.played_by`), so that every run has data of its own.
    teacher: labels the pairs. Each run draws its own pairs and labels.
    length: steps of a segment, T.
    count: number of sets of pairs, N.
    size: pairs of a set (S), all labeled by the same user.
    others: segments in each set that nobody compared, drawn anew in every batch.
    shift: where it is above 0, each of these is followed by the same segment moved along its
        episode by a rounded normal number of steps with this deviation.
    updates: batches drawn in one step of `learn`; these count as steps, as in `dataset`.
    held_out, of_held_out: see `find_windows`.
    name: the name of the data in messages.
    num_shards: logical shards of a batch. Every device has all of the data.

    Batches are [T, n * columns], with `set_columns(size, others, shift)` columns in each set: first
    the pairs, then the others. The mask is False for pairs that the teacher left out, and
    everywhere if no episode is long enough. Raises `UserError` for sizes below 1, sizes that do not
    fit, and a dataset without episodes of that length.
    """
    sizes = {"length": length, "count": count, "batch_size": batch_size, "size": size}
    for what, value in (sizes | {"updates": updates}).items():
        if value < 1:
            raise UserError(f"{what} must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    original = None
    if isinstance(data, Transition):
        trees.check_rows(data, len(data.reward), f"the rewards of the dataset '{name}'")
        last = jnp.asarray(data.terminated | data.truncated)
        found = int(find_windows(last, length, held_out, of_held_out).count[-1])
        if not found:
            raise UserError(
                f"No episode of the dataset '{name}' has a segment of {length} steps"
                + (" that is held out." if of_held_out else ".")
            )
        original = Original(_without_extras(data), f"the dataset '{name}'")

    def record(key: Key, hyper: Any, policy: Any) -> tuple[Any, Transition, Array]:
        """Return what the state keeps of the data, the transitions [M], and where they end."""
        if original is not None:
            shared = original.shared()
            return shared, shared.value, shared.value.done
        assert isinstance(data, Source)
        start_key, key = jax.random.split(key)
        begun = data.init(start_key, hyper, policy)
        t = _without_extras(window(data, begun, policy, key)[1].transitions)
        last = t.done.at[-1].set(True)
        flat = lambda x: jnp.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])
        t = jax.tree.map(flat, t)
        return t, t, flat(last)

    def init(key, hyper, policy):
        data_key, key = jax.random.split(key)
        kept, transitions, last = record(data_key, hyper, policy)
        pair_key, user_key, label_key = jax.random.split(key, 3)
        windows = find_windows(last, length, held_out, of_held_out)
        starts = windows.draw(pair_key, (count, size, 2))
        user = ()
        if teacher.user_of is not None:
            row = jax.random.randint(user_key, (count,), 0, len(transitions.reward))
            user = teacher.user_of(jax.tree.map(lambda x: x[row], transitions))

        def repeat(x):
            return jnp.broadcast_to(x, (size, *x.shape))

        def label(key, starts, user):
            """Label the pairs of a set; one after the other, since segments take memory."""
            first, second = (segments_at(transitions, starts[:, i], length) for i in range(2))
            return teacher.label(key, first, second, jax.tree.map(repeat, user))

        each = jax.random.split(label_key, count), starts, user
        labels = jax.lax.map(lambda x: label(*x), each, batch_size=min(count, 1024))
        return SegmentPairs(
            kept, windows, starts, labels, user, jnp.int32(0), jnp.arange(batch_size)
        )

    def collect(state: SegmentPairs, policy, key):
        batches = state.batches + updates
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state: SegmentPairs, fresh, key) -> Batch:
        set_key, order_key, other_key, shift_key = jax.random.split(key, 4)
        chosen = jax.random.randint(set_key, (batch_size,), 0, count)[state.order]
        number = jax.random.uniform(order_key, (batch_size, size))[state.order]
        pair, labels = state.starts[chosen], jax.tree.map(lambda x: x[chosen], state.labels)
        kept = number < labels.preferred
        pair = jnp.where(kept[..., None], pair, pair[..., ::-1]).reshape(batch_size, -1)
        rows, known = [pair], [jnp.repeat(labels.known, 2, -1)]
        if others:
            row = state.windows.draw(other_key, (batch_size, others))[state.order]
            if shift:
                moved = state.windows.shift(shift_key, row, shift)
                row = jnp.stack([row, moved], -1).reshape(batch_size, -1)
            rows, known = [*rows, row], [*known, jnp.ones(row.shape, bool)]
        start = jnp.concatenate(rows, -1).reshape(-1)
        mask = jnp.concatenate(known, -1).reshape(-1) & (state.windows.count[-1] > 0)
        whole = state.data.value if isinstance(state.data, Shared) else state.data
        transitions = segments_at(whole, start, length)
        return Batch(transitions, fresh, mask=jnp.broadcast_to(mask, (length, *mask.shape)))

    return Source(
        f"segment_pairs({name or getattr(data, 'name', '')})",
        init,
        collect,
        sample,
        env_steps=updates,
        hyper=dict(getattr(data, "hyper", {})),
        partition=SegmentPairs(
            REPLICATED, REPLICATED, REPLICATED, REPLICATED, REPLICATED, REPLICATED, SPLIT
        ),
    )


def set_columns(size: int = 1, others: int = 0, shift: float = 0.0) -> int:
    """Return the number of columns of a set of `segment_pairs`."""
    return 2 * size + (2 * others if shift else others)


def segments_at(transitions: Transition, start: Array, length: int) -> Transition:
    """Return the segments [T, ...] that begin at the rows `start` [...] of transitions [M]."""
    rows = start + jnp.arange(length).reshape(-1, *[1] * start.ndim)
    return jax.tree.map(lambda x: x[rows], transitions)


def _without_extras(transitions: Transition) -> Transition:
    """Return transitions without tasks, outputs of whoever played, and what only a teacher sees."""
    plain = lambda timestep: dataclasses.replace(timestep, privileged=None)
    return dataclasses.replace(
        transitions,
        timestep=plain(transitions.timestep),
        next_timestep=plain(transitions.next_timestep),
        task=(),
        extras={},
    )
