"""Groups of episodes that an update had no use for yet, and that come again beside fresh ones."""

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
    source: Tree
    transitions: Tree  # leaves [T, B, ...]
    mask: Array  # bool [T, B], False throughout where nothing is kept


def kept_groups(
    source: Source, size: int, informative: Callable[[Array], Array], num_shards: int = 1
) -> Source:
    """`source`, whose batches of whole episodes [T, B] are B / `size` groups of neighbors. While
    updates feed back True, that they only wait for more, what they had comes again: kept groups
    take the places of fresh ones that tell nothing, as far as there are such, within each shard. So
    an update that leaves its policy alone until a part of its groups is informative stays
    on-policy, and wastes none (GPG's, Chu et al., 2025; DAPO's dynamic sampling).

    informative(returns [..., size]) -> bool [...]. Batches have no memory and no tail. Raises
    `UserError` where the columns of a batch do not divide into groups in every shard.
    """
    if source.num_envs % (size * num_shards):
        raise UserError(
            f"{source.num_envs} episodes are no whole groups of {size} in {num_shards} shards."
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
        batch = dataclasses.replace(batch, transitions=transitions, mask=mask)
        return dataclasses.replace(state, source=inner), batch, metrics

    return dataclasses.replace(
        source,
        name=f"kept_groups({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=lambda state, batch, feedback: Kept(
            state.source, batch.transitions, batch.mask & feedback["keep"]
        ),
        partition=Kept(source.partition, SPLIT, SPLIT),
    )
