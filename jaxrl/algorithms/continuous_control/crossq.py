"""CrossQ (Bhatt et al., 2024, "CrossQ: batch normalization in deep reinforcement learning for
greater sample efficiency and simplicity", arXiv:1902.05605): SAC without target networks, whose
wide critics have batch normalization over (s, a) and (s', a') together.

The normalization is batch renormalization with a warm-up, as in the authors' code. Unlike
there, the temperature's Adam has a short memory too (beta1 0.9 there), and in the warm-up of the
replay buffer the initial policy acts (there random actions).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import soft
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, loss, static
from jaxrl.kit.groups import Optimizer, Replay, Torso
from jaxrl.networks.normalization import BatchRenorm


@group
class Config(soft.Soft):
    """Settings of CrossQ: SAC with batch normalization instead of target networks
    (arXiv:1902.05605). The defaults are those of the authors' code, except for the replay's
    capacity, a million there."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=256, warmup=5000)
    critic: Torso = Torso(hidden=(2048, 2048))
    """Hidden layers of each critic."""
    optimizer: Optimizer = Optimizer(learning_rate=1e-3, beta1=0.5)
    """Optimizer settings of actor, critics and temperature, separately. Adam, 1e-3, with a short
    memory."""
    delay: int = static(3, low=1)
    """Number of critic updates per update of policy and temperature."""
    momentum: float = static(0.99, low=0, below=1)
    """Fraction of the running moments that is kept after each batch."""
    renormalized_after: int = static(100_000, low=0)
    """Number of batches before a network's normalization uses its running moments too."""


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    normalization = functools.partial(BatchRenorm, config.momentum, config.renormalized_after)
    sample = soft.sample_in_half_widths(space)

    @loss("critic")
    def critic_loss(net, x):
        """Regress on SAC's target without target networks, in one batch of both steps, so that its
        moments are those of both (figure 3)."""
        next_action, log_prob = sample(net.actor(x.next_timestep), net.key())
        now, after = (x.timestep, x.action), (x.next_timestep, next_action)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), now, after)
        values, state = net.critic(*both, train=True, mutable="batch_stats")
        q, next_q = jnp.split(values, 2)
        target = losses.sac_target(
            x.reward, x.terminated, net.hyper.discount, next_q, log_prob, net.temperature()
        )
        error = losses.squared_error(q, target[..., None]).sum(-1)
        return LossOutput(error, {"value": q.mean(-1)}, state={"critic": state})

    @loss("actor")
    def actor_loss(net, x):
        """Compute SAC's policy loss with batch normalization."""
        policy, state = net.actor(x.timestep, train=True, mutable="batch_stats")
        action, log_prob = sample(policy, net.key())
        error = losses.sac_actor(log_prob, net.critic(x.timestep, action), net.temperature())
        return LossOutput(error, {"entropy": -log_prob}, aux=log_prob, state={"actor": state})

    return soft.soft_actor_critic(
        env,
        soft.actor_network(env, config.torso, normalization),
        soft.critic_network(env, config.critic, config.num_critics, normalization=normalization),
        config.optimizer,
        None,
        (critic_loss, actor_loss, soft.temperature_loss(space, actor_loss)),
        config.delay,
        fixed_temperature=config.fixed_temperature,
    )


crossq = AlgorithmBuilder("crossq", Config, recipe, check=soft.check)

TINY = soft.TINY | {
    "torso.hidden": (8,),
    "critic.hidden": (6,),
    "updates": 3,
    "delay": 2,
    "renormalized_after": 2,
}
