"""ARO-DDPG (Saxena, Khastagir, Kolathaya and Bhatnagar, 2023, "Off-policy average reward
actor-critic with deterministic policy search", arXiv:2305.12239): DDPG that maximizes the average
reward of a step, which is learned beside its critics, in the place of a discounted sum.

As in the authors' code the smaller of two critics counts, for target and policy, policy and copies
wait, and the average has no copy (the paper's has one). Unlike there noise begins anew with an
episode, and no update is made in the warm-up. The environment should go on for ever: a time limit
is
looked past (there it is an end), and what follows a termination is worth 0, as much as the average.
Equations are numbered as in the paper's submission to ICLR 2023.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.continuous_control import ddpg as ddpg_
from jaxrl.algorithms.continuous_control.shared import deterministic
from jaxrl.core.types import Environment
from jaxrl.kit import AlgorithmBuilder, Loss, Part, Recipe, group, static
from jaxrl.kit.acting import add_drifting_noise, random_at_first
from jaxrl.kit.groups import Optimizer, OrnsteinUhlenbeck, Replay, Torso
from jaxrl.networks.heads import scale
from jaxrl.networks.scalars import Number


@group
class Config(deterministic.Common):
    """Settings of ARO-DDPG. The defaults are those of the authors' code."""

    replay: Replay = Replay(num_envs=1, num_steps=1000, updates=1000, batch_size=256, warmup=5000)
    """1,000 gradient steps after each 1,000 of the environment. Actions are random in the
    warm-up."""
    torso: Torso = Torso(hidden=(128, 128))
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Of policy and critics, each for itself."""
    rate: Optimizer = Optimizer(learning_rate=3e-4)
    """Of the average reward."""
    noise: OrnsteinUhlenbeck = OrnsteinUhlenbeck()
    delay: int = static(2, low=1)
    """Updates of the critics for one of the policy and of all copies."""


def recipe(env: Environment, config: Config) -> Recipe:
    space = env.action_space

    def following(net, x):
        """The copies' differential value of what comes next, [B]."""
        q = net.target.critic(x.next_timestep, net.target.actor(x.next_timestep))
        return jnp.where(x.terminated, 0.0, q.min(-1))

    def target(net, x):
        """Equation 24: r - rho + min Q'(s', mu'(s'))."""
        return losses.average_reward_target(x.reward, net.rate(), following(net, x))

    def critic_loss(net, x):
        """Also the average's, in the same step: rho descends the same errors, as in the authors'
        code (in equation 25 those of the smaller copy)."""
        error, report = plain.losses["critic_loss"].function(net, x)
        rate, q = net.rate(), net.critic(x.timestep, x.action)
        left = losses.reward_rate(rate, x.reward[..., None], q, following(net, x)[..., None])
        return error + left.sum(-1), report | {"average_reward": rate}

    plain = deterministic.recipe(
        env,
        config,
        random_at_first(add_drifting_noise("actor", space, scale(space)[1]), space),  # type: ignore[arg-type]
        target,
        num_critics=2,
        value=lambda q: q.min(-1),
        delay=config.delay,
    )
    return dataclasses.replace(
        plain,
        parts={**plain.parts, "rate": Part(Number(), (), config.rate)},
        losses={**plain.losses, "critic_loss": Loss(critic_loss, ("critic", "rate"))},
        memory=lambda n: jnp.zeros((n, *space.shape)),  # type: ignore[union-attr]
    )


aro_ddpg = AlgorithmBuilder("aro_ddpg", Config, recipe, check=deterministic.check)
TINY = ddpg_.TINY | {"num_steps": 2}
