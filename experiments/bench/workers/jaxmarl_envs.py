"""The same with JaxMARL, whose `step` resets by itself."""

# It runs in an environment of its own, so a type checker finds no jaxmarl here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import measuring
import rolling


def load() -> None:
    import jaxmarl  # noqa: F401


def work(arguments: argparse.Namespace) -> measuring.Work:
    import jax
    import jaxmarl

    number = arguments.envs
    env = jaxmarl.make(arguments.config["theirs"], **arguments.config["their_settings"])
    every_step = jax.vmap(env.step)

    def start(key):
        return jax.vmap(env.reset)(jax.random.split(key, number))[1]

    def step(key, state):
        act_key, step_key = jax.random.split(key)
        keys = jax.random.split(act_key, len(env.agents))
        action = {
            name: jax.random.randint(key, (number,), 0, env.action_space(name).n)
            for name, key in zip(env.agents, keys, strict=True)
        }
        observation, state, reward, done, _ = every_step(
            jax.random.split(step_key, number), state, action
        )
        total = sum(reward[name] for name in env.agents)
        return state, observation, total, done["__all__"]

    generator = jax.config.jax_default_prng_impl  # pyright: ignore
    about = {"library": "jaxmarl", "generator": generator}
    return rolling.work(arguments, start, step, jax.random.key, about)


if __name__ == "__main__":
    measuring.main(load, work)
