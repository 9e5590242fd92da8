"""Small datasets of the counting environment, in which every number is known."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.types import Policy
from jaxrl.datasets.data import Dataset
from jaxrl.datasets.transitions import from_streams
from jaxrl.sources import rollouts
from tests.counting import counting


def environment(terminates_after=10**6, truncates_after=3):
    import dataclasses

    env = counting(terminates_after, truncates_after)
    return dataclasses.replace(env, max_steps=4)


@functools.cache
def counted_steps(steps=8, streams=2, **ends) -> Dataset:
    """Record episodes of `streams` streams, of 3 steps and truncated by default."""
    env = environment(**ends)
    act = lambda state, timestep, memory, key, greedy: (
        jnp.zeros(streams, jnp.int32) + jnp.arange(streams, dtype=jnp.int32),
        memory,
        {},
    )
    policy = Policy(act, lambda n: (), ())
    source = rollouts(env, streams, steps)

    @jax.jit
    def play(key):
        state = source.init(key, {}, policy)
        return source.collect(state, policy, key)[1].transitions

    return Dataset("counted", from_streams(jax.tree.map(np.asarray, play(random.key(0)))))
