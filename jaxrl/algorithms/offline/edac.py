"""EDAC (An, Moon, Kim and Song, 2021, "Uncertainty-based offline reinforcement learning with
diversified Q-ensemble", arXiv:2110.01548, section 4): SAC-N whose critics must also differ in the
direction in which their values of the data's actions rise. Around the data some critic then always
falls, whatever the direction, so that the minimum of fewer critics is cautious enough.

The order of updates is SAC's (the policy's first in the authors' code). With a `diversity` of 0
this is SAC-N.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import sac
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.algorithms.continuous_control.shared.hooks import scaled_reward
from jaxrl.algorithms.offline import sac_n
from jaxrl.algorithms.offline.shared import soft_offline
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper
from jaxrl.networks.heads import scale


@group
class Config(sac_n.Config):
    """Settings of EDAC: SAC-N with a penalty on critics that agree where values rise
    (arXiv:2110.01548)."""

    diversity: float = hyper(0.5, low=0)
    """Weight of the penalty, half of the paper's eta (1 by default in CORL's implementation), since
    the squared errors beside it are halved here and not there."""


def recipe(env: Environment, config: Config) -> Recipe:
    half_width = scale(env.action_space)[1]  # type: ignore[arg-type]

    def agreement(net, x):
        """Compute how much the critics agree on the direction in which the values of the data's
        actions rise: the cosines of their gradients by actions in half-widths."""

        def slope(direction: Array) -> Array:  # [B, E]
            along = jnp.broadcast_to(direction, x.action.shape).astype(x.action.dtype)
            return jax.jvp(lambda a: net.critic(x.timestep, a), (x.action,), (along,))[1]

        directions = jnp.eye(half_width.size).reshape(-1, *half_width.shape) * half_width
        penalty = losses.gradient_diversity(jax.vmap(slope, out_axes=-2)(directions))
        return LossOutput(net.hyper.diversity * penalty, {"agreement": penalty})

    return sac.recipe(env, config, reward=scaled_reward, critic_terms=(agreement,))


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box, and for a single critic."""
    soft.check(env, config, name)
    if config.num_critics < 2:
        raise UserError(
            f"num_critics is {config.num_critics}; {name} compares critics, so it needs at least 2."
        )


edac = AlgorithmBuilder("edac", Config, recipe, check=check)

TINY = soft_offline.TINY | {"num_critics": 3}
