"""RPG (Zhang et al., 2025, "On the design of KL-regularized policy gradient algorithms for LLM
reasoning", arXiv:2505.17508): losses with the exact gradient of reward less a KL divergence from a
reference, from the samples of the policy that acted. Answers are judged as RLOO does; the mean is
over all tokens, as in the published code."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.recipe import Sample, by_groups, check
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, Divergence, Grouped
from jaxrl.core.types import Array
from jaxrl.kit import AlgorithmBuilder, Net, group, static
from jaxrl.kit.groups import Optimizer


@group
class Direction(Divergence):
    """The KL divergence from the reference policy, in RPG's forms."""

    direction: str = static("reverse", choices=("forward", "reverse"))
    """forward, KL(reference || policy), or reverse."""
    normalized: bool = False
    """False for the divergence of measures that need not sum to 1, whose estimate is k3."""


@group
class Config(Grouped):
    """Settings of RPG."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """AdamW: appendix H, without the warm-up of 10 steps."""
    kl: Direction = Direction()
    reinforce: bool = False
    """The losses in REINFORCE's style, with the same gradient."""


def token_loss(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    return losses.rpg(
        log_prob,
        x.log_prob,
        x.reference,
        x.advantage,
        net.hyper.kl.weight,
        config.kl.direction,
        config.kl.normalized,
        config.reinforce,
    )


rpg = AlgorithmBuilder("rpg", Config, by_groups(losses.leave_one_out, token_loss), check=check)

TINY = SMALL_GROUPS
