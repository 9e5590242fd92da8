"""RPG with PPO's clip (Zhang et al., 2025, arXiv:2505.17508): the divergence from the reference is
part of the advantage, so that the clip holds for both together."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.core.hyper import hyper
from jaxrl.core.settings import group
from jaxrl.core.types import Environment
from jaxrl.kit.groups import INF
from jaxrl.kit.recipe import Recipe
from jaxrl.kit.system import System
from jaxrl.systems.tokens.recipe import (
    Groups,
    Tokens,
    check,
    clipped,
    in_groups,
    of_tokens,
    on_answers,
)
from jaxrl.systems.tokens.rpg import Divergence


@group
class Config(Tokens):
    """Settings of RPG with PPO's clip."""

    groups: Groups = Groups()
    kl: Divergence = Divergence()
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""


def recipe(env: Environment, config: Config) -> Recipe:
    direction: Any = config.kl.direction

    def token_loss(net, log_prob, x):
        advantage = losses.rpg_advantage(
            log_prob,
            x.reference,
            x.advantage,
            net.hyper.kl.weight,
            direction,
            config.kl.normalized,
        )
        return clipped(net, log_prob, dataclasses.replace(x, advantage=advantage))

    judge = in_groups(losses.leave_one_out, config.groups.answers)
    return on_answers(env, config, judge, of_tokens(token_loss))


rpg_clipped = System("rpg_clipped", Config, recipe, check=check)
