"""RLOO (Ahmadian et al., 2024, "Back to basics: revisiting REINFORCE style optimization",
arXiv:2402.14740): the policy gradient, with the mean of a group's other answers as the baseline. A
whole answer is one action: its log-probability is the sum of its tokens'. The divergence penalty is
subtracted from its reward (section 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import check, judge_by_groups, on_answers
from jaxrl.algorithms.tokens.shared.policy_gradient import policy_gradient_loss
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, WholeAnswers
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Recipe, group


@group
class Config(WholeAnswers):
    """Settings of RLOO: the policy gradient of whole answers with a leave-one-out baseline
    (arXiv:2402.14740)."""


def recipe(env: Environment, config: Config) -> Recipe:
    judge = judge_by_groups(losses.leave_one_out, config.groups.answers)
    return on_answers(env, config, judge, (policy_gradient_loss,), kl_in_reward=True)


rloo = AlgorithmBuilder("rloo", Config, recipe, check=check)

TINY = SMALL_GROUPS
