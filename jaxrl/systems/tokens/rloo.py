"""RLOO (Ahmadian et al., 2024, "Back to basics: revisiting REINFORCE style optimization",
arXiv:2402.14740): the policy gradient, with the mean of a group's other answers as the baseline. A
whole answer is one action: its log-probability is the sum of its tokens'. What leaving a reference
costs is taken off its reward (section 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.kit import System
from jaxrl.systems.tokens.recipe import by_groups, check, policy_gradient
from jaxrl.systems.tokens.settings import SMALL_GROUPS
from jaxrl.systems.tokens.token_reinforce import Config

rloo = System(
    "rloo",
    Config,
    by_groups(losses.leave_one_out, policy_gradient, kl_in_reward=True),
    check=check,
)

TINY = SMALL_GROUPS
