"""OPO (Hao et al., 2025, "On-policy RL with optimal reward baseline", arXiv:2505.23585): the policy
gradient of whole answers on exactly one gradient step per batch, with the mean return of the group
by the answers' lengths as the baseline, which has the least variance if the gradients of tokens are
orthogonal and equally long. No divergence, no clip."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import Judge, check, check_groups, on_answers
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL_GROUPS, Grouped
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static


@group
class Config(Grouped):
    """Settings of OPO: the policy gradient with the baseline of least variance
    (arXiv:2505.23585)."""

    average: str = static("constant", choices=AVERAGES)
    """Averaging of token losses: sequence, token, or constant, which sums tokens up to a factor to
    which Adam is invariant."""


def judge_by_length(answers: int) -> Judge:
    """Return a function that compares each answer with its group's mean by length."""
    check_groups(answers)

    def judge(net, batch):
        reward = batch.transitions.reward
        by_group = lambda x: x.sum(0).reshape(-1, answers)
        each = losses.optimal_baseline(by_group(reward), by_group(batch.mask)).reshape(-1)
        return {"advantage": jnp.broadcast_to(each, reward.shape)}

    return judge


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_length(config.groups.answers)
    return on_answers(env, config, judge, (policy_gradient_loss,))


opo = AlgorithmBuilder("opo", Config, recipe, check=check)

TINY = SMALL_GROUPS
