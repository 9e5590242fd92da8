"""Windows of experience as single transitions over several steps."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Batch


def n_step(batch: Batch, discount: Array) -> Batch:
    """A batch of windows [n, B] as one of single transitions [B], each from a window's first step
    over at most n steps, up to the end of the first step's episode. What a value after it is
    discounted by is in `extras["discount"]`.

    With m steps the reward is sum_{k < m} discount^k r[k], the successor that of step m - 1 with
    its `terminated` and `truncated`, the discount discount^m: a truncated step bootstraps (Sutton
    & Barto, 2018, "Reinforcement learning", equation 7.1).
    """
    window = batch.transitions
    n = window.reward.shape[0]
    ended = jnp.cumsum(window.done, 0) - window.done > 0  # before this step
    steps = n - ended.sum(0)  # m, at least 1
    powers = discount ** jnp.arange(n)
    reward = jnp.einsum("t,tb->b", powers, jnp.where(ended, 0.0, window.reward))
    last = lambda x: jax.vmap(lambda x, m: x[m - 1], in_axes=(1, 0))(x, steps)
    following = dataclasses.replace(jax.tree.map(last, window.next_timestep), reward=reward)
    first = jax.tree.map(lambda x: x[0], window)
    extras = {**first.extras, "discount": discount**steps}
    transitions = dataclasses.replace(first, next_timestep=following, extras=extras)
    return dataclasses.replace(batch, transitions=transitions)
