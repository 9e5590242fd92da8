"""RLOO (Ahmadian et al., 2024, "Back to basics: revisiting REINFORCE style optimization",
arXiv:2402.14740): the policy gradient, with the mean of a group's other answers as the baseline."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit.learner import Recipe
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import (
    Groups,
    Penalty,
    Tokens,
    check,
    in_groups,
    of_tokens,
    on_answers,
    penalized,
    policy_gradient,
    source,
)


@group
class Config(Tokens):
    """Settings of RLOO."""

    groups: Groups = Groups()
    kl: Penalty = Penalty()


def recipe(env: Environment, config: Config) -> Recipe:
    judge = in_groups(losses.leave_one_out, config.groups.answers)
    return on_answers(env, config, judge, of_tokens(penalized(policy_gradient, config.kl.estimate)))


rloo = System("rloo", Config, recipe, source, check=check)
