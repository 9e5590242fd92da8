"""Rewards of several names that an environment pays for an answer."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.algorithms.preferences.shared.measures import all_answers
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment


def rewards_of(env: Environment) -> tuple[str, ...]:
    """Return the names of the parts of an environment's reward, in order."""
    return tuple(sorted(example_timestep(env).reward_components or {}))


def ratings_of(env: Environment) -> dict[str, Array]:
    """Return the rewards [P, A] of all answers by name."""
    found = all_answers(env)
    t = found.transitions
    total = lambda x: jnp.where(found.within, x, 0).sum(0).reshape(found.reward.shape)
    return jax.tree.map(total, dict(t.next_timestep.reward_components))
