"""Truncated quantile critics (Kuznetsov, Shvechikov, Grishin and Vetrov, 2020, "Controlling
overestimation bias with truncated mixture of continuous distributional quantile critics",
arXiv:2005.04269): SAC whose critics predict quantiles of the return, pool those of the next action,
and leave out the largest.

Errors of the critics are added up (averaged in the authors' code), and the temperature's loss is
SAC's (of its logarithm there).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac as sac_
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.kit import Net, Recipe, group, static
from jaxrl.kit.groups import Torso


@group
class Config(sac_.Config):
    """Settings of TQC. The defaults are those of the authors' code (PyTorch), but for the replay's
    capacity and warm-up, a million and 256 there."""

    critic: Torso = Torso(hidden=(512, 512, 512))
    """Of each critic."""
    num_critics: int = static(5, low=1)
    """N, of the ensemble."""
    num_quantiles: int = static(25, low=1)
    """M, that each critic predicts."""
    dropped: int = static(2, low=0)
    """Of the largest in the pool, for each critic. The authors' README has 2 for most environments,
    5 for Hopper and 0 for HalfCheetah."""


def recipe(env: Environment, config: Config) -> Recipe:
    quantiles = config.num_quantiles
    kept = (quantiles - config.dropped) * config.num_critics
    fractions = (jnp.arange(quantiles) + 0.5) / quantiles

    def target(net: Net, x: Transition, next_z: Array, log_prob: Array) -> Array:
        """r + gamma (z - alpha log pi(a'|s')), z the least of the pool."""
        pool = jnp.sort(next_z.reshape(*next_z.shape[:-2], -1))[..., :kept]
        soft = pool - net.temperature() * log_prob[..., None]
        return losses.td_target(
            x.reward[..., None], x.terminated[..., None], net.hyper.discount, soft
        )

    def error(z: Array, target: Array) -> Array:
        """Quantile regression with Huber's error, of each critic."""
        rows = jnp.moveaxis(z, -1, -2)
        return losses.quantile_huber(rows, fractions, target[..., None, :]).sum(-1) / quantiles

    opinions = lambda z: z.mean((-2, -1))[..., None]
    critics = sac_.Critics(quantiles, target=target, error=error, opinions=opinions)
    return sac_.recipe(env, config, critics, torso=config.critic)


def check(env: Environment, config: Any, name: str) -> None:
    """Raises `UserError` as SAC does, and where no quantile is left."""
    sac_.check(env, config, name)
    if config.dropped >= config.num_quantiles:
        raise UserError(
            f"dropped is {config.dropped}; it must be less than "
            f"num_quantiles={config.num_quantiles}."
        )


tqc = dataclasses.replace(sac_.sac, name="tqc", Config=Config, recipe=recipe, check=check)

TINY = {n: v for n, v in sac_.TINY.items() if n != "hidden"} | {
    "torso.hidden": (8,),
    "critic.hidden": (6,),
    "num_critics": 3,
    "num_quantiles": 4,
    "dropped": 1,
}
