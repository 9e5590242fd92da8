"""Normalizations as agent transformations: their statistics are part of the agent's state, so they
are saved, loaded and used in evaluation with it.

Both apply the old statistics and then update them: otherwise what is learned from would not be what
was acted on, and the probability ratio before the first update would not be 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, is_space
from jaxrl.core.types import Agent, Array, Environment, TimeStep, struct
from jaxrl.kit.wrapping import Wrapped, wrap


@struct
class Moments:
    """Mean and sum of squared deviations of `count` values (float32)."""

    mean: Array
    squares: Array
    count: Array

    @property
    def deviation(self) -> Array:
        """The standard deviation, 1 before anything was counted."""
        variance = self.squares / jnp.maximum(self.count, 1.0)
        return jnp.where(self.count > 0, jnp.sqrt(variance + 1e-8), 1.0)


def no_moments(shape: tuple[int, ...]) -> Moments:
    return Moments(jnp.zeros(shape), jnp.zeros(shape), jnp.float32(0))


def add(moments: Moments, values: Array, mask: Array | None = None) -> Moments:
    """Moments of what was counted and of `values` [..., *shape], where `mask` [...], together (Chan
    et al., 1983)."""
    axes = tuple(range(values.ndim - moments.mean.ndim))
    if mask is None:
        count = jnp.float32(values.size / max(moments.mean.size, 1))
        mean, squares = values.mean(axes), values.var(axes) * count
    else:
        held = mask.reshape(*mask.shape, *(1,) * moments.mean.ndim)
        count = mask.sum().astype(jnp.float32)
        mean = jnp.where(held, values, 0).sum(axes) / jnp.maximum(count, 1)
        squares = jnp.where(held, jnp.square(values - mean), 0).sum(axes)
    total = moments.count + count
    total = total if mask is None else jnp.maximum(total, 1.0)
    delta = mean - moments.mean
    return Moments(
        moments.mean + delta * count / total,
        moments.squares + squares + delta**2 * moments.count * count / total,
        moments.count + count,
    )


def normalize_observation(agent: Agent, env: Environment, clip: float = 10.0) -> Agent:
    """`agent`, seeing observations standardized with running statistics and clipped to +-`clip`:
    the statistics of the batches that it learned from, but for padding.

    Real-valued boxes are standardized feature by feature; integers are left as they are. What is
    held is a `Moments` for each part of the observation, None for those.
    """
    spaces, treedef = jax.tree.flatten(env.observation_space, is_leaf=is_space)
    real = [isinstance(s, Box) and jnp.issubdtype(s.dtype, jnp.floating) for s in spaces]

    def nothing(state):
        return [no_moments(s.shape) if r else None for s, r in zip(spaces, real, strict=True)]

    def see(state: Wrapped, timestep: TimeStep) -> TimeStep:
        parts = treedef.flatten_up_to(timestep.observation)
        seen = [
            x if m is None else jnp.clip((x - m.mean) / m.deviation, -clip, clip)
            for m, x in zip(state.own, parts, strict=True)
        ]
        return dataclasses.replace(timestep, observation=treedef.unflatten(seen))

    def update(state, batch, key):
        transitions = dataclasses.replace(
            batch.transitions,
            timestep=see(state, batch.transitions.timestep),
            next_timestep=see(state, batch.transitions.next_timestep),
        )
        tail = batch.tail and (see(state, batch.tail[0]), batch.tail[1])
        seen = dataclasses.replace(batch, transitions=transitions, tail=tail)
        inner, info = agent.update(state.agent, seen, key)
        parts = treedef.flatten_up_to(batch.transitions.observation)
        moments = [
            m if m is None else add(m, x, batch.mask) for m, x in zip(state.own, parts, strict=True)
        ]
        return inner, moments, info

    return wrap(agent, "normalize_observation", nothing, update, see)


@struct
class Returns:
    moments: Moments  # of the discounted return so far
    running: Array  # [B]: of the episodes that were running when the last window ended


def normalize_reward(agent: Agent, num_envs: int, clip: float = 10.0) -> Agent:
    """`agent`, learning from rewards divided by the running standard deviation of the discounted
    return so far (as in Engstrom et al., 2020, section 3), clipped to +-`clip`.

    For windows [T, B] of the same `num_envs` (B) streams. Raises `UserError` if the agent has no
    hyperparameter `discount`.
    """
    if "discount" not in agent.hyper:
        raise UserError(
            f"normalize_reward needs an agent with a discount; '{agent.name}' has none."
        )

    def nothing(state):
        return Returns(no_moments(()), jnp.zeros(num_envs))

    def update(state, batch, key):
        next_timestep, own = batch.transitions.next_timestep, state.own

        def accumulate(returns, step):
            reward, done = step
            returns = state.hyper["discount"] * returns + reward
            return jnp.where(done, 0.0, returns), returns

        later, returns = jax.lax.scan(
            accumulate, own.running, (next_timestep.reward, next_timestep.done)
        )
        reward = jnp.clip(next_timestep.reward / own.moments.deviation, -clip, clip)
        transitions = dataclasses.replace(
            batch.transitions, next_timestep=dataclasses.replace(next_timestep, reward=reward)
        )
        seen = dataclasses.replace(batch, transitions=transitions)
        inner, info = agent.update(state.agent, seen, key)
        return inner, Returns(add(own.moments, returns), later), info

    return wrap(agent, "normalize_reward", nothing, update, reads=("discount",))


def normalized(agent: Agent, env: Environment, config: Any) -> Agent:
    """`agent` with what the group `normalization` of its settings asks for, if there is one."""
    wanted = getattr(config, "normalization", None)
    if getattr(wanted, "reward", False):
        agent = normalize_reward(agent, config.rollouts.num_envs)
    if getattr(wanted, "observation", False):
        agent = normalize_observation(agent, env)
    return agent
