"""Samples, returns, losses and recipes of policies that learn from whole episodes."""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.policy_gradient.shared.actor_critic import sample_and_record
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, TimeStep, Tree, struct
from jaxrl.kit import LossOutput, Net, Part, Recipe, loss
from jaxrl.kit.groups import Torso
from jaxrl.networks.actor_critic import ActorCritic


@struct
class Step:
    """Fields of each step that the loss reads, [T, B]."""

    timestep: TimeStep
    action: Tree
    advantage: Array


@loss("policy", name="loss")
def policy_loss(net: Net, x: Step) -> LossOutput:
    """Compute -A log pi(a | s) minus an entropy bonus."""
    policy, _, _ = net.policy(x.timestep, (), method="unroll")
    value = losses.policy_gradient(policy.log_prob(x.action), x.advantage)
    entropy = policy.entropy()
    total = value - net.hyper.entropy_weight * entropy
    return LossOutput(total, {"policy_loss": value, "entropy": entropy})


def leave_one_out(returns: Array, mask: Array) -> Array:
    """Subtract from `returns` [T, B] the mean return of the *other* episodes running at that time.

    If there are no others, nothing is subtracted. The result is 0 where `mask` is False.
    """
    returns = jnp.where(mask, returns, 0.0)
    others = mask.sum(1, keepdims=True) - 1
    rest = returns.sum(1, keepdims=True) - returns
    return jnp.where(mask, returns - rest / jnp.maximum(others, 1) * (others > 0), 0.0)


class AdvantageEstimator(Protocol):
    """Estimator of the advantages of the actions in whole episodes."""

    def __call__(self, net: Net, batch: Batch, /) -> tuple[Net, Array]:
        """Return the net, with the estimator's state updated, and advantages [T, B].

        net: parts and hyperparameters. batch: whole episodes, padded.
        """
        ...


def episode_recipe(
    env: Environment,
    torso: Torso,
    optimizer: Any,
    estimate: AdvantageEstimator,
    record: tuple[str, ...] = (),
) -> Recipe:
    """Return the recipe of a policy that learns from whole episodes by the advantages of
    `estimate`.

    optimizer: a settings group. record: see `sample_and_record`.
    """

    def update(net, batch):
        net, advantage = estimate(net, batch)
        x = batch.transitions
        steps = Step(x.timestep, x.action, advantage)
        return net.descend(policy_loss, steps, mask=batch.mask, weight=batch.weight)

    inputs = (example_timestep(env, agents=True), ())
    return Recipe(
        parts={"policy": Part(episode_network(env, torso), inputs, optimizer)},
        act=sample_and_record(record, "policy"),
        losses=(policy_loss,),
        update=update,
        needs=("mask",),
    )


def episode_network(
    env: Environment, torso: Torso, observation_space: Any = None, action_space: Any = None
) -> ActorCritic:
    """Return an actor-critic without memory, for the spaces of `env` or for those given."""
    return ActorCritic(
        observation_space or env.observation_space,
        action_space or env.action_space,
        torso.hidden,
        torso.activation,
        initializer=torso.initializer,
    )
