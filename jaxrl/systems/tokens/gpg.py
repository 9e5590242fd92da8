"""GPG (Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
reasoning", arXiv:2504.02546): the policy gradient, with a group's mean as the baseline, rescaled so
that groups without signal do not dilute. The paper has no penalty for leaving a reference."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.core.settings import group
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import TINY_GROUPS, Grouped, by_groups, check, policy_gradient


@group
class Config(Grouped):
    """Settings of GPG."""


gpg = System("gpg", Config, by_groups(losses.gpg_advantage, policy_gradient), check=check)

TINY = TINY_GROUPS
