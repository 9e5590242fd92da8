"""Truncated quantile critics (Kuznetsov, Shvechikov, Grishin and Vetrov, 2020, "Controlling
overestimation bias with truncated mixture of continuous distributional quantile critics",
arXiv:2005.04269): SAC whose critics predict quantiles of the return, pool those of the next action,
and leave out the largest.

Losses of the critics are summed (averaged in the authors' code), and the temperature's loss is
SAC's (of its logarithm there).
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, loss, static
from jaxrl.kit.groups import StateDependentNoise, Target, Torso


@group
class Config(soft.Soft):
    """Settings of TQC: SAC whose target drops the largest quantiles of the critics
    (arXiv:2005.04269). The defaults are those of the authors' code (PyTorch), except for the
    replay's capacity and warm-up, a million and 256 there."""

    target: Target = Target(rate=0.005)
    gsde: StateDependentNoise = StateDependentNoise()
    critic: Torso = Torso(hidden=(512, 512, 512))
    """Hidden layers of each critic."""
    num_critics: int = static(5, low=1)
    """Number of critics, N."""
    num_quantiles: int = static(25, low=1)
    """Number of quantiles that each critic predicts, M."""
    dropped: int = static(2, low=0)
    """Number of largest quantiles per critic that are dropped from the pool. The authors' README
    has 2 for most environments, 5 for Hopper and 0 for HalfCheetah."""


def recipe(env: Environment, config: Config) -> Recipe:
    space, quantiles = env.action_space, config.num_quantiles
    kept = (quantiles - config.dropped) * config.num_critics
    fractions = (jnp.arange(quantiles) + 0.5) / quantiles
    sample = soft.sample_in_half_widths(space)

    @loss("critic")
    def critic_loss(net, x):
        """Regress each critic on r + gamma (z - alpha log pi(a'|s')), z the smallest quantiles of
        the pool, by quantile Huber regression."""
        next_action, log_prob = sample(net.actor(x.next_timestep), net.key())
        z = net.critic(x.timestep, x.action)
        next_z = net.target.critic(x.next_timestep, next_action)
        pool = jnp.sort(next_z.reshape(*next_z.shape[:-2], -1))[..., :kept]
        soft_z = pool - net.temperature() * log_prob[..., None]
        target = losses.td_target(
            x.reward[..., None], x.terminated[..., None], net.hyper.discount, soft_z
        )
        rows = jnp.moveaxis(z, -1, -2)
        error = losses.quantile_huber(rows, fractions, target[..., None, :]).sum(-1) / quantiles
        return LossOutput(error, {"value": z.reshape(len(z), -1).mean(-1)})

    # The policy maximizes the mean of all quantiles of all critics.
    actor_loss = soft.actor_loss(space, lambda z: z.mean((-2, -1))[..., None])
    return soft.soft_actor_critic(
        env,
        soft.actor_network(env, config.torso, noise=config.gsde),
        soft.critic_network(env, config.critic, config.num_critics, quantiles),
        config.optimizer,
        config.target,
        (critic_loss, actor_loss, soft.temperature_loss(space, actor_loss)),
        noise=config.gsde,
        fixed_temperature=config.fixed_temperature,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless actions are one bounded box and a quantile is left."""
    soft.check(env, config, name)
    if config.dropped >= config.num_quantiles:
        raise UserError(
            f"dropped is {config.dropped}; it must be less than "
            f"num_quantiles={config.num_quantiles}."
        )


tqc = AlgorithmBuilder("tqc", Config, recipe, check=check)

TINY = soft.TINY | {
    "torso.hidden": (8,),
    "critic.hidden": (6,),
    "num_critics": 3,
    "num_quantiles": 4,
    "dropped": 1,
}
