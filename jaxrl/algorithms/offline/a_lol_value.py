"""The value of a reference policy, for A-LoL (Baheti et al., 2024, "Leftover lunch: advantage-based
offline reinforcement learning for language models", arXiv:2305.14718): the return that the answers
of the reference policy to a prompt have on average, learned from its own answers. A whole answer is
one action, so the value is that of the prompt alone.

The policy writes and stays as it is; warm-start it from supervised learning. The value is predicted
by a network of its own that begins as the policy's; the authors freeze the policy's network, train
a head with attention on it, and keep the best of ten epochs over answers to held-out prompts.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import (
    Sample,
    copy_policy,
    decisions,
    on_episodes,
    returns_of,
    unroll,
)
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Grouped
from jaxrl.core import settings
from jaxrl.core.types import Array, Batch, Environment, TimeStep
from jaxrl.kit import (
    SEQUENCE,
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    loss,
)
from jaxrl.kit.groups import Optimizer

PART = "critic"


@group
class Config(Grouped):
    """Settings of the value of a reference policy, for A-LoL (arXiv:2305.14718)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-5)
    """Optimizer settings of the value. 1e-5: the authors' code. (Small networks need larger
    steps.)"""


def value_of_prompt(value: Array, timestep: TimeStep, mask: Array) -> Array:
    """Return the values [B] of the prompts of texts, from the values [T, B] of their steps: those
    where an answer begins.

    mask: bool [T, B], False after a text's end.
    """
    first = jnp.argmax(decisions(timestep, mask), 0)
    return jnp.take_along_axis(value, first[None], 0)[0]


@loss(PART, unit=SEQUENCE)
def value_loss(net: Net, x: Minibatch) -> LossOutput:
    """Compute the squared error of the value of each prompt, given the return of an answer."""
    sample, mask = x.x, x.mask
    assert mask is not None
    value = value_of_prompt(unroll(net.critic, net, sample.timestep)[1], sample.timestep, mask)
    error = losses.squared_error(value, sample.advantage[0])
    return LossOutput(error, {"mean_value": value})


def recipe(env: Environment, config: Config) -> Recipe:
    def prepare(net: Net, batch: Batch, x: Sample) -> Sample:
        returns = jnp.broadcast_to(returns_of(batch), batch.transitions.reward.shape)
        return Sample(x.timestep, x.action, advantage=returns)

    plain = on_episodes(env, config, (value_loss,), prepare)
    policy = plain.parts["actor_critic"]
    critic = Part(policy.network, policy.inputs, config.optimizer)
    return dataclasses.replace(plain, parts={**plain.parts, PART: critic}, adopt=copy_policy(PART))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `answers.check`, and for an entropy bonus, as no policy is learned."""
    answers.check(env, config, name, SEQUENCE)
    settings.refuse(config, ("entropy_weight",), f"{name} has no entropy bonus")


a_lol_value = AlgorithmBuilder("a_lol_value", Config, recipe, check=check)

TINY = SMALL_GROUPS
