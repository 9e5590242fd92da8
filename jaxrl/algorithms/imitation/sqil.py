"""Soft Q imitation learning (SQIL; Reddy, Dragan and Levine, 2020, "SQIL: imitation learning via
reinforcement learning with sparse rewards", arXiv:1905.11108): soft actor-critic from batches of
which half are an expert's steps, with a reward of 1, and half the policy's own, with a reward of 0
(algorithm 1). No reward of the environment is read.

Continuous actions, for which the paper too takes SAC in the place of soft Q-learning.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl.algorithms.continuous_control.sac import TINY as TINY_SAC
from jaxrl.algorithms.continuous_control.sac import Config as SACConfig
from jaxrl.algorithms.continuous_control.sac import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.imitation.shared.demonstrations import SMALL_DEMONSTRATIONS, Demonstrations
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Source
from jaxrl.kit import AlgorithmBuilder, group
from jaxrl.kit.composing import with_rewards
from jaxrl.sources.dataset import dataset, mixed


@group
class Config(SACConfig):
    """Settings of SQIL: SAC on a reward of 1 for an expert's steps and 0 for the policy's
    (arXiv:1905.11108)."""

    demonstrations: Demonstrations = Demonstrations()


def pay(source: Source, reward: float) -> Source:
    """Return `source`, whose batches have `reward` in the place of their own rewards."""

    def sample(state, fresh, key):
        batch = source.sample(state, fresh, key)
        return with_rewards(batch, jnp.full_like(batch.transitions.reward, reward))

    return dataclasses.replace(source, sample=sample)


def source(env: Environment, config: Config) -> Source:
    """Return batches whose first half of each logical shard is the expert's."""
    x = config.replay
    half = dataclasses.replace(x, batch_size=x.batch_size // 2)
    steps = config.demonstrations.load(env)
    name = config.demonstrations.name
    shown = dataset(steps, half.batch_size, name=name, num_shards=x.num_shards)
    return mixed(pay(shown, 1.0), pay(half.source(env), 0.0), x.num_shards)


def check(env: Environment, config: Config, name: str) -> None:
    soft.check(env, config, name)
    x = config.replay
    if x.batch_size % (2 * x.num_shards):
        raise UserError(
            f"batch_size is {x.batch_size}; {name} needs a multiple of {2 * x.num_shards}, for two "
            "halves of each logical shard."
        )


sqil = AlgorithmBuilder("sqil", Config, sac.recipe, source, check=check)

TINY = TINY_SAC | SMALL_DEMONSTRATIONS
