"""Policies that learn from pairs of segments of control: networks, likelihoods and measures.

A policy of real numbers is deterministic, one of choices is categorical.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared.segments import Segments, accuracy
from jaxrl.algorithms.preferences.shared.teachers import optimal_advantages
from jaxrl.core.examples import example_timestep
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Transition
from jaxrl.kit import Part
from jaxrl.kit.acting import Act, sample
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.actor_critic import Actor
from jaxrl.networks.critics import DeterministicActor
from jaxrl.networks.heads import check_action_space, check_bounded, scale

HELD_OUT_PAIRS = 256  # of a measure
ACCURACY = {"held_out_accuracy": "accuracy on held-out pairs"}
DISTANCE = {"distance_to_optimum": "distance to the optimum"}


def network_of(env: Environment, torso: Torso) -> Any:
    """Return the network of a policy: time step [...] -> action, or distribution of choices."""
    kind: Any = DeterministicActor if isinstance(env.action_space, Box) else Actor
    sizes = (env.observation_space, env.action_space, torso.hidden)
    return kind(*sizes, torso.activation, torso.initializer)


def make_actor(env: Environment, torso: Torso, optimizer: Optimizer) -> Part:
    """Return the part of a policy."""
    return Part(network_of(env, torso), (example_timestep(env),), optimizer)


def act_by_actor(env: Environment) -> Act:
    """Act by the part `actor`."""
    if not isinstance(env.action_space, Box):
        return sample("actor", env.action_space)
    return lambda net, timestep, memory, key, greedy: (net.actor(timestep), memory, {})


def squared_distance(env: Environment, policy: Array, action: Array) -> Array:
    """Return the squared distance [...] of actions from those of a deterministic policy, in
    half-widths of their bounds."""
    _, half_width = scale(env.action_space)  # type: ignore[arg-type]
    apart = (policy - action) / half_width
    return jnp.square(apart).reshape(*action.shape[: action.ndim - half_width.ndim], -1).sum(-1)


def log_likelihood(env: Environment, policy: Any, action: Array) -> Array:
    """Return the log-probability [...] of choices, or the negative squared distance of real
    numbers, which is that of a Gaussian but for a constant."""
    if isinstance(env.action_space, Box):
        return -squared_distance(env, policy, action)
    return policy.log_prob(action)


def measure_accuracy(
    env: Environment,
    segments: Segments,
    policy: Policy,
    key: Key,
    score: Callable[[Transition], Array],
) -> dict[str, Array]:
    """Return how often the score of the preferred segment is the larger one, `held_out_accuracy`,
    in pairs of episodes that were not learned from; nothing if there are none.

    score: segments [T, B] -> [B].
    """
    if not segments.held_out:
        return {}
    batch = segments.held_out_pairs(env, key, policy, HELD_OUT_PAIRS)
    assert batch.mask is not None
    value, known = score(batch.transitions), batch.mask[0, ::2]
    right = jnp.where(known, accuracy(value[::2], value[1::2]), 0).sum()
    return {"held_out_accuracy": right / jnp.maximum(known.sum(), 1)}


def all_states(env: Environment) -> TimeStep:
    """Return the time steps [S] of all states of a finite table that an observation tells."""
    size = len(env.params.terminal)
    seen = jnp.eye(size) if isinstance(env.observation_space, Box) else jnp.arange(size)
    example = jax.tree.map(lambda x: jnp.repeat(x, size, 0), example_timestep(env))
    return dataclasses.replace(example, observation=seen)


def measure_distance(
    env: Environment, segments: Segments, choose: Callable[[TimeStep], Any]
) -> dict[str, Array]:
    """Return the total variation distance of a policy from the optimal maximum-entropy policy of a
    table, `distance_to_optimum`, a mean over states that do not end; nothing where the teacher does
    not compare by the regret to that optimum.

    choose: time step [S] -> distribution.
    """
    h = segments.teacher
    if h.score != "regret":
        return {}
    table: Any = env.params
    policy = choose(all_states(env))
    optimum = jnp.exp(optimal_advantages(table, h.temperature, h.horizon_discount) / h.temperature)
    apart = 0.5 * jnp.abs(policy.probs - optimum).sum(-1)
    return {
        "distance_to_optimum": jnp.where(table.terminal, 0, apart).sum() / (~table.terminal).sum()
    }


def accuracy_scores(segments: Segments) -> dict[str, str]:
    """Return the names of what `measure_accuracy` returns; see `Recipe.scores`."""
    return ACCURACY if segments.held_out else {}


def check(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` for actions that no policy here can choose."""
    if isinstance(env.action_space, Box):
        check_bounded(env.action_space, name)
    check_action_space(env.action_space, name)
