"""Step many copies of a library's environment with random actions, for every worker of the bench.

A library gives two functions, `start(key)` and `step(key, carry)`, both for all copies at once, and
`step` returns `(carry, observation, reward, done)` after the reset of the copies that ended.
Rewards, ends and a checksum of every observation are part of the result: none can be left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import measuring


def work(
    arguments: argparse.Namespace,
    start: Callable[[Any], Any],
    step: Callable[[Any, Any], tuple[Any, Any, Any, Any]],
    key: Callable[[int], Any],
    about: dict[str, Any],
) -> measuring.Work:
    import jax
    import jax.numpy as jnp

    def total(x):
        return jnp.sum(x, dtype=jnp.float32)

    def program(number):
        def run(key):
            start_key, key = jax.random.split(key)

            def body(carry, key):
                carry, observation, reward, done = step(key, carry)
                seen = sum(total(x) for x in jax.tree.leaves(observation))
                return carry, (seen, total(reward), total(done))

            _, sums = jax.lax.scan(body, start(start_key), jax.random.split(key, number))
            return jax.tree.map(jnp.sum, sums)

        return run

    def length(result, seed, episodes):
        """Steps to an end: the same on both sides, or they are not the same environment."""
        env_steps = arguments.envs * -(-arguments.steps // arguments.envs)
        return env_steps / max(float(result[2]), 1.0)

    def curve(seed, points, updates, episodes):
        raise NotImplementedError("Nothing is learned here.")

    return measuring.Work(program, key, length, curve, {"shuffle": "-", **about})
