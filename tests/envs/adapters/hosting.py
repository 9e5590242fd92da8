"""A policy for tests of environments on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Policy


def constant(action) -> Policy:
    """Return a policy that acts alike everywhere, and counts steps in its memory."""

    def act(state, timestep, memory, key, greedy):
        n = timestep.first.shape[0]
        return jax.tree.map(lambda x: jnp.stack([x] * n), action), memory + 1, {"before": memory}

    return Policy(act, lambda n: jnp.zeros(n, jnp.int32), ())
