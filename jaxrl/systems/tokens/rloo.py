"""RLOO (Ahmadian et al., 2024, "Back to basics: revisiting REINFORCE style optimization",
arXiv:2402.14740): the policy gradient, with the mean of a group's other answers as the baseline."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.core.settings import group
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import TINY_GROUPS, Grouped, by_groups, check, policy_gradient


@group
class Config(Grouped):
    """Settings of RLOO."""


rloo = System("rloo", Config, by_groups(losses.leave_one_out, policy_gradient), check=check)

TINY = TINY_GROUPS
