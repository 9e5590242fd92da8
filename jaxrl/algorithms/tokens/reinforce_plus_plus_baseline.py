"""REINFORCE++ with a baseline (Hu et al., 2025, arXiv:2501.03262): the advantage of an answer is
its return less its group's mean, standardized over all tokens of the batch instead of the group, so
that groups of nearly equal returns weigh little. The divergence from the reference is a penalty of
the loss, estimated by k2."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import (
    Judge,
    Sample,
    check,
    check_groups,
    divergence,
    evaluate,
    on_answers,
    token_output,
)
from jaxrl.algorithms.tokens.shared.settings import KL_ESTIMATES, SMALL_GROUPS, Clipped, Penalty
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Net, Recipe, group, loss, static


@group
class Squared(Penalty):
    """Penalty on the KL divergence from the reference policy, half the square of the log-ratio."""

    estimate: str = static("k2", choices=KL_ESTIMATES)
    """Estimator of the KL divergence: k3 (GRPO's), or k2, whose gradient is unbiased."""


@group
class Config(Clipped):
    """Settings of REINFORCE++ with a baseline: group means, standardized over the batch
    (arXiv:2501.03262)."""

    kl: Squared = Squared()


def judge_in_batch(answers: int) -> Judge:
    """Return a function that compares each answer with its group, in deviations of the batch."""
    check_groups(answers)

    def judge(net, batch):
        reward = batch.transitions.reward
        groups = reward.sum(0).reshape(-1, answers)
        each = losses.group_relative(groups, normalize=False).reshape(-1)
        each = jnp.broadcast_to(each, reward.shape)
        return {"advantage": losses.standardize(each, batch.mask)}

    return judge


def recipe(env: Environment, config: Config) -> Recipe:
    @loss("actor_critic", name="loss")
    def surrogate_loss(net: Net, x: Sample) -> LossOutput:
        """Compute the clipped surrogate plus the divergence penalty of each token."""
        now, h = evaluate(net, x), net.hyper
        surrogate = losses.clipped_surrogate(now.log_prob, x.log_prob, x.advantage, h.clip)
        penalty = divergence(config.kl.estimate, now, x)
        return token_output(net, x, now, surrogate + h.kl.weight * penalty)

    judge = judge_in_batch(config.groups.answers)
    return on_answers(env, config, judge, (surrogate_loss,))


reinforce_plus_plus_baseline = AlgorithmBuilder(
    "reinforce_plus_plus_baseline", Config, recipe, check=check
)

TINY = SMALL_GROUPS
