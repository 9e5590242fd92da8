"""How agents act: `act(net, timestep [B], memory [B], key, greedy) -> (action, memory, extras)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import schedules, spaces, trees
from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.kit.net import Net
from jaxrl.networks.heads import ILLEGAL

Act = Callable[..., Any]


def legal(q: Array, timestep: TimeStep) -> Array:
    """Action values [..., A], those of illegal actions far below all others."""
    allowed = timestep.legal_actions
    return q if allowed is None else jnp.where(allowed, q, ILLEGAL)


def epsilon(net: Net, path: str = "exploration") -> Array:
    """The probability of a random action now; `path` leads to the settings `EpsilonGreedy`."""
    h = net.hyper[path]
    return schedules.linear(h.start, h.end, schedules.progress(net.env_steps, h.steps))


def explored(q: Array, epsilon: Array, key: Key) -> Array:
    """The best action by values q [B, A], or with probability `epsilon`, a scalar or [B], any of
    the legal ones; the values of others are `ILLEGAL`."""
    explore_key, action_key = jax.random.split(key)
    random = jax.random.categorical(action_key, jnp.where(q > ILLEGAL, 0.0, ILLEGAL))
    explore = jax.random.uniform(explore_key, random.shape) < epsilon
    return jnp.where(explore, random, q.argmax(-1))


def epsilon_greedy(values: Callable[..., Array], space: Space, path: str = "exploration") -> Act:
    """The best action by `values(net, timestep) -> [B, A]`, or any legal one."""

    def act(net, timestep, memory, key, greedy):
        q = values(net, timestep)
        action = q.argmax(-1) if greedy else explored(q, epsilon(net, path), key)
        return action.astype(space.dtype), memory, {}

    return act


def sampled(part: str, space: Space) -> Act:
    """A sample of the policy `part`, or its mode, within bounds."""

    def act(net, timestep, memory, key, greedy):
        policy = getattr(net, part)(timestep)
        action = policy.mode() if greedy else policy.sample(seed=key)
        return spaces.clip(space, action), memory, {}

    return act


def told(part: str) -> Act:
    """A sample of the policy `part`, or its mode, as it is drawn: the environment clips it. The
    policy says its log-probability."""

    def act(net, timestep, memory, key, greedy):
        policy = getattr(net, part)(timestep)
        # Stopped, so that the gradient of the log-probability is the score, also of a normal.
        action = jax.lax.stop_gradient(policy.mode() if greedy else policy.sample(seed=key))
        return action, memory, {"log_prob": policy.log_prob(action)}

    return act


def with_noise(part: str, space: Space, half_width: Any, scale: str = "exploration_noise") -> Act:
    """The action of `part` with Gaussian noise of `scale` half-widths, within bounds."""

    def act(net, timestep, memory, key, greedy):
        action = getattr(net, part)(timestep)
        if not greedy:
            noise = net.hyper[scale] * half_width
            action = spaces.clip(space, action + noise * jax.random.normal(key, action.shape))
        return action, memory, {}

    return act


def drifting(part: str, space: Space, half_width: Any, path: str = "noise") -> Act:
    """The action of `part` with noise that drifts, by the `OrnsteinUhlenbeck` at `path`, within
    bounds. What is remembered is the noise [B, *shape], in half-widths, 0 at an episode's start."""

    def act(net, timestep, memory, key, greedy):
        action = getattr(net, part)(timestep)
        if not greedy:
            h = net.hyper[path]
            begun = trees.where(timestep.first, jnp.zeros_like(memory), memory)
            drawn = jax.random.normal(key, action.shape)
            memory = (1 - h.reversion) * begun + h.deviation * drawn
            action = spaces.clip(space, action + half_width * memory)
        return action, memory, {}

    return act


def random_at_first(act: Act, space: Space) -> Act:
    """`act`, but any action of `space` as likely until the first update: while a replay warms up
    and in the one window that is collected after it."""

    def random_or_not(net, timestep, memory, key, greedy):
        action, memory, extras = act(net, timestep, memory, key, greedy)
        if not greedy:
            keys = jax.random.split(jax.random.fold_in(key, 1), timestep.reward.shape[0])
            random = jax.vmap(lambda key: spaces.sample(space, key))(keys)
            action = trees.where(net.updates == 0, random, action)
        return action, memory, extras

    return random_or_not
