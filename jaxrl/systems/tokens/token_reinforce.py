"""REINFORCE (Williams, 1992) for tokens: the policy gradient by the returns of whole answers,
without a baseline."""

from __future__ import annotations

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
    """Settings of REINFORCE for tokens."""

    groups: Groups = Groups()
    kl: Penalty = Penalty()


def recipe(env: Environment, config: Config) -> Recipe:
    judge = in_groups(lambda returns: returns, config.groups.answers)
    return on_answers(env, config, judge, of_tokens(penalized(policy_gradient, config.kl.estimate)))


token_reinforce = System("token_reinforce", Config, recipe, source, check=check)
