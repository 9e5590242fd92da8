"""Skills: a number in the goal channel, by which one policy can act in several ways."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.lifting import lift_fields, shapes


@struct
class Skills:
    """Parameters of `skills`."""

    inner: Tree
    skill: int = -1  # the skill of every episode, 0 .. number - 1; -1 draws one uniformly


@struct
class State:
    """State of the wrapped environment and the skill of this episode."""

    inner: Tree
    skill: Array


@functools.cache
def skills(env: Environment, number: int) -> Environment:
    """Give every episode of `env` one of `number` skills, as a one-hot in the channel `goal`.

    The skill is drawn uniformly at each reset, or is `params.skill` where that is not negative. It
    changes nothing but what policies see, which concatenate it with the observation. Raises
    `UserError` for less than two skills, and for an environment that already has goals.
    """
    at_least(env.name, "number of skills", number, 2)
    if shapes(env).goal is not None:
        raise UserError(
            f"'{env.name}' has goals already; skills need an environment whose goal channel is "
            "free."
        )

    def with_skill(timestep, skill):
        return dataclasses.replace(timestep, goal=jax.nn.one_hot(skill, number, dtype=jnp.float32))

    def reset(key, params):
        skill_key, key = jax.random.split(key)
        given = jnp.asarray(params.skill, jnp.int32)
        skill = jnp.where(given < 0, jax.random.randint(skill_key, (), 0, number), given)
        inner, timestep = env.reset(key, params.inner)
        return State(inner, skill), with_skill(timestep, skill)

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, params.inner)
        return State(inner, state.skill), with_skill(timestep, state.skill)

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=Skills(env.params),
        **lift_fields(env, state=True, params=True),
    )
