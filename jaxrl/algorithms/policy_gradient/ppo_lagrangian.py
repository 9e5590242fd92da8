"""PPO with a Lagrange multiplier (Ray, Achiam and Amodei, 2019, "Benchmarking safe exploration in
deep reinforcement learning"): maximize the reward subject to a limit on an episode's expected cost.

The policy follows (A_reward - lambda A_cost) / (1 + lambda), each advantage estimated with its own
value function. lambda, the softplus of a parameter, rises while episodes cost more than the limit
and falls while they cost less. As in the authors' code, the reward advantages are standardized over
the window, the cost advantages are only centered (since a certain cost is aimed for), and Adam
moves the parameter along J_cost - limit itself. That code clips the surrogate of the reward alone;
here the combined advantage enters PPO's loss, as in OmniSafe (Ji et al., 2023, arXiv:2305.09304).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.ppo import ppo_loss
from jaxrl.algorithms.policy_gradient.shared import actor_critic
from jaxrl.algorithms.policy_gradient.shared.actor_critic import (
    actor_critic_recipe,
    estimate_advantages,
    policy_network,
    report,
    standardize,
)
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, struct
from jaxrl.kit import AlgorithmBuilder, Minibatch, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import INF, Optimizer, Passes, Rollouts, Torso
from jaxrl.networks.critics import Value
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of PPO with a Lagrange multiplier."""

    rollouts: Rollouts = Rollouts(num_envs=64, num_steps=128)
    passes: Passes = Passes(epochs=4, minibatches=4)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    """Torso of the policy, the value and the cost value."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    """Optimizer of the policy, the value and the cost value."""
    multiplier: Optimizer = Optimizer(learning_rate=0.05)
    """Optimizer of the parameter whose softplus is lambda: Adam, 0.05, as in the authors' code."""

    multiplier_init: float = static(1.0, above=0)
    """Initial value of the Lagrange multiplier lambda."""
    cost_limit: float = hyper(25.0, low=0)
    """Limit on the mean cost of an episode."""

    discount: float = hyper(0.99, low=0, high=1)
    """Discount factor per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    cost_discount: float = hyper(0.99, low=0, high=1)
    """Discount factor of costs per step."""
    cost_gae_lambda: float = hyper(0.97, low=0, high=1)
    """Lambda of generalized advantage estimation of costs."""
    clip: float = hyper(0.2, above=0, high=INF)
    """Clipping range of the probability ratio around 1, beyond which its gradient is zero."""
    value_clip: float = hyper(INF, above=0, high=INF)
    """Clipping range of a value around its old one, beyond which its gradient is zero."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0, log=True)
    """Weight of the entropy bonus."""


class Multiplier(nn.Module):
    """Scalar parameter whose softplus is lambda."""

    start: float  # initial lambda

    @nn.compact
    def __call__(self) -> Array:
        return self.param("raw", nn.initializers.constant(math.log(math.expm1(self.start))), ())


@struct
class Sample(actor_critic.Sample):
    """PPO's sample, with the combined advantage and a target for the value of costs."""

    cost_target: Array


def episode_costs(cost: Array, done: Array, before: Array) -> tuple[Array, Array]:
    """Return the cost of each step's episode so far [T, B], and that of the episodes still running
    at the end [B]. `before` [B] is the cost of the running episodes before the window."""

    def step(spent, now):
        cost, done = now
        spent = spent + cost
        return jnp.where(done, 0.0, spent), spent

    running, spent = jax.lax.scan(step, before, (cost, done))
    return spent, running


@loss("multiplier")
def multiplier_loss(net: Net, cost: Array) -> Array:
    """Compute -lambda (J_cost - limit), for the `cost` [T, B] of episodes."""
    return -net.multiplier() * (cost - net.hyper.cost_limit)


@loss("cost_critic")
def cost_loss(net: Net, x: Sample) -> Array:
    """Compute the squared error of the cost value."""
    return losses.squared_error(net.cost_critic(x.timestep), x.cost_target)


def combine_advantages(net: Net, batch: Batch) -> Sample:
    """Return the window with the combined advantages and the targets of both values."""
    x, h, multiplier = batch.transitions, net.hyper, jax.nn.softplus(net.multiplier())
    after: Any = x.next_timestep
    value, next_value = net.cost_critic(x.timestep), net.cost_critic(after)
    of_cost = losses.gae(
        after.cost, value, next_value, x.terminated, x.done, h.cost_discount, h.cost_gae_lambda
    )
    sample, mask = standardize(estimate_advantages(net, batch), batch.mask), batch.mask
    mean = of_cost.mean() if mask is None else losses.masked_mean(of_cost, mask)
    advantage = (sample.advantage - multiplier * (of_cost - mean)) / (1 + multiplier)
    return Sample(**(vars(sample) | {"advantage": advantage, "cost_target": of_cost + value}))


def recipe(env: Environment, config: Config) -> Recipe:
    def step(net, minibatch):
        return net.descend(ppo_loss, minibatch).descend(cost_loss, minibatch)

    def update(net, batch):
        x = batch.transitions
        spent, running = episode_costs(x.next_timestep.cost, x.done, net.extra)
        net = net.replace(extra=running)
        ended = x.done if batch.mask is None else x.done & batch.mask
        net = net.descend(multiplier_loss, spent, mask=ended, weight=batch.weight)
        net = net.report(multiplier=jax.nn.softplus(net.multiplier()))
        sample = combine_advantages(net, batch)
        window = Minibatch(sample, batch.mask, batch.weight)
        limit = net.hyper.passes.target_kl
        return report(net, sample).epochs(config.passes, window, step, max_drift=limit)

    network = policy_network(env, config.torso)
    losses = (ppo_loss, cost_loss, multiplier_loss)
    plain = actor_critic_recipe(env, network, config.optimizer, losses, update)
    torso = config.torso.hidden, config.torso.activation, config.torso.initializer
    critic, inputs = Value(env.observation_space, *torso), (example_timestep(env),)
    parts = {
        "cost_critic": Part(critic, inputs, config.optimizer),
        "multiplier": Part(Multiplier(config.multiplier_init), (), config.multiplier),
    }
    running_costs = np.zeros(config.rollouts.num_envs, np.float32)
    return dataclasses.replace(plain, parts={**plain.parts, **parts}, extra=running_costs)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an action space without a policy head, an environment with no cost or
    several, and a window that does not divide into the minibatches."""
    check_action_space(env.action_space, name)
    cost = example_timestep(env).cost
    if cost is None or cost.ndim != 1:
        raise UserError(
            f"{name} keeps one cost within a limit; '{env.name}' has "
            f"{'none' if cost is None else cost.shape[1]} (see jaxrl.envs.wrappers.cost)."
        )
    x = config.rollouts
    config.passes.check(x.num_envs, x.num_steps, x.num_shards)


ppo_lagrangian = AlgorithmBuilder("ppo_lagrangian", Config, recipe, check=check)

TINY = {"env": "hazards", "env_params": {"size": 5}, "num_envs": 4, "num_steps": 8} | {
    "num_shards": 4,
    "hidden": (8,),
    "epochs": 2,
    "minibatches": 2,
}
