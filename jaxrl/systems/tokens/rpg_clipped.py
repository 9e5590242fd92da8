"""RPG with PPO's clip (Zhang et al., 2025, arXiv:2505.17508): the divergence from the reference is
part of the advantage, so that the clip holds for both together."""

from __future__ import annotations

from typing import Any

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.core.types import Array
from jaxrl.kit.groups import INF
from jaxrl.kit.net import Net
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import TINY_GROUPS, Groups, Sample, Tokens, by_groups, check
from jaxrl.systems.tokens.rpg import Divergence


@group
class Config(Tokens):
    """Settings of RPG with PPO's clip."""

    groups: Groups = Groups()
    kl: Divergence = Divergence()
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""


def token_loss(net: Net, config: Any, log_prob: Array, x: Sample) -> Array:
    kl, h = config.kl, net.hyper
    advantage = losses.rpg_advantage(
        log_prob, x.reference, x.advantage, h.kl.weight, kl.direction, kl.normalized
    )
    return losses.clipped_surrogate(log_prob, x.log_prob, advantage, h.clip)


rpg_clipped = System(
    "rpg_clipped", Config, by_groups(losses.leave_one_out, token_loss), check=check
)

TINY = TINY_GROUPS
