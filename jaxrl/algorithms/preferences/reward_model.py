"""Reward model of Ouyang et al., 2022, "Training language models to follow instructions with human
feedback", arXiv:2203.02155 (equation 1): a network learns to score answers from pairs of which a
judge preferred one, by the Bradley-Terry loss. The policy that training begins with writes the
pairs and stays as it is.

With several `members` it is the ensemble of Coste et al., 2024 (arXiv:2310.02743), whose members
differ by their first weights.

Pairs do not say by how much all answers to a prompt are worth more, so squared sums of a pair's
scores are added to the loss, which keeps scores around 0 and those of several members comparable
(Eisenstein et al., 2023, "Helping or herding?", arXiv:2312.09244, as in TRL). There are only two
answers to a prompt here; the paper compares all of up to nine.

Algorithms that learn from the scores go on from a run of this one; see
`preferences/shared/reward_models.py`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.algorithms.preferences.shared import pairs
from jaxrl.algorithms.preferences.shared.measures import (
    all_answers,
    is_small,
    leads,
    log_probs,
    pair_agreement,
)
from jaxrl.algorithms.preferences.shared.pairs import PAIR, keep_part
from jaxrl.algorithms.preferences.shared.reward_models import (
    PART,
    RewardModel,
    check_reads,
    network_of,
    reading_of,
    reward_network_of,
    score_answers,
    score_tokens,
)
from jaxrl.algorithms.preferences.shared.settings import SMALL_PAIRS, LabeledPairs, PairPolicy
from jaxrl.algorithms.tokens.shared.answers import token_scores as policy_scores
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
    """Settings of a reward model: scores of answers, learned from pairs by the Bradley-Terry loss
    (arXiv:2203.02155, equation 1)."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-5, max_grad_norm=2.0, beta2=0.95)
    """Optimizer settings of each member. Those of Coste et al.'s code; Ouyang et al. have 9e-6.
    (Small networks need larger steps.)"""
    pairs: LabeledPairs = LabeledPairs()
    reward: RewardModel = RewardModel()
    label_smoothing: float = hyper(0.0, low=0, high=0.5)
    """Probability that a label is wrong, as the loss assumes."""
    centering: float = hyper(0.01, low=0)
    """Weight of the squared sum of a pair's scores. 0.01: TRL's advice."""


def recipe(env: Environment, config: Config) -> Recipe:
    network, scorer = network_of(env, config), reward_network_of(env, config)
    inputs = example_timestep(env), network.initial(1)
    dense = config.reward.dense

    @loss(PART, name="loss", unit=PAIR)
    def reward_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the sum over members of equation 1 and the penalty."""
        scores = score_tokens(net, x.x, x.mask, dense).sum(1)  # type: ignore[arg-type]
        chosen, rejected = scores[:, ::2], scores[:, 1::2]
        own = losses.bradley_terry(chosen, rejected, label_smoothing=net.hyper.label_smoothing)
        penalty = net.hyper.centering * jnp.square(chosen + rejected)
        metrics = {
            "bradley_terry": own.mean(0),
            "accuracy": 0.5 * (1 + jnp.sign(chosen - rejected)).mean(0),
            "margin": (chosen - rejected).mean(0),
            "disagreement": (chosen - rejected).std(0),
        }
        return LossOutput((own + penalty).sum(0), metrics)

    def update(net: Net, batch: Batch) -> Net:
        step = lambda net, some: net.descend(reward_loss, some)
        return net.epochs(config.passes, Minibatch(reading_of(batch), batch.mask), step, unit=PAIR)

    own = {"reward_error": "error of the score", "exact_accuracy": "accuracy of pairs"}
    return Recipe(
        parts={
            "actor_critic": Part(network, inputs),
            PART: Part(scorer, inputs, config.optimizer, members=config.reward.members),
        },
        act=sample_and_record(),
        losses=(reward_loss,),
        update=update,
        memory=network.initial,
        needs=("mask",),
        adopt=keep_part(PART),
        scores={**policy_scores(env), **(own if is_small(env) else {})},
    )


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return exact measures of a reward model in a small environment, means over prompts and
    members; nothing where answers are too many.

    - `reward_error`: root mean squared difference of score and reward over the answers of the
      policy, up to a constant for each prompt.
    - `exact_accuracy`: probability that the better of two answers of the policy has the higher
      score; 1/2 where rewards or scores are equal.
    """
    if not is_small(env):
        return {}
    found, parts = all_answers(env), policy.state.parts
    share = jnp.exp(log_probs(env, config, parts["actor_critic"].params))
    scores = score_answers(env, config, parts, found)
    error = scores - found.reward
    error = error - (share * error).sum(-1, keepdims=True)
    return {
        "reward_error": jnp.sqrt((share * error**2).sum(-1)).mean(),
        "exact_accuracy": pair_agreement(leads(scores), leads(found.reward), share).mean(),
    }


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` as `pairs.check`, and for features that `env` does not say."""
    pairs.check(env, config, name)
    check_reads(env, config, name)


reward_model = AlgorithmBuilder("reward_model", Config, recipe, check=check, measure=measure)

TINY = SMALL_PAIRS | {"members": 2, "dense": True, "flipped": 0.25}
