"""REINFORCE (Williams, 1992) for tokens: the policy gradient with returns of whole answers,
without a baseline. As in Ahmadian et al., 2024, arXiv:2402.14740, a whole answer is one action: its
log-probability is the sum of its tokens', and the divergence penalty is subtracted from its
reward."""

from __future__ import annotations

from jaxrl.algorithms.tokens.shared.answers import check, judge_by_groups, on_answers
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, WholeAnswers
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(WholeAnswers):
    """Settings of REINFORCE for tokens: the policy gradient of whole answers, without a baseline
    (Williams, 1992)."""


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(lambda returns: returns, config.groups.answers)
    return on_answers(env, config, judge, (policy_gradient_loss,), kl_in_reward=True)


token_reinforce = AlgorithmBuilder("token_reinforce", Config, recipe, check=check)

TINY = SMALL_GROUPS
