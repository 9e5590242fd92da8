"""GRPO (Shao et al., 2024, "DeepSeekMath", arXiv:2402.03300): answers are judged by their group, in
standard deviations; tokens learn PPO's clipped surrogate and a penalty for leaving a reference
policy (equation 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit.groups import INF
from jaxrl.kit.learner import Recipe
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import (
    Groups,
    Penalty,
    Tokens,
    check,
    clipped,
    in_groups,
    of_tokens,
    on_answers,
    penalized,
    source,
)


@group
class Config(Tokens):
    """Settings of GRPO."""

    groups: Groups = Groups()
    kl: Penalty = Penalty()
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""


def recipe(env: Environment, config: Config) -> Recipe:
    judge = in_groups(losses.group_relative, config.groups.answers)
    return on_answers(env, config, judge, of_tokens(penalized(clipped, config.kl.estimate)))


grpo = System("grpo", Config, recipe, source, check=check)
