"""Deep deterministic policy gradient (Lillicrap et al., 2015, "Continuous control with deep
reinforcement learning", arXiv:1509.02971): Q-learning with a policy that maximizes Q in place of
the maximum over actions, slow target networks of both, and exploration by correlated noise.

Unlike in the paper, there is no batch normalization, critics see the action from their first layer
on, last layers are initialized like the others, and L2 decay is decoupled from the gradient (as in
AdamW). By default the replay buffer holds fewer than the paper's million transitions, and learning
starts after its warm-up.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Recipe, group, hyper, loss
from jaxrl.kit.acting import add_drifting_noise
from jaxrl.kit.groups import Optimizer, OrnsteinUhlenbeck, Replay, Target, Torso
from jaxrl.networks.heads import scale


@group
class Config(deterministic.Deterministic):
    """Settings of DDPG: Q-learning with a deterministic policy that maximizes Q (arXiv:1509.02971,
    algorithm 1)."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=64)
    """Replay buffer, with minibatches of 64: section 7 of the paper."""
    torso: Torso = Torso(hidden=(400, 300))
    """Hidden layers of actor and critic: section 7."""
    actor: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the actor. Adam, 1e-4: section 7."""
    critic: Optimizer = Optimizer(learning_rate=1e-3, weight_decay=1e-2)
    """Optimizer settings of the critic. Adam, 1e-3, and an L2 decay of 1e-2: section 7."""
    target: Target = Target(rate=0.001)
    """Target networks of actor and critic. Tau 0.001: section 7."""
    noise: OrnsteinUhlenbeck = OrnsteinUhlenbeck()
    """Exploration noise. Theta 0.15 and sigma 0.2: section 7."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step: section 7."""


@loss("critic")
def critic_loss(net, x):
    """Regress on r + gamma Q'(s', mu'(s')) of the target networks (algorithm 1)."""
    q = net.critic(x.timestep, x.action)
    next_q = net.target.critic(x.next_timestep, net.target.actor(x.next_timestep))
    target = losses.td_target(x.reward, x.terminated, net.hyper.discount, next_q[..., 0])
    error = losses.squared_error(q, target[..., None]).sum(-1)
    return LossOutput(error, {"value": q.mean(-1)})


@loss("actor")
def actor_loss(net, x):
    """Maximize Q(s, mu(s)) (algorithm 1)."""
    return -net.critic(x.timestep, net.actor(x.timestep))[..., 0]


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    act = add_drifting_noise("actor", space, scale(space)[1], config.noise)  # type: ignore[arg-type]
    groups = config.actor, config.critic, config.target
    plain = deterministic.deterministic_actor_critic(
        env, config.torso, act, (critic_loss, actor_loss), *groups
    )
    return dataclasses.replace(plain, memory=lambda n: jnp.zeros((n, *space.shape)))  # type: ignore


ddpg = AlgorithmBuilder("ddpg", Config, recipe, check=deterministic.check)

TINY = deterministic.TINY
