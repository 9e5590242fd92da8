"""Whole episodes of token environments, played by given tokens or by the expert."""

import functools

import jax
import jax.numpy as jnp


@functools.cache
def player(env):
    """Build a function (states [N], actions [N, T]) -> time steps [N, T]; a negative action leaves
    the choice to the expert. What follows an episode's end means nothing."""

    def play(state, actions):
        def step(state, action):
            if env.expert is not None:
                action = jnp.where(action < 0, env.expert(state, env.params), action)
            return env.step(jax.random.key(0), state, action, env.params)

        return jax.lax.scan(step, state, actions)[1]

    return jax.jit(jax.vmap(play))


@functools.cache
def _reset(env):
    return jax.jit(jax.vmap(env.reset, in_axes=(0, None)))


def reset(env, number, seed=0):
    """Return the states and first time steps [N] of episodes."""
    return _reset(env)(jax.random.split(jax.random.key(seed), number), env.params)


def follow_expert(env, number, seed=0):
    """Return the states [N] that episodes of the expert begin with, and their time steps [N, T]."""
    state, _ = reset(env, number, seed)
    return state, player(env)(state, jnp.full((number, env.max_steps), -1))


def until_end(timestep):
    """Return which time steps [N, T] belong to the episode."""
    return jnp.cumsum(timestep.done, 1) - timestep.done == 0
