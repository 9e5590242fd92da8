"""Deep deterministic policy gradient (Lillicrap et al., 2015, "Continuous control with deep
reinforcement learning", arXiv:1509.02971): Q-learning with a policy that climbs Q in the place of
the maximum over actions, slow copies of both, and exploration by noise that drifts.

Unlike the paper's networks these normalize no batches, critics see the action from their first
layer on, and last layers begin as others do; L2 decay is apart from the gradient (as in AdamW). The
replay keeps fewer than the paper's million unless told, and learning begins after its warm-up.
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
    """Settings of DDPG."""

    replay: Replay = Replay(num_envs=1, num_steps=1, updates=1, batch_size=64)
    """Replay buffer, with minibatches of 64: section 7 of the paper."""
    torso: Torso = Torso(hidden=(400, 300))
    """Hidden layers of actor and critic: section 7."""
    actor: Optimizer = Optimizer(learning_rate=1e-4)
    """Optimizer settings of the actor. Adam, 1e-4: section 7."""
    critic: Optimizer = Optimizer(learning_rate=1e-3, weight_decay=1e-2)
    """Optimizer settings of the critic. Adam, 1e-3, and an L2 decay of 1e-2: section 7."""
    target: Target = Target(rate=0.001)
    """Target networks of both. Tau 0.001: section 7."""
    noise: OrnsteinUhlenbeck = OrnsteinUhlenbeck()
    """Exploration noise. Theta 0.15 and sigma 0.2: section 7."""
    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step: section 7."""


@loss("critic")
def critic_loss(net, x):
    """Algorithm 1: regress on r + gamma Q'(s', mu'(s')), by the target networks."""
    q = net.critic(x.timestep, x.action)
    next_q = net.target.critic(x.next_timestep, net.target.actor(x.next_timestep))
    target = losses.td_target(x.reward, x.terminated, net.hyper.discount, next_q[..., 0])
    error = losses.squared_error(q, target[..., None]).sum(-1)
    return LossOutput(error, {"value": q.mean(-1)})


@loss("actor")
def actor_loss(net, x):
    """Algorithm 1: climb Q(s, mu(s))."""
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
