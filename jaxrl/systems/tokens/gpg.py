"""GPG (Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
reasoning", arXiv:2504.02546): the policy gradient, with a group's mean as the baseline, rescaled so
that groups without signal do not dilute. The paper has no penalty for leaving a reference."""

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
    """Settings of GPG."""

    groups: Groups = Groups()
    kl: Penalty = Penalty()


def recipe(env: Environment, config: Config) -> Recipe:
    judge = in_groups(losses.gpg_advantage, config.groups.answers)
    return on_answers(env, config, judge, of_tokens(penalized(policy_gradient, config.kl.estimate)))


gpg = System("gpg", Config, recipe, source, check=check)
