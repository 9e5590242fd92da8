"""Tiny environments with every channel, whose behavior can be computed by hand."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxrl.core import random
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.core.types import Array, Environment, Goals, struct
from jaxrl.envs import timesteps


@struct
class Params:
    end: float = 5.0  # place at which the episode ends
    slope: float = 1.0  # reward per unit of place


@struct
class State:
    place: Array
    steps: Array


# ------------------------------------------------------------------ everything that may be observed


def _everything(state):
    cells = jnp.arange(12).reshape(2, 3, 2)
    return {
        "image": jnp.where(cells == state.steps, 255, 0).astype(jnp.uint8),
        "kind": state.steps % 3,
        "lit": jnp.stack([state.steps > 1, state.steps > 2]),
        "place": state.place[None],
        "two": jnp.stack([state.steps % 2, state.steps % 4]),
    }


EVERYTHING = {
    "image": Box(0, 255, (2, 3, 2), jnp.uint8),
    "kind": Discrete(3),
    "lit": Box(False, True, (2,), jnp.bool_),
    "place": Box(-math.inf, math.inf, (1,)),
    "two": MultiDiscrete((2, 4)),
}


@functools.cache
def walk(legal: bool = False, observe: str = "everything") -> Environment:
    """Build a walk along a line: the action 0, 1 or 2 is the distance moved, the reward is the
    place reached times the slope, and the episode ends at `end`. All channels are there; with
    `legal`, action 2 is illegal at odd steps. `observe`: everything, vector or image."""

    observation = {
        "everything": (_everything, EVERYTHING),
        "vector": (
            lambda s: jnp.stack([s.place, s.steps.astype(jnp.float32)]),
            Box((-1.0, 0.0), (99.0, math.inf), (2,)),
        ),
        "image": (lambda s: _everything(s)["image"], EVERYTHING["image"]),
    }[observe]

    def channels(state, moved):
        mask = jnp.stack([state.steps >= 0, state.steps >= 0, state.steps % 2 == 0])
        return {
            "legal_actions": mask if legal else None,
            "cost": moved,
            "true_reward": 2 * moved,
            "reward_components": {"place": state.place},
            "privileged": {"steps": state.steps},
            "metrics": {"success": (state.place >= 3).astype(jnp.float32)},
        }

    def reset(key, params):
        state = State(jax.random.uniform(key) * 0.0, jnp.int32(0))
        return state, timesteps.first(observation[0](state), **channels(state, jnp.float32(0)))

    def step(key, state, action, params):
        moved = action.astype(jnp.float32)
        state = State(state.place + moved, state.steps + 1)
        return state, timesteps.following(
            observation[0](state),
            state.place * params.slope,
            state.place >= params.end,
            **channels(state, moved),
        )

    return Environment(
        name="walk",
        reset=reset,
        step=step,
        params=Params(),
        observation_space=observation[1],
        action_space=Discrete(3),
        render=lambda state, params: np.full((2, 3, 3), int(state.steps), np.uint8),
        expert=lambda state, params: jnp.where(state.place + 1 < params.end, 1, 0),
    )


# ----------------------------------------------------------------------------------- other actions


@functools.cache
def crane() -> Environment:
    """Build two joints, MultiDiscrete (2, 3), observed where they were put; for the first, 1 is
    legal only if the second is below 2."""

    def timestep(make, joints, *rest):
        free = joints[1] < 2
        yes = jnp.ones((), bool)
        legal = jnp.stack([jnp.stack([yes, free, ~yes]), jnp.stack([yes, yes, yes])])
        return make(joints.astype(jnp.float32), *rest, legal_actions=legal)

    def reset(key, params):
        joints = jnp.zeros(2, jnp.int32)
        return joints, timestep(timesteps.first, joints)

    def step(key, state, action, params):
        return action, timestep(timesteps.following, action, action.sum() * 1.0)

    return Environment(
        name="crane",
        reset=reset,
        step=step,
        params=(),
        observation_space=Box(0.0, 2.0, (2,)),
        action_space=MultiDiscrete((2, 3)),
        expert=lambda state, params: jnp.stack([jnp.int32(1), jnp.int32(2)]),
    )


@struct
class ArmParams:
    gain: float = 1.0


@functools.cache
def arm() -> Environment:
    """Build an environment that shows its action [2] times `gain`; the action is bounded by (-1, 0)
    and (1, 4)."""

    def reset(key, params):
        value = jnp.zeros(2)
        return value, timesteps.first(value)

    def step(key, state, action, params):
        value = action * params.gain
        return value, timesteps.following(value, value.sum())

    return Environment(
        name="arm",
        reset=reset,
        step=step,
        params=ArmParams(),
        observation_space=Box(-math.inf, math.inf, (2,)),
        action_space=Box((-1.0, 0.0), (1.0, 4.0), (2,)),
        expert=lambda state, params: jnp.stack([state[0] * 0 + 0.3, 3.9]),
    )


# ------------------------------------------------------------------------------------------- goals


def achieved_goal(observation):
    return observation[..., :1]


def draw_goal(key, params):
    return jax.random.randint(key, (1,), 1, 5).astype(jnp.float32)


def outcome(achieved, goal, params):
    there = jnp.all(jnp.abs(achieved - goal) < 0.5)
    return jnp.where(there, 0.0, -1.0), there


def with_fixed_goal(goal: Array) -> Environment:
    """Build the walk that always has one goal, written without the wrapper."""
    env = walk(observe="vector")

    def with_goal(result, fresh):
        state, timestep = result
        reward, there = outcome(achieved_goal(timestep.observation), goal, None)
        return state, dataclasses.replace(
            timestep,
            reward=jnp.where(fresh, 0.0, reward),
            terminated=(timestep.terminated | there) & ~jnp.bool_(fresh),
            goal=goal,
            true_reward=None,
            reward_components=None,
        )

    return dataclasses.replace(
        env,
        reset=lambda key, params: with_goal(env.reset(key, params), True),
        step=lambda key, state, action, params: with_goal(
            env.step(key, state, action, params), False
        ),
        goals=Goals(achieved_goal, outcome),
    )


# ---------------------------------------------------------------------------------------- playing


def play(env: Environment, actions: Array, params=None, seed: Array | int = 0):
    """Return the states and time steps `[T + 1]`, from the reset on, of `actions` `[T]`; no further
    reset."""
    start, rest = _play(env, actions, env.params if params is None else params, seed)
    # On the host if there are values: each leaf would be one more kernel to compile.
    xp = jnp if isinstance(jax.tree.leaves(rest)[0], Tracer) else np
    return jax.tree.map(
        lambda x, xs: xp.concatenate([xp.asarray(x)[None], xp.asarray(xs)]), start, rest
    )


@functools.partial(jax.jit, static_argnums=0)
def _play(env, actions, params, seed):
    key, reset_key = jax.random.split(random.key(seed))
    start = env.reset(reset_key, params)

    def step(carry, inputs):
        carry = env.step(inputs[0], carry[0], inputs[1], params)
        return carry, carry

    return start, jax.lax.scan(step, start, (jax.random.split(key, len(actions)), actions))[1]


def timesteps_of(env: Environment, actions, **params):
    """Return the time steps of `play`; `params` are those of the outermost wrapper."""
    changed = dataclasses.replace(env.params, **params) if params else env.params
    return play(env, jnp.asarray(actions), changed)[1]


def correlation(series: np.ndarray, lag: int) -> np.ndarray:
    """Correlate each column of `series` [T, ...] with itself `lag` steps later."""
    centered = series - series.mean(0)
    return (centered[lag:] * centered[:-lag]).mean(0) / centered.var(0)
