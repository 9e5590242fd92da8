"""Groups of episodes that an update did not use yet, kept beside fresh ones."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Source, Tree, struct
from jaxrl.sources.replay import SPLIT
from jaxrl.sources.rollouts import window


@struct
class Kept:
    """State of a source that keeps groups."""

    source: Tree
    transitions: Tree
    """Episodes that are kept, leaves [T, B, ...]."""
    mask: Array
    """False throughout an episode that is not kept: bool [T, B]."""


def kept_groups(
    source: Source, size: int, informative: Callable[[Array], Array], num_shards: int = 1
) -> Source:
    """Keep the informative groups of `source` while updates wait for more of them.

    The batches of `source` hold whole episodes [T, B], which are B / `size` groups of neighbors. If
    an update feeds back that `keep` is True, it has only waited, and its groups are kept: in the
    next batch they replace fresh groups that are not informative, as many as there are, within each
    shard. So an update that leaves the policy alone until enough groups are informative stays
    on-policy and wastes none (GPG, Chu et al., 2025; dynamic sampling in DAPO).

    size: episodes of a group.
    informative: whether a group is worth learning from, bool [...], from its returns [..., size].
    num_shards: logical shards of a batch.

    Batches have no memory and no tail. An update feeds back True by the name `keep`; the source
    hears all else. Raises `UserError` if the episodes of a batch do not divide
    into groups in every shard.
    """
    if source.num_envs % (size * num_shards):
        raise UserError(
            f"{source.num_envs} episodes do not divide into groups of {size} in each of the "
            f"{num_shards} shards."
        )

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        shapes = jax.eval_shape(functools.partial(window, source), state, policy, key)[1]
        return Kept(state, *trees.zeros((shapes.transitions, shapes.mask)))

    def collect(state, policy, key):
        inner, batch, metrics = window(source, state.source, policy, key)
        by_shard = lambda x: x.reshape(x.shape[0], num_shards, -1, size, *x.shape[2:])
        beside = lambda x, y: jnp.concatenate([by_shard(x), by_shard(y)], 2)
        fresh, old = (batch.transitions, batch.mask), (state.transitions, state.mask)
        both, mask = jax.tree.map(beside, fresh, old)
        known = informative(jnp.where(mask, both.reward, 0).sum(0))
        order = jnp.argsort(~known, axis=1, stable=True)[:, : known.shape[1] // 2]

        def first(x):
            index = order.reshape(1, *order.shape, *(1,) * (x.ndim - 3))
            return jnp.take_along_axis(x, index, 2).reshape(x.shape[0], -1, *x.shape[4:])

        transitions, mask = jax.tree.map(first, (both, mask))
        batch = dataclasses.replace(batch, transitions=transitions, mask=mask, index=None)
        return dataclasses.replace(state, source=inner), batch, metrics

    def feedback(state, batch, feedback):
        rest = {name: value for name, value in feedback.items() if name != "keep"}
        inner = source.feedback(state.source, batch, rest)
        return Kept(inner, batch.transitions, batch.mask & feedback.get("keep", False))

    return dataclasses.replace(
        source,
        name=f"kept_groups({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=feedback,
        partition=Kept(source.partition, SPLIT, SPLIT),
    )
