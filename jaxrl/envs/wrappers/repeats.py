"""Actions that last longer than one step."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import spaces, trees
from jaxrl.core.types import Array, Environment, TimeStep, Tree, struct
from jaxrl.envs.wrappers import arguments
from jaxrl.envs.wrappers.lifting import lift_fields, merge_channel, without_legal_actions


@struct
class StickyActions:
    """Parameters of `sticky_actions`."""

    inner: Tree
    stickiness: float  # probability that the last action is repeated


@struct
class StickyState:
    """State of the wrapped environment and the action that was played last."""

    inner: Tree
    last: Tree
    any: Array  # bool: whether an action was played in this episode
    legal_actions: Tree


def sticky_actions(env: Environment, stickiness: float = 0.25) -> Environment:
    """Repeat the last played action in place of the chosen one with probability `stickiness`
    (`params.stickiness`) at each step.

    Machado et al. (2018), "Revisiting the Arcade Learning Environment", section 5.2, with their
    0.25. An episode's first action is never replaced (there is none before it), and an action that
    is no longer legal is never repeated. Raises `UserError` for a probability outside [0, 1].
    """
    return _sticky(env, arguments.number(env, "stickiness", stickiness, high=1.0))


@functools.cache
def _sticky(env: Environment, stickiness: float) -> Environment:
    def reset(key, params):
        inner, timestep = env.reset(key, params.inner)
        last = spaces.example(env.action_space)
        return StickyState(inner, last, jnp.zeros((), bool), timestep.legal_actions), timestep

    def step(key, state, action, params):
        sticky_key, key = jax.random.split(key)
        again = state.any & (jax.random.uniform(sticky_key) < params.stickiness)
        again &= _is_legal(state.last, state.legal_actions)
        played = jax.tree.map(
            lambda last, new: jnp.where(again, last, new).astype(last.dtype), state.last, action
        )
        inner, timestep = env.step(key, state.inner, played, params.inner)
        return StickyState(inner, played, jnp.ones((), bool), timestep.legal_actions), timestep

    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        params=StickyActions(env.params, stickiness),
        **lift_fields(env, state=True, params=True),
    )


def _is_legal(action: Tree, legal_actions: Any) -> Array:
    """Return whether all parts of an action are legal; a part without a mask is."""
    parts, treedef = jax.tree.flatten(action)
    legal = jnp.ones((), bool)
    if legal_actions is None:
        return legal
    for part, mask in zip(parts, treedef.flatten_up_to(legal_actions), strict=True):
        if mask is not None:
            chosen = jnp.arange(mask.shape[-1]) == part[..., None]
            legal &= jnp.all(jnp.any(mask & chosen, axis=-1))
    return legal


@struct
class RepeatState:
    """State of the wrapped environment and the steps that it took in this episode."""

    inner: Tree
    inner_steps: Array  # int32


def action_repeat(env: Environment, repeats: int) -> Environment:
    """Play every action for `repeats` steps and show the last of them.

    The reward is the sum over these steps (as are `cost`, `reward_components` and `true_reward`).
    If the episode ends at one of them, the rest is not played. `metrics["inner_steps"]` is the
    number of steps of `env` in this episode. Environments with `legal_actions` are refused, since
    an action could become illegal in between; `goals` is None, since the rewards of the steps in
    between are lost. The expert chooses as often as the agent does. `max_steps` counts steps of the
    new environment, and `step_seconds` is the time of all `repeats`.

    Raises `UserError` if `repeats` is not a positive integer.
    """
    repeats = arguments.positive_integer(env, "action repeat", repeats)
    without_legal_actions(env, "action_repeat")
    return _action_repeat(env, repeats)


@functools.cache
def _action_repeat(env: Environment, repeats: int) -> Environment:
    def with_inner_steps(timestep: TimeStep, inner_steps: Array) -> TimeStep:
        if timestep.metrics and "inner_steps" in timestep.metrics:  # counted by an inner wrapper
            return timestep
        counted = {"inner_steps": inner_steps.astype(jnp.float32)}
        return dataclasses.replace(
            timestep, metrics=merge_channel(env, "metrics", timestep.metrics, counted)
        )

    def reset(key, params):
        inner, timestep = env.reset(key, params)
        inner_steps = jnp.zeros((), jnp.int32)
        return RepeatState(inner, inner_steps), with_inner_steps(timestep, inner_steps)

    def step(key, state, action, params):
        def play(carry, key):
            before, so_far, inner_steps = carry
            inner, timestep = env.step(key, before, action, params)
            over = so_far.done
            timestep = trees.where(over, so_far, _sum_rewards(so_far, timestep))
            return (trees.where(over, before, inner), timestep, inner_steps + ~over), None

        # A scan, so that the environment is compiled once; it starts from a time step of zeros.
        nothing = trees.zeros(jax.eval_shape(env.step, key, state.inner, action, params)[1])
        keys = jax.random.split(key, repeats)
        carry = (state.inner, nothing, state.inner_steps)
        (inner, timestep, inner_steps), _ = jax.lax.scan(play, carry, keys)
        return RepeatState(inner, inner_steps), with_inner_steps(timestep, inner_steps)

    limit = env.max_steps
    fields = lift_fields(env, state=True)
    seconds = fields["step_seconds"]
    return dataclasses.replace(
        env,
        reset=reset,
        step=step,
        max_steps=None if limit is None else -(-limit // repeats),
        **fields
        | {
            "goals": None,
            "step_seconds": seconds and (lambda state, params: repeats * seconds(state, params)),
        },
    )


_SUMMED = ("reward", "cost", "reward_components", "true_reward")


def _sum_rewards(so_far: TimeStep, timestep: TimeStep) -> TimeStep:
    sums = {
        name: jax.tree.map(jnp.add, getattr(so_far, name), getattr(timestep, name))
        for name in _SUMMED
    }
    return dataclasses.replace(timestep, **sums)
