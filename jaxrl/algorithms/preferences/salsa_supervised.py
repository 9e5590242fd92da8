"""Two policies that are fine-tuned independently from the same one, for `salsa` (Chegini et al.,
2024, "SALSA: Soup-based Alignment Learning for Stronger Adaptation in RLHF", arXiv:2411.01798):
each learns by likelihood from its own half of every batch of texts.

Both begin alike, warm-started from the policy to fine-tune, or with the same new weights: the mean
of the parameters of networks that began apart is no policy. The first one acts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxrl import losses
from jaxrl.algorithms.preferences.shared.pairs import begin_as
from jaxrl.algorithms.tokens.shared import texts
from jaxrl.algorithms.tokens.shared.answers import Sample, unroll
from jaxrl.algorithms.tokens.shared.settings import SMALL_SUMS
from jaxrl.algorithms.tokens.shared.texts import on_texts
from jaxrl.algorithms.tokens.token_supervised import Config as SupervisedConfig
from jaxrl.algorithms.tokens.token_supervised import cloning_loss
from jaxrl.core.errors import UserError
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Part, Recipe, group, loss
from jaxrl.networks.heads import log_prob_and_entropy

SECOND = "second"  # the part that is the other policy


@group
class Config(SupervisedConfig):
    """Settings of two policies that are fine-tuned independently: cross-entropy with the tokens of
    texts, half of each batch for each policy (arXiv:2411.01798)."""


@loss(SECOND)
def second_loss(net: Net, x: Sample) -> LossOutput:
    """Compute the second policy's cross-entropy with the texts' tokens, less an entropy bonus."""
    policy, _ = unroll(net.second, net, x.timestep)
    log_prob, entropy = log_prob_and_entropy(policy, x.action)
    policy_loss = losses.behavior_cloning(log_prob)
    metrics = {"second_policy_loss": policy_loss}
    return LossOutput(policy_loss - net.hyper.entropy_weight * entropy, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    first, second = (on_texts(env, config, own) for own in (cloning_loss, second_loss))
    policy = first.parts["actor_critic"]
    other = Part(policy.network, policy.inputs, config.optimizer, begins_as="actor_critic")

    def update(net: Net, batch: Batch) -> Net:
        for k, plain in enumerate((first, second)):
            own = lambda x, k=k: x[:, k::2]
            transitions, mask = jax.tree.map(own, (batch.transitions, batch.mask))
            weight = None if batch.weight is None else own(batch.weight)
            half = Batch(transitions, batch.env_steps, mask=mask, weight=weight)
            net = plain.update(net, half)
        return net

    return dataclasses.replace(
        first,
        parts={**first.parts, SECOND: other},
        losses=(cloning_loss, second_loss),
        update=update,
        adopt=begin_as("actor_critic"),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `texts.check` for half a batch, and for texts that do not divide into
    halves in every shard."""
    own = config.texts
    if own.num_envs % (2 * own.num_shards):
        raise UserError(
            f"texts.num_envs is {own.num_envs}; {name} gives half of each batch to each policy, so "
            f"it must be a multiple of {2 * own.num_shards}, twice the number of shards."
        )
    half = dataclasses.replace(own, num_envs=own.num_envs // 2)
    texts.check(env, dataclasses.replace(config, texts=half), name)


salsa_supervised = AlgorithmBuilder("salsa_supervised", Config, recipe, check=check)

TINY = SMALL_SUMS | {"num_envs": 16, "num_shards": 4}
