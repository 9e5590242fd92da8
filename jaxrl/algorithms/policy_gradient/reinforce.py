"""REINFORCE (Williams, 1992, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning"): the policy gradient from complete episodes, without a critic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.ppo import sampled
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import AlgorithmBuilder, Loss, Net, Part, Recipe, group, hyper
from jaxrl.kit.groups import Episodes, Normalization, Optimizer, Torso
from jaxrl.networks.actor_critic import ActorCritic
from jaxrl.networks.heads import check_action_space


@group
class Config:
    """Settings of REINFORCE."""

    episodes: Episodes = Episodes(num_envs=16)
    torso: Torso = Torso(hidden=(64, 64), activation="tanh")
    optimizer: Optimizer = Optimizer("sgd", learning_rate=1e-2)
    """Plain gradient steps, as REINFORCE is defined (section 4), which leaves their size open."""
    normalization: Normalization = Normalization()
    baseline: bool = True
    """Subtract from each return the mean return, at that time step, of the other episodes that
    still run: it does not depend on the action, so the gradient stays unbiased."""
    discount: float = hyper(0.99, low=0, high=1)
    """Gamma, per step."""
    entropy_weight: float = hyper(0.0, low=0)
    """Weight of the entropy bonus."""


@struct
class Step:
    """What the loss sees of each step, [T, B]."""

    timestep: TimeStep
    action: Tree
    advantage: Array


def policy_loss(net: Net, x: Step) -> tuple[Array, dict[str, Array]]:
    """-A log pi(a | s), less an entropy bonus."""
    policy, _, _ = net.policy(x.timestep, (), method="unroll")
    loss = losses.policy_gradient(policy.log_prob(x.action), x.advantage)
    entropy = policy.entropy()
    total = loss - net.hyper.entropy_weight * entropy
    return total, {"policy_loss": loss, "entropy": entropy}


def leave_one_out(returns: Array, mask: Array) -> Array:
    """`returns` [T, B] less the mean return of the *other* episodes that run at that time; less
    nothing where there is no other. 0 where `mask` is False."""
    returns = jnp.where(mask, returns, 0.0)
    others = mask.sum(1, keepdims=True) - 1
    rest = returns.sum(1, keepdims=True) - returns
    return jnp.where(mask, returns - rest / jnp.maximum(others, 1) * (others > 0), 0.0)


def recipe(env: Environment, config: Config) -> Recipe:
    def judge(net, batch):
        x = batch.transitions
        reward = jnp.where(batch.mask, x.reward, 0.0)
        nothing = jnp.zeros_like(reward[0])
        returns = losses.discounted_returns(reward, x.done, nothing, net.hyper.discount)
        return net, leave_one_out(returns, batch.mask) if config.baseline else returns

    return on_episodes(env, config, judge)


def on_episodes(
    env: Environment,
    config: Any,
    judge: Callable[[Net, Batch], tuple[Net, Array]],
    record: tuple[str, ...] = (),
) -> Recipe:
    """A policy that learns from whole episodes by advantages [T, B] of `judge(net, batch)`, and
    says of every step what is in `record` (see `sampled`)."""
    torso = config.torso
    network = ActorCritic(
        env.observation_space,
        env.action_space,
        torso.hidden,
        torso.activation,
        initializer=torso.initializer,
    )

    def update(net, batch):
        net, advantage = judge(net, batch)
        x = batch.transitions
        steps = Step(x.timestep, x.action, advantage)
        return net.descend("loss", dataclasses.replace(batch, transitions=steps))

    return Recipe(
        parts={"policy": Part(network, (example_timestep(env, agents=True), ()))},
        act=sampled(record, "policy"),
        losses={"loss": Loss(policy_loss, ("policy",))},
        update=update,
        needs=("mask",),
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raises `UserError` for an action space without a policy head, and several rewards."""
    check_action_space(env.action_space, name)
    example_timestep(env)


reinforce = AlgorithmBuilder("reinforce", Config, recipe, check=check)

TINY = {
    "env": "pendulum",
    "num_envs": 4,
    "num_shards": 4,
    "hidden": (8,),
    "normalization.observation": True,
}
