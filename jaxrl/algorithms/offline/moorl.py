"""MOORL (Chaudhary, Mondal and Behera, 2025, "MOORL: a framework for integrating offline-online
reinforcement learning", arXiv:2506.09574): soft actor-critic whose two sources of data are two
tasks of Reptile. Each update (a meta-epoch) draws the dataset or the replay buffer of its own
steps, takes some gradient steps on that one alone, and moves policy and critics a part of the way
from where they were to where these led:

    theta <- theta + rate (theta_K - theta)

So neither source is followed as far as it alone would lead, and there are no ensembles and no
pessimism beside the minimum of two critics.

The paper's algorithm 1 was at hand, as a page has it, not its code. There one minibatch is drawn
for the K steps, where here each has its own, and policy and critics move; here the temperature does
too. That optimizers keep their states, and that target networks follow once for each meta-epoch, is
not confirmed, nor are the defaults of K and of the rate.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import gradients
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Net, Recipe, group, hyper, static


@group
class Config(soft_offline.SoftOffline):
    """Settings of MOORL: SAC that learns from data and from its own steps as from two tasks of
    Reptile (arXiv:2506.09574)."""

    data: Data = Data(num_envs=1, num_steps=1, updates=1)
    """Dataset and environment. `batch_size` is that of one gradient step, `updates` the number of
    meta-epochs after each window; `offline_share` has no influence."""
    inner_steps: int = static(4, low=1)
    """Number of gradient steps of each loss in a meta-epoch, K."""

    meta_rate: float = hyper(0.5, above=0, high=1)
    """Share of the way to the parameters after the gradient steps that is taken."""
    offline_chance: float = hyper(0.5, low=0, high=1)
    """Probability that a meta-epoch learns from the dataset."""


def recipe(env: Environment, config: Config) -> Recipe:
    plain = sac.recipe(env, config, reward=scaled_reward)
    learned = ("actor", "critic", "temperature")

    def gradient_steps(net, minibatch):
        for loss in plain.losses:
            net = net.descend(loss, minibatch)
        return net

    def update(net: Net, batch: Batch) -> Net:
        from_data = jax.random.uniform(net.key("source")) < net.hyper.offline_chance

        def choose(x):
            """Choose data or own steps, which follow each other in every shard of a batch."""
            halves = x.reshape(config.data.num_shards, 2, -1, *x.shape[1:])
            return jnp.where(from_data, halves[:, 0], halves[:, 1]).reshape(-1, *x.shape[1:])

        chosen = jax.tree.map(choose, batch.transitions)
        begun = {name: net.parts[name].params for name in learned}
        net = net.minibatches(config.inner_steps, chosen, gradient_steps)

        def move(start, adapted):
            step = gradients.reptile_gradient(start, adapted[..., None])
            return start - net.hyper.meta_rate * step

        new = {name: jax.tree.map(move, begun[name], net.parts[name].params) for name in learned}
        return (
            net.with_params(**new)
            .update_targets()
            .report(learned_from_data=from_data.astype(jnp.float32))
        )

    return dataclasses.replace(plain, update=update)


def source(env: Environment, config: Config) -> Source:
    """Return the source of batches that hold what a meta-epoch needs of the dataset, and as much of
    the agent's own steps."""
    size = 2 * config.inner_steps * config.data.batch_size
    return dataclasses.replace(config.data, batch_size=size, offline_share=0.5).source(env)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and there are both a dataset and an
    environment, and for minibatches that the shards do not divide."""
    soft.check(env, config, name)
    data = config.data
    if not (data.name and data.num_envs):
        raise UserError(
            f"{name} learns from a dataset and an environment: name a dataset, and set "
            "data.num_envs to at least 1."
        )
    if data.batch_size % data.num_shards:
        raise UserError(
            f"data.batch_size is {data.batch_size}; data.num_shards={data.num_shards} must divide "
            "it."
        )


moorl = AlgorithmBuilder("moorl", Config, recipe, source, check=check)

TINY = soft_offline.TINY | {
    "data.num_envs": 4,
    "data.capacity": 64,
    "data.warmup": 16,
    "inner_steps": 2,
}
