"""Windows of experience as single transitions over several steps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Transition


def n_step_transitions(window: Transition, discount: Array) -> Transition:
    """Return transitions [B] over at most n steps from a window [n, B].

    Each transition starts at the window's first step and ends after n steps, or where the first
    step's episode ends. With m steps its reward is sum_{k < m} discount^k r[k], its successor that
    of step m - 1 with its `terminated` and `truncated`, and `extras["discount"]`, by which the
    value after it is discounted, discount^m: a truncated step bootstraps.

    Source: Sutton and Barto, 2018, "Reinforcement learning", equation 7.1.
    """
    n = window.reward.shape[0]
    ended = jnp.cumsum(window.done, 0) - window.done > 0  # before this step
    steps = n - ended.sum(0)  # m, at least 1
    powers = discount ** jnp.arange(n)
    reward = jnp.einsum("t,tb->b", powers, jnp.where(ended, 0.0, window.reward))
    last = lambda x: jax.vmap(lambda x, m: x[m - 1], in_axes=(1, 0))(x, steps)
    following = dataclasses.replace(jax.tree.map(last, window.next_timestep), reward=reward)
    first = jax.tree.map(lambda x: x[0], window)
    extras = {**first.extras, "discount": discount**steps}
    return dataclasses.replace(first, next_timestep=following, extras=extras)
