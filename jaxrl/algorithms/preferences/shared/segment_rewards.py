"""Reward models of preferences between segments of control, and algorithms that learn from their
rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import segment_policies as policies
from jaxrl.algorithms.preferences.shared.segments import (
    accuracy,
    set_unit,
    split_sets,
)
from jaxrl.core import spaces
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Transition
from jaxrl.kit import LossOutput, Minibatch, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.composing import around, descend_where, with_rewards
from jaxrl.kit.groups import INF, Optimizer, Torso
from jaxrl.networks.critics import ActionValues, Value

READS = ("action", "observation")


@group
class Learning:
    """Learning of rewards from pairs of segments."""

    torso: Torso = Torso(hidden=(512, 512), initializer="orthogonal")
    """Hidden layers. Two of 512, orthogonal: authors' code of CPL."""
    optimizer: Optimizer = Optimizer(learning_rate=3e-4)
    """Optimizer settings. Adam, 3e-4: authors' code of CPL."""
    steps: float = hyper(50_000.0, low=0, high=INF)
    """Number of gradient steps. 50,000: authors' code of CPL."""


@group
class RewardModel(Learning):
    """Reward model of steps, learned from pairs of segments."""

    reads: str = static("action", choices=READS)
    """Input of the reward of a step: action (and the observation before it), or the observation
    that the action led to alone."""
    members: int = static(1, low=1, high=100)
    """Number of reward models with first weights of their own, whose mean is the reward."""


def model_of(env: Environment, settings: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the network of one member of a reward model, and an example of its inputs."""
    more = settings.torso.hidden, settings.torso.activation, settings.torso.initializer
    if settings.reads == "observation":
        return Value(env.observation_space, *more), (example_timestep(env),)
    network = ActionValues(env.observation_space, env.action_space, more[0], 1, *more[1:])
    return network, (example_timestep(env), spaces.example(env.action_space)[None])


def predict_rewards(apply: Callable[..., Array], reads: str, t: Transition) -> Array:
    """Return the rewards [E, ...] of transitions [...] by each member of a reward model.

    apply: the members' networks. reads: as in `RewardModel`.
    """
    if reads == "observation":
        return apply(t.next_timestep)
    return apply(t.timestep, t.action)[..., 0]


def pay(net: Net, batch: Batch, paid: Array) -> tuple[Net, Batch]:
    """Put learned rewards [T, B] in the place of the environment's, and log how both correlate."""
    net = net.report(reward_correlation=correlation(paid, batch.transitions.reward))
    return net, with_rewards(batch, paid)


def learned_rewards(recipe: Recipe, env: Environment, config: Any) -> Recipe:
    """Let a recipe learn from the rewards of a model that learns beside it from pairs of segments.

    recipe: of transitions [T, B]. config: settings with the groups `segments` and `reward`.

    Logs `reward_correlation`, that of the model's rewards with the environment's in the batch.
    """
    h, others = config.reward, config.segments.others

    @loss("reward", unit=set_unit(others=others))
    def reward_loss(net: Net, x: Minibatch) -> LossOutput:
        """Return the Bradley-Terry loss of each pair, summed over members."""
        total = predict_rewards(net.reward, h.reads, x.x).sum(1)
        chosen, rejected, _ = split_sets(total, others=others)
        chosen, rejected = chosen[..., 0], rejected[..., 0]
        right = accuracy(chosen.mean(0), rejected.mean(0))
        return LossOutput(losses.bradley_terry(chosen, rejected).sum(0), {"accuracy": right})

    def before(net: Net, batch: Batch) -> tuple[Net, Batch, None]:
        t, early = batch.transitions, net.updates < net.hyper[h].steps
        window = Minibatch(t, batch.mask)
        net = descend_where(net, early, lambda net: net.descend(reward_loss, window))
        paid = predict_rewards(net.reward, h.reads, t).mean(0)
        return *pay(net, Batch(t, batch.env_steps), paid), None

    network, inputs = model_of(env, h)
    paid = around(
        recipe,
        parts={"reward": Part(network, inputs, h.optimizer, members=h.members)},
        losses=(reward_loss,),
        before=before,
        needs=("mask",),
    )
    return dataclasses.replace(
        paid, scores={**recipe.scores, **policies.accuracy_scores(config.segments)}
    )


def correlation(x: Array, y: Array, weight: Array | float = 1.0) -> Array:
    """Return the correlation of two arrays of one shape; 0 if one of them is constant.

    weight: of each pair of numbers, at least 0.
    """
    share = jnp.broadcast_to(weight, x.shape)
    share = share / share.sum()
    x, y = (z - (share * z).sum() for z in (x, y))
    scale = jnp.sqrt((share * x**2).sum() * (share * y**2).sum())
    return jnp.where(scale > 0, (share * x * y).sum() / jnp.where(scale > 0, scale, 1), 0)


def measure(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return the reward model's `segment_policies.measure_accuracy`."""
    network, _ = model_of(env, config.reward)
    params = policy.state.parts["reward"].params
    apply = lambda *inputs: jax.vmap(lambda own: network.apply(own, *inputs))(params)
    score = lambda t: predict_rewards(apply, config.reward.reads, t).mean(0).sum(0)
    return policies.measure_accuracy(env, config.segments, policy, key, score)
