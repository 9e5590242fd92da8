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
from jaxrl.core.types import Agent, Array, Environment, TimeStep, Tree, static, struct
from jaxrl.kit.wrapping import Wrapped, with_normalizer, wrap


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


@struct
class Normalizer:
    """Standardization of the observations of one space, whatever holds them.

    moments: a `Moments` for each part of the observation, in the order of its leaves, and None for
        each part that stays as it is.
    structure: of the observation. clip: bound of what is standardized.
    """

    moments: list[Moments | None]
    structure: Any = static()
    clip: float = static()

    def __call__(self, x: Any) -> Any:
        """Return a `TimeStep`, or an observation, with standardized observations [...]."""
        if isinstance(x, TimeStep):
            return dataclasses.replace(x, observation=self(x.observation))
        clip, parts = self.clip, self.structure.flatten_up_to(x)
        seen = [
            x if m is None else jnp.clip((x - m.mean) / m.deviation, -clip, clip)
            for m, x in zip(self.moments, parts, strict=True)
        ]
        return self.structure.unflatten(seen)

    def add(self, observation: Tree, mask: Array | None = None) -> Normalizer:
        """Return the normalizer that has also counted observations [...], where `mask` [...]."""
        parts = self.structure.flatten_up_to(observation)
        moments = [
            m if m is None else add(m, x, mask) for m, x in zip(self.moments, parts, strict=True)
        ]
        return dataclasses.replace(self, moments=moments)


def normalizer(env: Environment, clip: float = 10.0) -> Normalizer:
    """Return a normalizer of the observations of `env` that has counted nothing, and only clips.

    Real-valued boxes are standardized feature by feature, and clipped to +-`clip`; integers stay as
    they are.
    """
    spaces, structure = jax.tree.flatten(env.observation_space, is_leaf=is_space)
    real = [isinstance(s, Box) and jnp.issubdtype(s.dtype, jnp.floating) for s in spaces]
    moments = [no_moments(s.shape) if r else None for s, r in zip(spaces, real, strict=True)]
    return Normalizer(moments, structure, clip)


def statistics_of(env: Environment, observation: Tree, clip: float = 10.0) -> Normalizer:
    """Return a normalizer with the statistics of `observation`, leaves [N, ...], such as those of
    the training part of a dataset."""
    return normalizer(env, clip).add(jax.tree.map(jnp.asarray, observation))


def normalize_observation(
    agent: Agent, env: Environment, clip: float = 10.0, statistics: Normalizer | None = None
) -> Agent:
    """Return `agent`, which sees standardized observations: a `Normalizer` of running statistics.

    They are those of the batches that it learned from, without padding. The recipe reaches them as
    `net.normalize`, for observations that are in no batch.

    clip: bound of standardized observations; without effect where `statistics` are given, which
        have their own.
    statistics: fixed statistics, as `statistics_of` returns them, in place of running ones.
    """
    structure = jax.tree.structure(env.observation_space, is_leaf=is_space)
    bound = clip if statistics is None else statistics.clip

    def normalizer_of(state: Wrapped) -> Normalizer:
        return Normalizer(state.own, structure, bound)

    def show(state: Wrapped) -> Tree:
        return with_normalizer(state.agent, normalizer_of(state))

    def act(state, timestep, memory, key, greedy):
        return agent.act(show(state), normalizer_of(state)(timestep), memory, key, greedy)

    def update(state, batch, key):
        see = normalizer_of(state)
        transitions = dataclasses.replace(
            batch.transitions,
            timestep=see(batch.transitions.timestep),
            next_timestep=see(batch.transitions.next_timestep),
        )
        tail = batch.tail and (see(batch.tail[0]), batch.tail[1])
        seen = dataclasses.replace(batch, transitions=transitions, tail=tail)
        inner, info = agent.update(show(state), seen, key)
        if statistics is None:
            see = see.add(batch.transitions.observation, batch.mask)
        return with_normalizer(inner, None), see.moments, info

    def begin(state):
        first = normalizer(env, clip) if statistics is None else statistics
        return jax.tree.map(jnp.asarray, first.moments)

    return wrap(agent, "normalize_observation", begin, update, act=act)


def as_seen(state: Tree, env: Environment, timestep: TimeStep) -> TimeStep:
    """Return a time step [...] as an agent of this state sees it: standardized if it normalizes
    observations, with the default `clip`, and otherwise as it is."""
    while isinstance(state, Wrapped):
        if isinstance(state.own, list):  # of moments
            return dataclasses.replace(normalizer(env), moments=state.own)(timestep)
        state = state.agent
    return timestep


@struct
class Returns:
    moments: Moments  # of the discounted return so far
    running: Array  # [B]: of the episodes that were running when the last window ended


def normalize_reward(agent: Agent, num_envs: int, clip: float = 10.0) -> Agent:
    """`agent`, learning from rewards divided by the running standard deviation of the discounted
    return so far (as in Engstrom et al., 2020, section 3), clipped to +-`clip`.

    For windows [T, B] of the same `num_envs` (B) streams; those of an agent that plays several
    (`agents.joint`) are as many as environments times agents. A warm start takes over the moments
    of an agent that has some; running returns begin anew, since other episodes do. Raises
    `UserError` if the agent has no hyperparameter `discount`, and for windows of another number of
    streams.
    """
    if "discount" not in agent.hyper:
        raise UserError(
            f"normalize_reward needs an agent with a discount; '{agent.name}' has none."
        )

    def nothing(state):
        return Returns(no_moments(()), jnp.zeros(num_envs))

    def update(state, batch, key):
        next_timestep, own = batch.transitions.next_timestep, state.own
        if next_timestep.reward.shape[1:2] != (num_envs,):
            raise UserError(
                f"normalize_reward follows the returns of {num_envs} streams, but a window's "
                f"rewards are {list(next_timestep.reward.shape)}, [T, B]; set num_envs to the "
                "number of streams."
            )

        def accumulate(returns, step):
            reward, done = step
            returns = state.hyper["discount"] * returns + reward
            return jnp.where(done, 0.0, returns), returns

        earned = next_timestep.reward
        earned = earned if batch.mask is None else jnp.where(batch.mask, earned, 0.0)
        later, returns = jax.lax.scan(accumulate, own.running, (earned, next_timestep.done))
        reward = jnp.clip(next_timestep.reward / own.moments.deviation, -clip, clip)
        transitions = dataclasses.replace(
            batch.transitions, next_timestep=dataclasses.replace(next_timestep, reward=reward)
        )
        seen = dataclasses.replace(batch, transitions=transitions)
        inner, info = agent.update(state.agent, seen, key)
        return inner, Returns(add(own.moments, returns, batch.mask), later), info

    wrapped = wrap(agent, "normalize_reward", nothing, update, reads=("discount",))

    def adopt(state, other):
        if isinstance(other, Wrapped) and isinstance(other.own, Returns):
            return wrapped.adopt(state, replace_running(other, state.own.running))
        return dataclasses.replace(state, agent=agent.adopt(state.agent, other))

    def replace_running(state, running):
        return dataclasses.replace(state, own=dataclasses.replace(state.own, running=running))

    return dataclasses.replace(wrapped, adopt=adopt)


def add_normalization(agent: Agent, env: Environment, config: Any) -> Agent:
    """Add what the group `normalization` of the settings asks for, if there is one."""
    wanted = getattr(config, "normalization", None)
    if getattr(wanted, "reward", False):
        agent = normalize_reward(agent, config.rollouts.num_envs)
    if getattr(wanted, "observation", False):
        agent = normalize_observation(agent, env)
    return agent
