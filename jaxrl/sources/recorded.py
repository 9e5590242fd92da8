"""Whole episodes that somebody else played, of which only some say what was done in them."""

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
class Recorded:
    whole: Batch  # transitions and mask [T, N]
    batches: Array  # int32: drawn so far
    order: Array  # int32 [n]: the numbers of a batch's episodes, of which each device holds some
    hyper: Tree


def recorded(
    env: Environment,
    players: Policy,
    count: int,
    batch_size: int,
    labeled: float = 0.1,
    path: str = "",
    num_shards: int = 1,
) -> Source:
    """Batches of `batch_size` (n) of `count` (N) episodes that `players` play once, in `init`: for
    learning from data of which most shows what happened and not what was done.

    A batch holds transitions [T, n] from first steps on, T = `env.max_steps`, a mask that is False
    after each episode's end, and `extras["labeled"]`: whether the episode tells its actions. They
    are in the transitions all the same; who learns must not look. The first `labeled` of the
    episodes do (a hyperparameter, called `path` and that), at least one, and every second episode
    of a batch is one of those. What the players alone knew, the channel `privileged`, is left out.

    No environment is played afterwards, so what is counted as steps (`env_steps`) are batches:
    gradient steps. The same key gives the same episodes, whatever is learned from them.

    num_shards: logical shards of a batch. Every device has all episodes.

    Raises `UserError` for sizes below 1 or that do not fit, a share outside 0 .. 1 and an
    environment without a time limit.
    """
    for name, value in {"count": count, "batch_size": batch_size}.items():
        if value < 1:
            raise UserError(f"{name} of recorded episodes must be at least 1, got {value}.")
    check_shards(num_shards, batch_size=batch_size)
    if not 0 <= labeled <= 1:
        raise UserError(f"labeled is a share of the episodes, 0 to 1, got {labeled}.")
    source, name = episodes(env, count), f"{path}labeled"

    def told(hyper) -> Array:
        return jnp.maximum(jnp.floor(hyper[name] * count), 1)

    def init(key, hyper, policy):
        start_key, key = jax.random.split(key)
        _, batch, _ = source.collect(source.init(start_key, hyper, players), players, key)
        t = batch.transitions
        plain = lambda timestep: dataclasses.replace(timestep, privileged=None)
        labels = jnp.broadcast_to(jnp.arange(count) < told(hyper), t.reward.shape)
        t = dataclasses.replace(
            t,
            timestep=plain(t.timestep),
            next_timestep=plain(t.next_timestep),
            extras={"labeled": labels},
        )
        whole = Batch(t, jnp.float32(0), mask=batch.mask)
        own = {name: jnp.float32(hyper[name])}
        return Recorded(whole, jnp.int32(0), jnp.arange(batch_size), own)

    def collect(state, policy, key):
        batches = state.batches + 1
        return dataclasses.replace(state, batches=batches), batches.astype(jnp.float32), {}

    def sample(state, fresh, key):
        most = jnp.where(jnp.arange(batch_size) % 2 == 0, told(state.hyper), count)
        at = jnp.floor(jax.random.uniform(key, (batch_size,)) * most).astype(jnp.int32)
        at = at[state.order]
        take = lambda tree: jax.tree.map(lambda x: x[:, at], tree)
        return Batch(take(state.whole.transitions), fresh, mask=take(state.whole.mask))

    return Source(
        f"recorded({env.name})",
        init,
        collect,
        sample,
        env_steps=1,
        hyper={name: np.float32(labeled)},
        partition=Recorded(REPLICATED, REPLICATED, SPLIT, REPLICATED),
    )
