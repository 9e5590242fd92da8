"""Environments of jumanji (Bonnet et al., 2023, arXiv:2306.09884), by names such as
`jumanji/Snake-v1`.

Runs jumanji's own environment, without its wrapper for automatic resets. Observations keep their
named fields, and an action mask with one row for each component of the action is also given as
`legal_actions`. The last step terminates if its discount is 0 and truncates otherwise. Many of its
environments report their own time limit as a termination; those that take a limit are built with a
longer one, and our clock truncates at theirs. (`SearchAndRescue-v0`, whose reward depends on the
limit, keeps its own.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import random
from jaxrl.core.spaces import Discrete, MultiDiscrete, Space, example
from jaxrl.core.types import Array, Environment, TimeStep, Tree
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import (
    box,
    cast,
    cast_like,
    clip,
    stable_shapes,
    unbounded_space,
)
from jaxrl.envs.wrappers.time_limit import time_limit

REWARDED_BY_TIME = ("SearchAndRescue-v0",)
NO_LIMIT = 10_000  # steps; the others end by their own rules long before


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of jumanji's environment `name`. Raises `UserError` if there is none."""
    check_name("jumanji", name, package("jumanji").registered_environments())
    return functools.partial(build, name)


def build(name: str) -> Environment:
    """Build jumanji's environment `name`."""
    jumanji = package("jumanji")
    theirs = described = construct(f"jumanji/{name}", lambda: jumanji.make(name))
    limit = getattr(theirs, "time_limit", None)
    if limit is not None and name not in REWARDED_BY_TIME:
        # One more, so that at `limit` only the task ends an episode.
        theirs = jumanji.make(name, time_limit=limit + 1)
    observation_space = _space(described.observation_spec)
    action_space = _space(described.action_spec)
    scalar = described.reward_spec.shape == ()

    begin, follow = jax.jit(theirs.reset), jax.jit(theirs.step)  # for eager use

    def following(state, action):
        return follow(state, clip(action_space, action))

    key, action = random.key(0), example(action_space)
    shapes = construct(
        f"jumanji/{name}",
        lambda: stable_shapes(lambda: begin(key)[0], lambda state: following(state, action)[0]),
    )
    masked = _has_mask(jax.eval_shape(lambda: begin(key)[1].observation), action_space)

    def convert(timestep, first: bool) -> TimeStep:
        last = jnp.logical_and(timestep.last(), not first)
        ended = jnp.all(timestep.discount == 0)
        reward = jnp.zeros_like(timestep.reward) if first else timestep.reward
        return TimeStep(
            cast(observation_space, timestep.observation),
            jnp.asarray(reward, jnp.float32).reshape(() if scalar else reward.shape),
            terminated=last & ended,
            truncated=last & ~ended,
            first=jnp.full((), first),
            legal_actions=timestep.observation.action_mask if masked else None,
        )

    def reset(key, params):
        state, timestep = begin(key)
        return cast_like(shapes, state), convert(timestep, first=True)

    def step(key, state, action, params):
        state, timestep = following(state, action)
        return cast_like(shapes, state), convert(timestep, first=False)

    env = Environment(f"jumanji/{name}", reset, step, (), observation_space, action_space)
    return time_limit(env, limit or NO_LIMIT)


def _space(spec: Any, field: str = "") -> Space:
    specs = package("jumanji.specs")
    if not isinstance(spec, specs.Array):  # a structure with named fields
        return spec._constructor(**{k: _space(part, k) for k, part in spec._specs.items()})
    if isinstance(spec, specs.DiscreteArray):
        if field == "step_count":  # a clock, not a category; on the last step it is num_values
            return box(0, int(spec.num_values), (), jnp.int32)
        return Discrete(int(spec.num_values))
    if isinstance(spec, specs.MultiDiscreteArray) and len(spec.shape) == 1:
        return MultiDiscrete(tuple(int(n) for n in spec.num_values))
    if isinstance(spec, specs.BoundedArray):
        return box(spec.minimum, spec.maximum, spec.shape, spec.dtype)
    return unbounded_space(jax.ShapeDtypeStruct(spec.shape, spec.dtype))


def _has_mask(observation: Tree, action_space: Space) -> bool:
    """Return whether the observation has a mask in the form of `legal_actions`."""
    mask: Array | None = getattr(observation, "action_mask", None)
    match action_space:
        case Discrete(n):
            return mask is not None and mask.shape == (n,)
        case MultiDiscrete(sizes):
            return mask is not None and mask.shape == (len(sizes), max(sizes))
    return False
