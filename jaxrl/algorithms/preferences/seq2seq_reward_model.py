"""Reward model of Zhou et al., 2024, "Sequence to Sequence Reward Modeling: Improving RLHF by
Language Feedback", arXiv:2409.00162: instead of a score, it learns to write the preferred answer
of a pair, by the likelihood of its tokens: after it has read the rejected one (correction mapping),
and after the preferred one itself (identity mapping). What it would write differently is then the
feedback that `seq2seq_rm` learns from.

The policy that training begins with writes the pairs and stays as it is, as in `reward_model`. The
paper's model is a language model; here it is a small network of a policy's kind, with new weights,
that reads the text and goes on with an answer. Both mappings have the same weight, which was not
confirmed, and the mean is over tokens.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.correctors import (
    correct,
    corrector_of,
    corrector_part,
    given_texts,
)
from jaxrl.algorithms.preferences.shared.pairs import PAIR, keep_part
from jaxrl.algorithms.preferences.shared.reward_models import PART, network_of, reading_of
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, LabeledPairs, PairPolicy
from jaxrl.algorithms.tokens.shared.answers import token_scores
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Batch, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Minibatch, Net, Part, Recipe, group, loss
from jaxrl.kit.groups import Optimizer


@group
class Config(PairPolicy):
    """Settings of a reward model that writes the better answer of a pair (arXiv:2409.00162)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=1.0)
    """Optimizer settings of the reward model. (Small networks need larger steps; the paper's were
    not confirmed.)"""
    pairs: LabeledPairs = LabeledPairs()


@loss(PART, name="loss", unit=PAIR)
def correction_loss(net: Net, x: Minibatch) -> LossOutput:
    """Return the mean cross-entropy with the preferred answer's tokens, [n], after each answer."""
    assert x.mask is not None
    size = net.network(PART).action_space.n
    given = given_texts(x.x, x.mask, size)
    preferred = lambda y: jnp.repeat(y[..., ::2], 2, -1)
    answer, count = preferred(given.answer), preferred(given.count)
    policy = correct(net, given, answer)
    written = jnp.arange(len(answer))[:, None] < count
    log_prob = losses.sequence_log_prob(policy.log_prob(answer), written, normalize=True)
    agrees = losses.sequence_log_prob(policy.mode() == answer, written, normalize=True)
    identity, correction = -log_prob[::2], -log_prob[1::2]
    metrics = {
        "identity_loss": identity,
        "correction_loss": correction,
        "identity_accuracy": agrees[::2],
        "correction_accuracy": agrees[1::2],
    }
    return LossOutput((identity + correction) / 2, metrics)


def recipe(env: Environment, config: Config) -> Recipe:
    network = network_of(env, config)
    inputs = example_timestep(env), network.initial(1)

    def update(net: Net, batch: Batch) -> Net:
        step = lambda net, some: net.descend(correction_loss, some)
        window = Minibatch(reading_of(batch), batch.mask)
        return net.epochs(config.passes, window, step, unit=PAIR)

    return Recipe(
        parts={
            "actor_critic": Part(network, inputs),
            PART: corrector_part(env, config, config.optimizer),
        },
        act=sample_and_record(),
        losses=(correction_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=keep_part(PART),
        scores=token_scores(env),
    )


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `pairs.check`, and for an environment without texts of tokens."""
    pairs.check(env, config, name)
    corrector_of(env, config)


seq2seq_reward_model = AlgorithmBuilder("seq2seq_reward_model", Config, recipe, check=check)

TINY = SMALL_PAIRS | {"flipped": 0.25}
