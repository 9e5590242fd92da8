"""Pairs of answers to one prompt, of which a judge preferred one: drawn once, or in every update.

A batch of pairs holds whole episodes [T, 2 n]. The two of a pair are neighbors, the preferred one
first: columns 0, 2, 4... were chosen, 1, 3, 5... rejected.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.judges import judge_of, win_probabilities
from jaxrl.core.types import REPLICATED, Array, Batch, Environment, Judge, Key, Source, Tree, struct
from jaxrl.sources.rollouts import SPLIT, check_shards, window

RANKS = ("extremes", "first_two")


@struct
class Pairs:
    """State of a dataset of pairs.

    data: transitions and mask of all N pairs, [T, 2 N].
    batches: batches so far, int32.
    order: numbers of the pairs of a batch, split over devices, int32 [n].
    """

    data: Tree
    batches: Array
    order: Array


def judged_of(batch: Batch) -> Tree:
    """Return what each episode [T, B] said at its end for a judge, leaves [B, ...]."""
    t = batch.transitions
    ended = t.done if batch.mask is None else t.done & batch.mask

    def at_end(x: Array) -> Array:
        return jnp.where(ended.reshape(*ended.shape, *(1,) * (x.ndim - 2)), x, 0).sum(0)

    return jax.tree.map(at_end, t.next_timestep.privileged["judged"])


def choose_pair(key: Key, preference: Array, rank: str = "extremes") -> Array:
    """Return a chosen and a rejected answer of each group, as places int32 [P, 2] in the group.

    Each two answers are compared once; the comparison is drawn from `preference`. With `extremes`
    these are the answers with the most and the fewest wins, with `first_two` the first two.

    preference: [P, G, G], probabilities, as of `win_probabilities`.
    """
    if rank == "first_two":
        preference = preference[:, :2, :2]
    upper = jnp.triu(jnp.ones(preference.shape[1:], bool), 1)
    drawn = jax.random.bernoulli(key, preference) & upper
    won = drawn | (upper & ~drawn).mT
    order = jnp.argsort(won.sum(-1), axis=-1, stable=True)
    return jnp.stack([order[:, -1], order[:, 0]], -1)


def judged_pairs(
    source: Source, env: Environment, size: int, rank: str = "extremes", num_shards: int = 1
) -> Source:
    """Make a pair of each group of answers of `source`, anew in every batch (online preferences).

    source: whole episodes [T, P * G], those of a group (G answers to one prompt) side by side.
    env: what they are played in; its judge compares them.
    size: answers of a group, G.
    rank: which two of a group, as in `choose_pair`.
    num_shards: logical shards of a batch.

    Batches have no memory and no tail. Raises `UserError` for an environment without a judge, an
    unknown `rank`, and groups of fewer than two or that shards would split.
    """
    judge = judge_of(env)
    if rank not in RANKS:
        raise unknown("rank", rank, RANKS)
    _check_groups(source, size, num_shards)

    def collect(state, policy, key):
        play_key, label_key = jax.random.split(key)
        state, batch, metrics = window(source, state, policy, play_key)
        return state, _choose(batch, judge, size, rank, label_key), metrics

    return dataclasses.replace(
        source,
        name=f"judged_pairs({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
    )


def pair_dataset(
    source: Source,
    env: Environment,
    batch_size: int,
    rank: str = "first_two",
    num_shards: int = 1,
    *,
    flipped: float = 0.0,
    judged: bool = True,
) -> Source:
    """Draw batches of `batch_size` (n) from a dataset of pairs, which is played and judged once.

    The policy that is learned from it plays it, as it is when the source begins: in a warm start
    that is the policy which was taken over.

    source: whole episodes [T, 2 N], in which the two of a pair are neighbors; one window of it is
        the dataset.
    env: what they are played in; its judge draws which of the two is preferred, once.
    rank, num_shards: as in `judged_pairs`, for pairs.
    flipped: probability that a label is the opposite of the judge's.
    judged: whether there are labels. If not, the answers of a pair are in the order in which they
        were written, and `env` needs no judge.

    No environment is played afterwards: batches count as environment steps, as in `dataset`. Raises
    `UserError` for an environment without a judge, and for sizes that do not fit.
    """
    judge = judge_of(env) if judged else None
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}.")
    if not 0 <= flipped <= 1:
        raise UserError(f"flipped is a probability, between 0 and 1; got {flipped:g}.")
    check_shards(num_shards, batch_size=batch_size)
    _check_groups(source, 2, 1)
    count = source.num_envs // 2

    def init(key, hyper, policy):
        start_key, play_key, label_key = jax.random.split(key, 3)
        begun = source.init(start_key, hyper, policy)
        _, batch, _ = window(source, begun, policy, play_key)
        if judge is not None:
            batch = _choose(batch, judge, 2, rank, label_key, flipped)
        data = (dataclasses.replace(batch.transitions, task=()), batch.mask)
        return Pairs(data, jnp.int32(0), jnp.arange(batch_size))

    def collect(state, policy, key):
        batches = state.batches + 1
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state, fresh, key):
        pair = jax.random.randint(key, (batch_size,), 0, count)[state.order]
        columns = (2 * pair[:, None] + jnp.arange(2)).reshape(-1)
        transitions, mask = jax.tree.map(lambda x: x[:, columns], state.data)
        return Batch(transitions, fresh, mask=mask)

    return Source(
        f"pair_dataset({source.name})",
        init,
        collect,
        sample,
        env_steps=1,
        hyper=source.hyper,
        partition=Pairs(REPLICATED, REPLICATED, SPLIT),
        plays_in_init=True,
    )


def take_answers(batch: Batch, places: Array, size: int) -> Batch:
    """Return some episodes of each group of `size` (G), as neighbors, without memory and tail.

    batch: whole episodes [T, P * G]. places: int32 [P, k], places in the group.
    Returns: whole episodes [T, P * k].
    """

    def take(x: Array) -> Array:
        groups = x.reshape(x.shape[0], -1, size, *x.shape[2:])
        index = places.reshape(1, *places.shape, *(1,) * (x.ndim - 2))
        return jnp.take_along_axis(groups, index, 2).reshape(x.shape[0], -1, *x.shape[2:])

    transitions, mask = jax.tree.map(take, (batch.transitions, batch.mask))
    return Batch(transitions, batch.env_steps, mask=mask)


def _choose(
    batch: Batch, judge: Judge, size: int, rank: str, key: Key, flipped: float = 0.0
) -> Batch:
    """Return the chosen and the rejected episode of each group of `size`, as neighbors."""
    preference = win_probabilities(judge, judged_of(batch), size)
    if flipped:  # each comparison is drawn once, so that its flip is as good as drawn with it
        preference = flipped + (1 - 2 * flipped) * preference
    return take_answers(batch, choose_pair(key, preference, rank), size)


def _check_groups(source: Source, size: int, num_shards: int) -> None:
    """Raise `UserError` unless the episodes of `source` are groups of `size` in every shard."""
    if size < 2:
        raise UserError(f"A group must have at least 2 answers to compare, got {size}.")
    if source.num_envs % (size * num_shards):
        raise UserError(
            f"{source.num_envs} episodes do not divide into groups of {size} in each of the "
            f"{num_shards} shards."
        )
