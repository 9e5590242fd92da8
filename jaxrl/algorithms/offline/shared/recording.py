"""Recordings of what a policy plays."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from jaxrl.core import spaces
from jaxrl.core.types import Environment, Policy, Transition
from jaxrl.datasets.transitions import from_streams
from jaxrl.sources.rollouts import rollouts


def record(env: Environment, policy: Policy, key: Any, size: int) -> Transition:
    """Record about `size` steps [N] of whole episodes of `policy`, which samples its actions, as
    NumPy arrays."""
    assert env.max_steps is not None
    streams = min(64, max(1, size // env.max_steps))
    episodes = max(1, round(size / streams / env.max_steps))
    window = record_streams(env, policy, key, streams, episodes * env.max_steps)
    return from_streams(jax.device_get(window), size)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def record_streams(
    env: Environment, policy: Policy, key: Any, streams: int, steps: int
) -> Transition:
    """Record steps [steps, streams] of streams that begin with an episode each, as arrays."""
    source = rollouts(env, streams, steps)
    start_key, key = jax.random.split(key)
    state = source.init(start_key, {}, policy)
    return plain(env, source.collect(state, policy, key)[1].transitions)


def plain(env: Environment, transitions: Transition) -> Transition:
    """Remove tasks and the policy's outputs, and clip actions to their bounds as the environment
    does."""
    action = spaces.clip(env.action_space, transitions.action)
    return dataclasses.replace(transitions, action=action, task=(), extras={})
