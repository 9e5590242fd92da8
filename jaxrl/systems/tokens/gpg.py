"""GPG (Chu et al., 2025, "GPG: a simple and strong reinforcement learning baseline for model
reasoning", arXiv:2504.02546): the policy gradient, with a group's mean as the baseline, rescaled so
that groups without signal do not dilute; the mean over all tokens (equation 5). The paper has no
penalty for leaving a reference."""

from __future__ import annotations

from jaxrl import losses
from jaxrl.kit import System, group
from jaxrl.systems.tokens.recipe import by_groups, check, penalized, policy_gradient
from jaxrl.systems.tokens.settings import SMALL_GROUPS, Grouped, Penalty


@group
class Config(Grouped):
    """Settings of GPG."""

    kl: Penalty = Penalty()


gpg = System(
    "gpg", Config, by_groups(losses.gpg_advantage, penalized(policy_gradient)), check=check
)

TINY = SMALL_GROUPS
