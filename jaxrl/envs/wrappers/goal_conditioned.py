"""Goals for any environment."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Goals, Key, Tree, struct
from jaxrl.envs.wrappers.lifting import lift_fields, shapes


@struct
class State:
    """State of the wrapped environment and the goal of this episode."""

    inner: Tree
    goal: Array


@functools.cache
def goal_conditioned(
    env: Environment,
    achieved: Callable[[Tree], Array],
    draw_goal: Callable[[Key, Tree], Array],
    outcome: Callable[[Array, Array, Tree], tuple[Array, Array]],
) -> Environment:
    """Give every episode of `env` a goal and reward nothing else.

    achieved: observations [...] of `env` -> the goals [...] that they have achieved.
    draw_goal: (key, params) -> the goal of an episode, one array.
    outcome: (achieved, goal, params) -> (reward, terminated) of the step that led there.

    The goal is in the channel `goal`; networks concatenate it with the observation. Ends of `env`
    stay ends. `goals` is set, so `relabel` can set another goal afterward. `expert` is None;
    `true_reward` and `reward_components` are left out, since they belong to another reward.

    The same functions (by identity) give the same object. Raises `UserError` for an environment
    that already has goals, and if `achieved` and `draw_goal` return different shapes.
    """
    emitted = shapes(env)
    if env.goals is not None or emitted.goal is not None:
        raise UserError(f"'{env.name}' has goals already; it must be an environment without.")
    goal = jax.eval_shape(lambda key: draw_goal(key, env.params), jax.random.key(0))
    reached = jax.eval_shape(achieved, emitted.observation)
    if not hasattr(goal, "shape") or goal.shape != getattr(reached, "shape", None):
        raise UserError(
            f"The goals of '{env.name}' are drawn as {goal} and achieved as {reached}; both must "
            "be arrays of one shape."
        )

    def with_goal(timestep, goal):
        return dataclasses.replace(timestep, goal=goal, true_reward=None, reward_components=None)

    def reset(key, params):
        goal_key, key = jax.random.split(key)
        inner, timestep = env.reset(key, params)
        goal = draw_goal(goal_key, params)
        return State(inner, goal), with_goal(timestep, goal)

    def step(key, state, action, params):
        inner, timestep = env.step(key, state.inner, action, params)
        reward, ends = outcome(achieved(timestep.observation), state.goal, params)
        terminated = timestep.terminated | ends
        timestep = dataclasses.replace(
            timestep,
            reward=jnp.asarray(reward, jnp.float32),
            terminated=terminated,
            truncated=timestep.truncated & ~terminated,
        )
        return State(inner, state.goal), with_goal(timestep, state.goal)

    fields = lift_fields(env, state=True) | {"expert": None, "goals": Goals(achieved, outcome)}
    return dataclasses.replace(env, reset=reset, step=step, **fields)
