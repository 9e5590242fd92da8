"""Wrappers that change where episodes end: nowhere, or anywhere."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Environment, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields

# Fields of a time step about the situation that it leads to; the rest is about the step itself.
_SITUATION = ("observation", "legal_actions", "role", "goal", "alive", "privileged", "tokens")


@functools.cache
def continuing(env: Environment) -> Environment:
    """Turn `env` into one endless life, for the average-reward criterion.

    If an episode of `env` ends, for either reason, the next one begins within the same step: the
    reward (and cost and all else about the step) is that of the end, the observation (and all else
    about the situation) that of the new start. No step is `first`, terminated or truncated, so no
    metric of an episode is ever reported. `max_steps` is None; `time_limit` outside cuts the life
    into pieces, inside it restarts `env`. `goals` is None, since what was achieved at an end is no
    longer observed. A reset is drawn at every step.
    """

    def step(key, state, action, params):
        step_key, reset_key = jax.random.split(key)
        state, timestep = env.step(step_key, state, action, params)
        fresh_state, fresh = env.reset(reset_key, params)
        done, no = timestep.done, jnp.zeros((), bool)
        situation = {
            name: trees.where(done, getattr(fresh, name), getattr(timestep, name))
            for name in _SITUATION
        }
        timestep = dataclasses.replace(timestep, terminated=no, truncated=no, first=no, **situation)
        return trees.where(done, fresh_state, state), timestep

    return dataclasses.replace(
        env, step=step, max_steps=None, goals=None, rules=None, state_of=None
    )


@struct
class EarlyTruncation:
    """Parameters of `early_truncation`."""

    inner: Tree
    truncation_probability: float  # probability of truncation at each step


def early_truncation(env: Environment, probability: float = 0.01) -> Environment:
    """Truncate episodes at each step with `probability` (`params.truncation_probability`), whatever
    the clock says: horizons vary, and no observation tells when they end.

    A step that terminates is never truncated too. Raises `UserError` for a probability outside [0,
    1].
    """
    return _early_truncation(
        env, arguments.number(env, "truncation probability", probability, high=1.0)
    )


@functools.cache
def _early_truncation(env: Environment, probability: float) -> Environment:
    def reset(key, params):
        return env.reset(key, params.inner)

    def step(key, state, action, params):
        end_key, key = jax.random.split(key)
        state, timestep = env.step(key, state, action, params.inner)
        ends = jax.random.uniform(end_key) < params.truncation_probability
        truncated = (timestep.truncated | ends) & ~timestep.terminated
        return state, dataclasses.replace(timestep, truncated=truncated)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=EarlyTruncation(env.params, probability),
        **lift_fields(env, params=True),
    )
