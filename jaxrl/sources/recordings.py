"""Recordings: whole episodes of other players, only some of them labeled with their actions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import REPLICATED, Array, Batch, Environment, Policy, Source, Tree, struct
from jaxrl.sources.episodes import episodes
from jaxrl.sources.rollouts import SPLIT, check_shards


@struct
class Recordings:
    """State of a source of recordings."""

    whole: Batch
    """All episodes: transitions and mask [T, N]."""
    batches: Array
    """Batches so far: int32."""
    order: Array
    """Numbers of the episodes of a batch, split over devices: int32 [n]."""
    hyper: Tree


def recordings(
    env: Environment,
    players: Policy,
    count: int,
    batch_size: int,
    labeled: float = 0.1,
    path: str = "",
    num_shards: int = 1,
) -> Source:
    """Draw batches of `batch_size` (n) from `count` (N) episodes that are played once, in `init`.

    They serve to learn from experience most of which shows what happened, but not which actions
    were taken.

    A batch holds transitions [T, n] from first steps on, with T = `env.max_steps`, a mask that is
    False after the end of each episode, and `extras["labeled"]`, whether the episode's actions may
    be used. The transitions hold all actions; an agent must ignore the unlabeled ones. Every second
    episode of a batch is drawn from the labeled ones, the others from all. The channel
    `privileged`, which only the players know, is left out.

    players: the policy that plays.
    labeled: share of the episodes that are labeled, from the first on, at least one episode. It is
        a hyperparameter.
    path: prefix of that hyperparameter's name, `labeled`.
    num_shards: logical shards of a batch. Every device has all episodes.

    Since no environment is played afterward, batches (gradient steps) count as steps (`env_steps`).
    The same key gives the same episodes, whatever is learned from them.

    Raises `UserError` for sizes below 1 or that do not fit, a share outside 0 .. 1 and an
    environment without a time limit.
    """
    for name, value in {"count": count, "batch_size": batch_size}.items():
        if value < 1:
            raise UserError(f"{name} of recordings must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    if not 0 <= labeled <= 1:
        raise UserError(f"labeled is {labeled}; it must be a share of the episodes, 0 to 1.")
    source, name = episodes(env, count), f"{path}labeled"

    def num_labeled(hyper) -> Array:
        return jnp.maximum(jnp.floor(hyper[name] * count), 1)

    def init(key, hyper, policy):
        start_key, key = jax.random.split(key)
        _, batch, _ = source.collect(source.init(start_key, hyper, players), players, key)
        t = batch.transitions
        plain = lambda timestep: dataclasses.replace(timestep, privileged=None)
        labels = jnp.broadcast_to(jnp.arange(count) < num_labeled(hyper), t.reward.shape)
        t = dataclasses.replace(
            t,
            timestep=plain(t.timestep),
            next_timestep=plain(t.next_timestep),
            extras={"labeled": labels},
        )
        whole = Batch(t, jnp.float32(0), mask=batch.mask)
        own = {name: jnp.float32(hyper[name])}
        return Recordings(whole, jnp.int32(0), jnp.arange(batch_size), own)

    def collect(state, policy, key):
        batches = state.batches + 1
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state, fresh, key):
        most = jnp.where(jnp.arange(batch_size) % 2 == 0, num_labeled(state.hyper), count)
        at = jnp.floor(jax.random.uniform(key, (batch_size,)) * most).astype(jnp.int32)
        at = at[state.order]
        take = lambda tree: jax.tree.map(lambda x: x[:, at], tree)
        return Batch(take(state.whole.transitions), fresh, mask=take(state.whole.mask))

    return Source(
        f"recordings({env.name})",
        init,
        collect,
        sample,
        env_steps=1,
        hyper={name: np.float32(labeled)},
        partition=Recordings(REPLICATED, REPLICATED, SPLIT, REPLICATED),
    )
