"""PPO with a Lagrange multiplier (Ray, Achiam and Amodei, 2019, "Benchmarking safe exploration in
deep reinforcement learning"): as much reward as an episode's expected cost stays within a limit.

The policy follows (A_reward - lambda A_cost) / (1 + lambda), each by a value function of its own.
lambda, the softplus of a parameter, rises while episodes cost more than the limit and falls while
they cost less. As in the authors' code reward's advantages are standardized over the window, cost's
are centered only (since a certain cost is aimed for), and the parameter moves by Adam along
J_cost - limit itself. Where that code clips the surrogate of the reward alone, here the combined
advantage is PPO's, as in OmniSafe (Ji et al., 2023, arXiv:2305.09304).
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
    """Of policy, value and cost's value."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4, max_grad_norm=0.5, eps=1e-5, flat=True)
    """Of the same."""
    multiplier: Optimizer = Optimizer(learning_rate=0.05)
    """Of the parameter behind lambda: Adam, 0.05, as in the authors' code."""

    multiplier_init: float = static(1.0, above=0)
    """Lambda at the start."""
    cost_limit: float = hyper(25.0, low=0)
    """What an episode may cost on average."""

    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    gae_lambda: float = hyper(0.95, low=0, high=1)
    """Lambda of generalized advantage estimation."""
    cost_discount: float = hyper(0.99, low=0, high=1)
    """Gamma of costs, per step."""
    cost_gae_lambda: float = hyper(0.97, low=0, high=1)
    """Lambda of their advantages."""
    clip: float = hyper(0.2, above=0, high=INF)
    """How far the probability ratio may move from 1 before its gradient stops."""
    value_clip: float = hyper(INF, above=0, high=INF)
    """How far a value may move from its old one before its gradient stops."""
    value_weight: float = hyper(0.5, low=0)
    """Weight of the value loss."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""


class Multiplier(nn.Module):
    """The parameter [] whose softplus is lambda."""

    start: float  # lambda at first

    @nn.compact
    def __call__(self) -> Array:
        return self.param("raw", nn.initializers.constant(math.log(math.expm1(self.start))), ())


@struct
class Sample(actor_critic.Sample):
    """PPO's sample, with the combined advantage and a target for the value of costs."""

    cost_target: Array


def episode_costs(cost: Array, done: Array, before: Array) -> tuple[Array, Array]:
    """What the episode of each step [T, B] has cost up to there, and what those that run on [B]
    have; `before` [B] the window they had cost that."""

    def step(spent, now):
        cost, done = now
        spent = spent + cost
        return jnp.where(done, 0.0, spent), spent

    running, spent = jax.lax.scan(step, before, (cost, done))
    return spent, running


@loss("multiplier")
def multiplier_loss(net: Net, cost: Array) -> Array:
    """Ascend lambda (J_cost - limit), for the `cost` [T, B] of episodes."""
    return -net.multiplier() * (cost - net.hyper.cost_limit)


@loss("cost_critic")
def cost_loss(net: Net, x: Sample) -> Array:
    """Compute the squared error of the value of costs."""
    return losses.squared_error(net.cost_critic(x.timestep), x.cost_target)


def combine_advantages(net: Net, batch: Batch) -> Sample:
    """Return the window with the advantages that the policy follows, and targets of both values."""
    x, h, multiplier = batch.transitions, net.hyper, jax.nn.softplus(net.multiplier())
    after: Any = x.next_timestep
    value, next_value = net.cost_critic(x.timestep), net.cost_critic(after)
    of_cost = losses.gae(
        after.cost, value, next_value, x.terminated, x.done, h.cost_discount, h.cost_gae_lambda
    )
    sample = standardize(estimate_advantages(net, batch))
    advantage = (sample.advantage - multiplier * (of_cost - of_cost.mean())) / (1 + multiplier)
    return Sample(**(vars(sample) | {"advantage": advantage, "cost_target": of_cost + value}))


def recipe(env: Environment, config: Config) -> Recipe:
    def step(net, minibatch):
        return net.descend(ppo_loss, minibatch).descend(cost_loss, minibatch)

    def update(net, batch):
        x = batch.transitions
        spent, running = episode_costs(x.next_timestep.cost, x.done, net.extra)
        net = net.replace(extra=running)
        net = net.descend(multiplier_loss, spent, mask=x.done, weight=batch.weight)
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
    """Raises `UserError` for an action space without a policy head, an environment without a cost,
    or with several, and a window that does not divide into the minibatches."""
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
