"""Environments and an algorithm to name on a command line."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.policy_gradient.ppo import Config, ppo
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Algorithm, Environment
from jaxrl.envs.classic.cartpole import cartpole
from jaxrl.envs.wrappers.time_limit import time_limit

short_cartpole = time_limit(cartpole(), 3)
three_buttons = dataclasses.replace(cartpole(), action_space=Discrete(3))
endless = dataclasses.replace(cartpole(), max_steps=None)
blind = dataclasses.replace(cartpole(), name="blind", render=None)
wrong_shape = dataclasses.replace(cartpole(), observation_space=Box(-1, 1, (7,)))
odd_actions = dataclasses.replace(cartpole(), action_space=(Discrete(2), Discrete(2)))


def own_cartpole() -> Environment:
    """Return the built-in environment under another name."""
    return dataclasses.replace(cartpole(), name="own_cartpole")


def cartpole_with_success() -> Environment:
    """Return an environment of three steps that reports a success of 1 at the end."""
    env = short_cartpole

    def with_metrics(timestep):
        return dataclasses.replace(timestep, metrics={"success": jnp.float32(timestep.done)})

    def reset(key, params):
        state, timestep = env.reset(key, params)
        return state, with_metrics(timestep)

    def step(key, state, action, params):
        state, timestep = env.step(key, state, action, params)
        return state, with_metrics(timestep)

    return dataclasses.replace(env, reset=reset, step=step)


def never_returns() -> Environment:
    """Return an environment whose third step has no end."""
    env = cartpole()

    def reset(key, params):
        state, timestep = env.reset(key, params)
        return (state, jnp.int32(0)), timestep

    def step(key, state, action, params):
        inner, count = state
        turns = jax.lax.while_loop(lambda x: (count > 1) & (x >= 0), lambda x: 3 - x, count)
        inner, timestep = env.step(key, inner, action, params)
        return (inner, count + 1), dataclasses.replace(timestep, reward=timestep.reward + turns)

    return dataclasses.replace(env, reset=reset, step=step, expert=None, render=None)


def own_ppo(env: Environment, config: Config = Config()) -> Algorithm:
    """Return the built-in algorithm under another name."""
    return ppo(env, config)
