"""Texts as data: a dataset of whole texts, written once, from which every batch is drawn.

A batch holds whole episodes [T, n] of text environments. Its mask is False after their ends, and
`tokens["decision"]` tells the agent's own tokens from prompts, replies and what tools said.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.shared import Original
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Key,
    Policy,
    Source,
    Transition,
    Tree,
    struct,
)
from jaxrl.sources.rollouts import SPLIT, check_shards, window


class Weigh(Protocol):
    """A function that says how often texts are drawn."""

    def __call__(self, scores: Array, /) -> Array:
        """Return weights [N], at least 0, of texts with the `scores` [N]: their returns, or what a
        `Score` returned."""
        ...


class Score(Protocol):
    """A function that scores texts when they are written."""

    def __call__(self, policy: Policy, batch: Batch, /) -> Array:
        """Return the scores [N] of texts [T, N].

        policy: as it is when the source begins. batch: all texts; its mask is False after ends.
        """
        ...


@struct
class Drawn:
    """State of a dataset of texts.

    data: transitions and mask of all N texts, [T, N]; `Shared` if they were given as arrays.
    total: sums of the weights of the first texts, up to each: float32 [N].
    batches: batches so far, int32.
    order: numbers of the texts of a batch, split over devices, int32 [n].
    """

    data: Tree
    total: Array
    batches: Array
    order: Array


def text_dataset(
    source: Source,
    batch_size: int,
    weigh: Weigh = jnp.ones_like,
    num_shards: int = 1,
    score: Score | None = None,
) -> Source:
    """Draw batches of `batch_size` (n) from a dataset of texts that is written once.

    Whoever plays `source` writes it: an expert (`played_by`), or the policy that is learned from
    it, as it is when the source begins; in a warm start that is the policy which was taken over.

    source: whole episodes [T, N]; one window of it is the dataset.
    weigh: how often a text is drawn, by its return: `jnp.ones_like` for all alike,
        `lambda x: x > 0` for right ones alone. Without a weight above 0 all of a batch is masked.
    num_shards: logical shards of a batch.
    score: what `weigh` is given in place of the returns; None for these.

    No environment is played afterwards: batches count as environment steps, as in `dataset`. The
    metric `texts_kept` is the share of the texts that have a weight. Raises `UserError` for sizes
    that do not fit.
    """
    _check(batch_size, num_shards)

    def init(key, hyper, policy):
        start_key, play_key = jax.random.split(key)
        begun = source.init(start_key, hyper, policy)
        _, batch, _ = window(source, begun, policy, play_key)
        t, mask = dataclasses.replace(batch.transitions, task=(), extras={}), batch.mask
        mask = jnp.ones(t.reward.shape, bool) if mask is None else mask
        found = jnp.where(mask, t.reward, 0).sum(0) if score is None else score(policy, batch)
        weight = weigh(found).astype(jnp.float32)
        return Drawn((t, mask), jnp.cumsum(weight), jnp.int32(0), jnp.arange(batch_size))

    return Source(
        f"text_dataset({source.name})",
        init,
        _collect,
        lambda state, fresh, key: _draw(state, state.data, fresh, key),
        env_steps=1,
        hyper=source.hyper,
        partition=Drawn(REPLICATED, REPLICATED, REPLICATED, SPLIT),
        plays_in_init=True,
    )


def given_texts(
    transitions: Transition,
    mask: np.ndarray,
    weight: np.ndarray,
    batch_size: int,
    name: str = "texts",
    num_shards: int = 1,
) -> Source:
    """Draw batches of `batch_size` (n) from texts that are given as arrays; see `text_dataset`.

    transitions: whole episodes [T, N]. mask: bool [T, N]. weight: [N], how often each is drawn.
    name: what messages call them.

    The arrays are `Shared`: in memory once for all members of a run, and in no checkpoint.
    """
    _check(batch_size, num_shards)
    original = Original((transitions, mask), f"the texts '{name}'")
    total = np.cumsum(weight, dtype=np.float64).astype(np.float32)

    def init(key, hyper, policy):
        return Drawn(original.shared(), jnp.asarray(total), jnp.int32(0), jnp.arange(batch_size))

    return Source(
        f"given_texts({name})",
        init,
        _collect,
        lambda state, fresh, key: _draw(state, state.data.value, fresh, key),
        env_steps=1,
        partition=Drawn(REPLICATED, REPLICATED, REPLICATED, SPLIT),
    )


def _collect(state: Drawn, policy, key: Key) -> tuple[Drawn, Array, dict]:
    """Count a batch."""
    batches = state.batches + 1
    kept = jnp.diff(state.total, prepend=0) > 0
    state = dataclasses.replace(state, batches=batches)
    return state, batches.astype(jnp.float32), {"texts_kept": m.mean(kept)}


def _draw(state: Drawn, data: Tree, fresh: Array, key: Key) -> Batch:
    """Draw texts, each with a probability in proportion to its weight."""
    total = state.total
    at = jax.random.uniform(key, state.order.shape)[state.order] * total[-1]
    last = jnp.argmax(total >= total[-1])  # that has a weight
    text = jnp.minimum(jnp.searchsorted(total, at, side="right"), last)
    transitions, mask = jax.tree.map(lambda x: x[:, text], data)
    return Batch(transitions, fresh, mask=mask & (total[-1] > 0))


def _check(batch_size: int, num_shards: int) -> None:
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {batch_size}.")
    check_shards(num_shards, batch_size=batch_size)
