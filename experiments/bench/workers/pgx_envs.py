"""The same with pgx's games, legal moves at random, in its own wrapper that resets."""

# It runs in an environment of its own, so a type checker finds no pgx here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring
import rolling


def load() -> None:
    import pgx  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax
    import jax.numpy as jnp
    import pgx
    from pgx.experimental import auto_reset

    number = arguments.envs
    env = pgx.make(arguments.config["theirs"])
    every_step = jax.vmap(auto_reset(env.step, env.init))

    def start(key):
        return jax.vmap(env.init)(jax.random.split(key, number))

    def step(key, state):
        act_key, step_key = jax.random.split(key)
        action = jax.random.categorical(act_key, jnp.where(state.legal_action_mask, 0.0, -jnp.inf))
        state = every_step(state, action, jax.random.split(step_key, number))
        return state, state.observation, state.rewards, state.terminated | state.truncated

    generator = jax.config.jax_default_prng_impl  # pyright: ignore
    about = {"library": "pgx", "generator": generator}
    return rolling.work(arguments, start, step, jax.random.key, about)


if __name__ == "__main__":
    measuring.main(load, work)
