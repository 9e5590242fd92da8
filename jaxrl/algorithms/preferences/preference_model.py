"""Preference model of Zhang et al., 2024, "General preference modeling with preference
representations for aligning language models", arXiv:2410.02197 (GPM): a network embeds each answer,
and the probability that one is preferred to another is

    P(y > y') = sigmoid(sum_k a_k b'_k - b_k a'_k)

for embeddings (a_1, b_1, a_2, ...) of y and of y'. It learns from pairs of which a judge preferred
one, by the log-likelihood of the labels. Unlike a reward, which is one number for each answer
(`reward_model`), it can express preferences that go round; the two orders of a pair have
probabilities that add up to 1, whatever the weights. The policy that training begins with writes
the pairs and stays as it is.

In the published code embeddings have length 1, scores are divided by 0.1, and a head of the prompt
may scale the planes; here embeddings have any length, which absorbs all three. Algorithms that
learn from the model go on from a run of this one; see `preferences/shared/preference_models.py`.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import (
    all_answers,
    is_small,
    log_probs,
    pair_agreement,
)
from jaxrl.algorithms.preferences.shared.pairs import PAIR, keep_part
from jaxrl.algorithms.preferences.shared.preference_models import (
    PART,
    PreferenceModel,
    compare_answers,
    embed,
    network_of,
)
from jaxrl.algorithms.preferences.shared.reward_models import network_of as policy_of
from jaxrl.algorithms.preferences.shared.reward_models import reading_of
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, LabeledPairs, PairPolicy
from jaxrl.algorithms.tokens.shared.answers import token_scores
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Key, Policy
from jaxrl.kit import (
    AlgorithmBuilder,
    LossOutput,
    Minibatch,
    Net,
    Part,
    Recipe,
    group,
    hyper,
    loss,
)
from jaxrl.kit.groups import Optimizer


@group
class Config(PairPolicy):
    """Settings of a preference model: probabilities of which of two answers is preferred, learned
    from pairs (arXiv:2410.02197)."""

    optimizer: Optimizer = Optimizer(learning_rate=2e-6, max_grad_norm=1.0, beta2=0.95)
    """Optimizer settings: those of the published code. (Small networks need larger steps.)"""
    pairs: LabeledPairs = LabeledPairs()
    preference: PreferenceModel = PreferenceModel()
    label_smoothing: float = hyper(0.0, low=0, high=0.5)
    """Probability that a label is wrong, as the loss assumes."""


def recipe(env: Environment, config: Config) -> Recipe:
    network, policy = network_of(env, config), policy_of(env, config)
    inputs = example_timestep(env), network.initial(1)

    @loss(PART, name="loss", unit=PAIR)
    def preference_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the negative log-likelihood of the labels."""
        embedding = embed(net, x.x, x.mask)  # type: ignore[arg-type]
        score = losses.preference_score(embedding[::2], embedding[1::2])
        none, smoothing = jnp.zeros_like(score), net.hyper.label_smoothing
        value = losses.bradley_terry(score, none, label_smoothing=smoothing)
        return LossOutput(value, {"accuracy": 0.5 * (1 + jnp.sign(score)), "margin": score})

    def update(net: Net, batch: Batch) -> Net:
        step = lambda net, some: net.descend(preference_loss, some)
        return net.epochs(config.passes, Minibatch(reading_of(batch), batch.mask), step, unit=PAIR)

    own = {"preference_error": "error of the probability", "exact_accuracy": "accuracy of pairs"}
    return Recipe(
        parts={
            "actor_critic": Part(policy, inputs),
            PART: Part(network, inputs, config.optimizer),
        },
        act=sample_and_record(),
        losses=(preference_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=keep_part(PART),
        scores={**token_scores(env), **(own if is_small(env) else {})},
    )


def measure(env: Environment, config: Config, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures of a preference model in a small environment, means over prompts;
    nothing where answers are too many.

    - `preference_error`: root mean squared difference to the judge's probability over pairs of
      answers of the policy.
    - `exact_accuracy`: probability that the model prefers what the judge prefers of two answers of
      the policy; 1/2 where either prefers none.
    """
    if not is_small(env):
        return {}
    found, parts = all_answers(env), policy.state.parts
    assert found.preference is not None  # pairs need a judge
    one = jnp.exp(log_probs(env, config, parts["actor_critic"].params))
    share = one[:, :, None] * one[:, None]
    learned, gold = compare_answers(env, config, parts, found), found.preference
    return {
        "preference_error": jnp.sqrt((share * (learned - gold) ** 2).sum((-1, -2))).mean(),
        "exact_accuracy": pair_agreement(learned - 0.5, gold - 0.5, one).mean(),
    }


preference_model = AlgorithmBuilder(
    "preference_model", Config, recipe, check=pairs.check, measure=measure
)

TINY = SMALL_PAIRS | {"planes": 2, "flipped": 0.25}
