"""RPG with PPO's clip (Zhang et al., 2025, arXiv:2505.17508): the divergence from the reference is
part of the advantage, so that the clip, which is DAPO's (section 5), holds for both together. Their
second bound on the loss of bad answers (dual clip) is not here."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.rpg import Direction
from jaxrl.algorithms.tokens.shared.recipe import Sample, by_groups, check, clipped_higher
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, ClippedHigher
from jaxrl.core.types import Array
from jaxrl.kit import AlgorithmBuilder, Net, group
from jaxrl.kit.groups import Optimizer


@group
class Config(ClippedHigher):
    """Settings of RPG with PPO's clip."""

    optimizer: Optimizer = Optimizer(learning_rate=1e-6, max_grad_norm=1.0, weight_decay=0.1)
    """AdamW: appendix H, without the warm-up of 10 steps."""
    kl: Direction = Direction()


def token_loss(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    kl, beta = config.kl, net.hyper.kl.weight
    advantage = losses.rpg_advantage(
        log_prob, x.reference, x.advantage, beta, kl.direction, kl.normalized
    )
    return clipped_higher(net, config, log_prob, dataclasses.replace(x, advantage=advantage))


rpg_clipped = AlgorithmBuilder(
    "rpg_clipped", Config, by_groups(losses.leave_one_out, token_loss), check=check
)

TINY = SMALL_GROUPS
