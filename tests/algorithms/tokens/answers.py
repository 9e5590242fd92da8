"""Batches of answers by hand, for tests of what judges them."""

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Batch, TimeStep, Transition


def make_batch(action, mask, reward, **metrics):
    """Return whole episodes [T, B] of tokens `action`, of which `mask` marks the decisions; each
    ends at its last one, where the `metrics` [B] are reported. reward: [T, B]."""
    last = mask & (np.cumsum(mask[::-1], 0)[::-1] == 1)
    no = np.zeros_like(mask)
    before = TimeStep(no, np.zeros(mask.shape, np.float32), no, no, no)
    metrics = {name: jnp.where(last, jnp.float32(x), 0) for name, x in metrics.items()}
    after = TimeStep(no, jnp.asarray(reward, jnp.float32), jnp.asarray(last), no, no)
    object.__setattr__(after, "metrics", metrics)
    t = Transition(before, jnp.asarray(action), after, (), {"log_prob": np.zeros(mask.shape)})
    return Batch(t, jnp.float32(0), mask=jnp.asarray(mask))
