"""End an episode after a number of steps."""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields


@struct
class State:
    """State of the wrapped environment and the number of steps taken in this episode."""

    inner: Tree
    steps: Array  # int32 scalar


def time_limit(env: Environment, max_steps: int) -> Environment:
    """Truncate episodes at their `max_steps`-th step.

    A step that terminates is never truncated too: a termination is a fact about the task, a
    truncation only missing information. Parameters, spaces and name are those of `env`; `max_steps`
    is the smaller of the two limits. The same arguments give the same object.

    Raises `UserError` if `max_steps` is not a positive integer.
    """
    return _time_limit(env, arguments.positive_integer(env, "time limit", max_steps))


@functools.cache
def _time_limit(env: Environment, limit: int) -> Environment:
    def reset(key, params):
        inner, timestep = env.reset(key, params)
        return State(inner=inner, steps=jnp.zeros((), jnp.int32)), timestep

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, params)
        steps = state.steps + 1
        truncated = (timestep.truncated | (steps >= limit)) & ~timestep.terminated
        timestep = dataclasses.replace(timestep, truncated=truncated)
        return State(inner=inner, steps=steps), timestep

    inner_state_of = env.state_of
    state_of = inner_state_of and (
        lambda timestep: State(inner_state_of(timestep), jnp.zeros(timestep.first.shape, jnp.int32))
    )
    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        max_steps=limit if env.max_steps is None else min(limit, env.max_steps),
        **(lift_fields(env, state=True) | {"state_of": state_of}),
    )
