"""ARO-DDPG (Saxena, Khastagir, Kolathaya and Bhatnagar, 2023, "Off-policy average reward
actor-critic with deterministic policy search", arXiv:2305.12239): DDPG that maximizes the average
reward per step, which is learned along with the critics, instead of a discounted sum.

As in the authors' code, target and policy use the minimum of two critics, updates of the policy and
of target networks are delayed, and the average has no target network (the paper has one). Unlike
there, noise restarts with each episode, and there are no updates in the warm-up. The environment
should be continuing: a time limit is bootstrapped through (there it is an end), and the state after
a termination has the value 0, that of an average state. Equations are numbered as in the paper's
submission to ICLR 2023.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, LossOutput, Part, Recipe, group, loss, static
from jaxrl.kit.acting import add_drifting_noise, adopt_as_updated, random_at_first
from jaxrl.kit.groups import Optimizer, OrnsteinUhlenbeck, Replay, Torso
from jaxrl.networks.heads import scale
from jaxrl.networks.scalars import Number


@group
class Config(deterministic.Deterministic):
    """Settings of ARO-DDPG: DDPG that maximizes the average reward (arXiv:2305.12239). The defaults
    are those of the authors' code."""

    replay: Replay = Replay(num_envs=1, num_steps=1000, updates=1000, batch_size=256, warmup=5000)
    """Replay buffer, with 1,000 gradient steps after each 1,000 environment steps. Actions are
    random in the warm-up."""
    torso: Torso = Torso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of policy and critics, separately."""
    rate: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings of the average reward."""
    noise: OrnsteinUhlenbeck = OrnsteinUhlenbeck()
    delay: int = static(2, low=1)
    """Number of critic updates per update of the policy and of all target networks."""


@loss("actor")
def actor_loss(net, x):
    """Maximize the smallest critic's Q(s, mu(s))."""
    return -net.critic(x.timestep, net.actor(x.timestep)).min(-1)


def next_value(net, x):
    """Return the target networks' differential value of the next state, [B]."""
    q = net.target.critic(x.next_timestep, net.target.actor(x.next_timestep))
    return jnp.where(x.terminated, 0.0, q.min(-1))


@loss("critic", "rate")
def critic_loss(net, x):
    """Regress on r - rho + min Q'(s', mu'(s')) (equation 24). In the same step rho descends the
    same errors, as in the authors' code (in equation 25, those of the smaller target network)."""
    q = net.critic(x.timestep, x.action)
    target = losses.average_reward_target(x.reward, net.rate(), next_value(net, x))
    error = losses.squared_error(q, target[..., None]).sum(-1)
    metrics = {"value": q.mean(-1)}
    rate, q = net.rate(), net.critic(x.timestep, x.action)
    left = losses.reward_rate(rate, x.reward[..., None], q, next_value(net, x)[..., None])
    return LossOutput(error + left.sum(-1), metrics | {"average_reward": rate})


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space
    half_width = scale(space)[1]  # type: ignore[arg-type]
    noisy = add_drifting_noise("actor", space, half_width, config.noise)
    plain = deterministic.deterministic_actor_critic(
        env,
        config.torso,
        random_at_first(noisy, space),
        (critic_loss, actor_loss),
        config.optimizer,
        config.optimizer,
        config.target,
        num_critics=2,
        delay=config.delay,
    )
    return dataclasses.replace(
        plain,
        parts={**plain.parts, "rate": Part(Number(), (), config.rate)},
        memory=lambda n: jnp.zeros((n, *space.shape)),  # type: ignore[union-attr]
        adopt=adopt_as_updated(config.delay),
    )


aro_ddpg = AlgorithmBuilder("aro_ddpg", Config, recipe, check=deterministic.check)

TINY = deterministic.TINY | {"num_steps": 2}
