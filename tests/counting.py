"""An environment in which every number is known: it counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment, TimeStep, struct

NEVER = 10**6


@struct
class State:
    t: jax.Array  # steps since the reset
    tag: jax.Array  # drawn at the reset, in [0, 1)


def counting(terminates_after=4, truncates_after=NEVER, actions=3, name="counting") -> Environment:
    """Observation (t, tag, noise): steps since the reset, a number drawn at the reset, a number
    drawn in the step (-1 after a reset). The reward is 10 t + action, the t of the successor."""

    def emit(state, reward, noise, params, first):
        return TimeStep(
            observation=jnp.stack([state.t.astype(jnp.float32), state.tag, noise]),
            reward=jnp.float32(reward),
            terminated=jnp.asarray(~first & (state.t >= params["terminates_after"])),
            truncated=jnp.asarray(~first & (state.t >= params["truncates_after"])),
            first=jnp.asarray(first),
            metrics={"double_length": 2.0 * state.t},
        )

    def reset(key, params):
        state = State(jnp.int32(0), jax.random.uniform(key))
        return state, emit(state, 0.0, jnp.float32(-1), params, jnp.bool_(True))

    def step(key, state, action, params):
        state = State(state.t + 1, state.tag)
        reward = 10.0 * state.t + action
        return state, emit(state, reward, jax.random.uniform(key), params, jnp.bool_(False))

    return Environment(
        name,
        reset,
        step,
        params={
            "terminates_after": jnp.int32(terminates_after),
            "truncates_after": jnp.int32(truncates_after),
        },
        observation_space=Box(-1.0, float(NEVER), (3,)),
        action_space=Discrete(actions),
    )
