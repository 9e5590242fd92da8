"""REINFORCE (Williams, 1992) for tokens: the policy gradient by the returns of whole answers,
without a baseline. As in Ahmadian et al., 2024, arXiv:2402.14740, a whole answer is one action: its
log-probability is the sum of its tokens', and what leaving a reference costs is taken off its
reward."""

from __future__ import annotations

from jaxrl.algorithms.tokens.shared.recipe import by_groups, check, policy_gradient
from jaxrl.algorithms.tokens.shared.settings import AVERAGES, SMALL_GROUPS, Divergence, Grouped
from jaxrl.kit import AlgorithmBuilder, group, static


@group
class Config(Grouped):
    """Settings of policy gradients of whole answers."""

    kl: Divergence = Divergence()
    average: str = static("constant", choices=AVERAGES)
    """What counts alike: sequence, token, or constant, by which tokens are summed, up to a constant
    that Adam does not see."""


token_reinforce = AlgorithmBuilder(
    "token_reinforce",
    Config,
    by_groups(lambda returns: returns, policy_gradient, kl_in_reward=True),
    check=check,
)

TINY = SMALL_GROUPS
