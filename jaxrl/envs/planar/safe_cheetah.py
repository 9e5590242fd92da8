"""Run forward as the cheetah does, but never faster than a limit.

All as in `cheetah`, but a step whose forward velocity is above `speed_limit` (3.2096 m/s) has a
reward of -100 and terminates. `cost` is 1 at such a step and 0 elsewhere. The task
"SafetyHalfCheetah" of NeoRL-2 (Gao et al., 2025, "NeoRL-2: Near real-world benchmarks for offline
reinforcement learning with extended realistic scenarios", arXiv:2503.19267) with the limit of the
authors' code; their observation also has the place, and their physics is MuJoCo's. The expert is
the cheetah's gait, weakened so that it stays below the limit.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.envs.planar.cheetah import cheetah
from jaxrl.envs.wrappers.lifting import lift_fields

WEAKENED = 0.5  # factor on the actions of the cheetah's gait


@struct
class Params:
    inner: Tree
    speed_limit: float = 3.2096  # m/s, largest mean forward velocity of a step
    penalty: float = 100.0  # what is paid for a step above the limit, in the place of its reward


@functools.cache
def safe_cheetah() -> Environment:
    """The cheetah with a speed limit, limited to 1,000 steps."""
    env = cheetah()
    gait = env.expert
    assert gait is not None

    def reset(key, params: Params):
        state, timestep = env.reset(key, params.inner)
        return state, dataclasses.replace(timestep, cost=jnp.zeros((), jnp.float32))

    def step(key, state, action: Array, params: Params) -> tuple[Tree, TimeStep]:
        state, timestep = env.step(key, state, action, params.inner)
        too_fast = _speed(timestep, params) > params.speed_limit
        return state, dataclasses.replace(
            timestep,
            reward=jnp.where(too_fast, -params.penalty, timestep.reward),
            terminated=timestep.terminated | too_fast,
            truncated=timestep.truncated & ~too_fast,
            cost=too_fast.astype(jnp.float32),
        )

    fields = lift_fields(env, params=True)
    return dataclasses.replace(
        env,
        name="safe_cheetah",
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(env.params),
        **(fields | {"expert": lambda state, params: WEAKENED * gait(state, params.inner)}),
    )


def _speed(timestep: TimeStep, params: Params) -> Array:
    assert isinstance(timestep.reward_components, dict)
    return timestep.reward_components["forward"] / params.inner.forward_weight
