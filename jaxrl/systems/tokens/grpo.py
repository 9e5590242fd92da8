"""GRPO (Shao et al., 2024, "DeepSeekMath", arXiv:2402.03300): answers are judged by their group, in
standard deviations; tokens learn PPO's clipped surrogate and a penalty for leaving a reference
policy (equation 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.kit.groups import INF
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import TINY_GROUPS, Grouped, by_groups, check, clipped


@group
class Config(Grouped):
    """Settings of GRPO."""

    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""


grpo = System("grpo", Config, by_groups(losses.group_relative, clipped), check=check)

TINY = TINY_GROUPS
