"""RLOO (Ahmadian et al., 2024, "Back to basics: revisiting REINFORCE style optimization",
arXiv:2402.14740): the policy gradient, with the mean of a group's other answers as the baseline. A
whole answer is one action: its log-probability is the sum of its tokens'. What leaving a reference
costs is taken off its reward (section 3)."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.recipe import by_groups, check, policy_gradient
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS
from jaxrl.algorithms.tokens.token_reinforce import Config
from jaxrl.kit import AlgorithmBuilder

rloo = AlgorithmBuilder(
    "rloo",
    Config,
    by_groups(losses.leave_one_out, policy_gradient, kl_in_reward=True),
    check=check,
)

TINY = SMALL_GROUPS
