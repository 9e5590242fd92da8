"""Environments of Craftax (Matthews et al., 2024, arXiv:2402.16801), by names such as
`craftax/Craftax-Classic-Symbolic-v1`.

Runs Craftax's variants without automatic resets, with its `EnvParams` as `Environment.params`. Its
clock (`max_timesteps`, kept in the state) truncates; death, and in Craftax the defeat of the boss,
terminates. The sizes of its `StaticEnvParams` are settings too. `TimeStep.metrics` counts the
achievements of the episode.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import random
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, TimeStep
from jaxrl.envs import timesteps
from jaxrl.envs.adapters import SettingsBuilder, check_name, construct, package
from jaxrl.envs.adapters.conversions import box, cast, cast_like, stable_shapes
from jaxrl.envs.options import at_least

NAMES = (
    "Craftax-Classic-Pixels-v1",
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Pixels-v1",
    "Craftax-Symbolic-v1",
)
NEVER = jnp.iinfo(jnp.int32).max
CLOCK, MAP = "max_timesteps", "map_size"


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of Craftax's environment `name`. Raises `UserError` if there is none."""
    make = package("craftax.craftax_env", "craftax").make_craftax_env_from_name
    check_name("craftax", name, NAMES)
    plain = construct(f"craftax/{name}", lambda: make(name, auto_reset=False))
    sizes = dataclasses.asdict(plain.static_env_params)
    defaults = {k: v for k, v in sizes.items() if isinstance(v, int)}
    defaults |= {CLOCK: plain.default_params.max_timesteps, MAP: sizes[MAP][0]}
    return SettingsBuilder(functools.partial(_build, name, plain), defaults)


def _build(name: str, plain: Any, settings: dict[str, Any]) -> Environment:
    params, static_params = plain.default_params, plain.static_env_params
    for key, value in settings.items():
        at_least(f"craftax/{name}", key, value, 1)
        if key == CLOCK:
            params = params.replace(max_timesteps=value)
        else:
            static_params = static_params.replace(**{key: (value,) * 2 if key == MAP else value})
    theirs = construct(f"craftax/{name}", lambda: type(plain)(static_params))
    space = theirs.observation_space(params)
    observation_space = box(space.low, space.high, space.shape, space.dtype)
    begin, follow = jax.jit(theirs.reset_env), jax.jit(theirs.step_env)  # for eager use

    key, action = random.key(0), jnp.zeros((), jnp.int32)
    shapes = construct(
        f"craftax/{name}",
        lambda: stable_shapes(
            lambda: begin(key, params)[1], lambda state: follow(key, state, action, params)[1]
        ),
    )

    def reset(key, params):
        observation, state = begin(key, params)
        observation = cast(observation_space, observation)
        return cast_like(shapes, state), timesteps.first(observation, metrics=_count(state))

    def step(key, state, action, params):
        observation, state, reward, done, _ = follow(key, state, action, params)
        # Its `done` merges both ends; without a clock it is the end of the task.
        terminated = jnp.asarray(theirs.is_terminal(state, params.replace(max_timesteps=NEVER)))
        timestep = TimeStep(
            cast(observation_space, observation),
            jnp.asarray(reward, jnp.float32),
            terminated,
            truncated=done & ~terminated,
            first=jnp.zeros((), bool),
            metrics=_count(state),
        )
        return cast_like(shapes, state), timestep

    return Environment(
        f"craftax/{name}",
        reset,
        step,
        params,
        observation_space,
        Discrete(int(theirs.action_space(params).n)),
        max_steps=int(params.max_timesteps),
        scores={"achievements": "achievements"},
    )


def _count(state: Any) -> dict[str, Array]:
    return {"achievements": jnp.sum(state.achievements, dtype=jnp.float32)}
