"""A density of strings as an environment of one step: the action is a string, the reward says how
good it is, and the expert draws from the density.

A toy for the fine-tuning of discrete generative models on rewards, as models of DNA and proteins
are fine-tuned. There are so few strings that what a model cloned from the expert should become, the
law p times exp(r / beta), is known by enumeration.

Observation: float32 [1], always 0. Action: int32 [length], a string of `letters` letters. The
density p is a Markov chain with a uniform first letter and transition probabilities
softmax(`sharpness` z), where z is one fixed draw of normal numbers. Reward: `strength` times the
share of neighboring pairs (a, b) in which b is the letter after a (the first one comes after the
last). It is a sum of products of one-hots, so it is also known, with a gradient, where letters are
only probable (`relaxed_reward`). Terminates after one step. Metric: `motif`, the share of the
pairs. After the fine-tuning of models of DNA and proteins in Wang et al. (2024), "Fine-tuning
discrete diffusion models via reward optimization with applications to DNA and protein design".
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, MultiDiscrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least


@struct
class Params:
    scores: np.ndarray  # [V, V]: z of each next letter, before the softmax
    sharpness: float = 1.0  # factor on the scores; 0 for uniform strings
    strength: float = 1.0  # reward of a string all of whose pairs count


@struct
class State:
    demonstration: Array  # int32 [L]: what the expert would draw


def log_transitions(params: Params) -> Array:
    """Return log p(b | a) [V, V] of letters b after a."""
    return jax.nn.log_softmax(params.sharpness * jnp.asarray(params.scores), -1)


def log_density(string: Array, params: Params) -> Array:
    """Return the log-probability [...] of strings int [..., L]."""
    steps = log_transitions(params)[string[..., :-1], string[..., 1:]].sum(-1)
    return steps - jnp.log(len(params.scores))


def relaxed_reward(letters: Array, params: Params) -> Array:
    """Return the reward [...] of strings as probabilities of letters [..., L, V]; of one-hots it is
    that of the string."""
    wanted = jnp.roll(letters[..., :-1, :], 1, -1)  # the letter after each
    return params.strength * (wanted * letters[..., 1:, :]).sum(-1).mean(-1)


def every_string(env: Environment) -> np.ndarray:
    """Return all strings, int32 [V ** L, L]."""
    sizes = env.action_space.sizes
    return np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), -1).astype(np.int32)


def tilted_probabilities(env: Environment, beta: Array | float) -> tuple[Array, Array]:
    """Return the probabilities [V ** L] of all strings under p exp(r / beta), and their rewards."""
    strings, params = jnp.asarray(every_string(env)), env.params
    reward = relaxed_reward(jax.nn.one_hot(strings, len(params.scores)), params)
    return jax.nn.softmax(log_density(strings, params) + reward / beta), reward


@functools.cache
def strings(length: int = 4, letters: int = 4) -> Environment:
    """Strings of `length` (at least 2) of as many letters (at least 2)."""
    at_least("strings", "length", length, 2)
    at_least("strings", "letters", letters, 2)
    scores = np.random.default_rng(0).normal(size=(letters, letters)).astype(np.float32)
    empty = jnp.zeros(1, jnp.float32)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        first_key, key = jax.random.split(key)
        first = jax.random.randint(first_key, (), 0, letters, jnp.int32)
        table = log_transitions(params)

        def follow(letter: Array, key: Key) -> tuple[Array, Array]:
            after = jax.random.categorical(key, table[letter]).astype(jnp.int32)
            return after, after

        _, rest = jax.lax.scan(follow, first, jax.random.split(key, length - 1))
        drawn = jnp.concatenate([first[None], rest])
        return State(drawn), timesteps.first(empty, metrics={"motif": jnp.zeros(())})

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        share = ((action[:-1] + 1) % letters == action[1:]).mean(dtype=jnp.float32)
        paid = params.strength * share
        return state, timesteps.following(empty, paid, jnp.bool_(True), metrics={"motif": share})

    def render(state: State, params: Params) -> np.ndarray:
        """Draw what the expert would draw, a shade for each letter."""
        del params
        shade = np.asarray(state.demonstration, float) / max(letters - 1, 1)
        colors = np.round(255 * (1 - 0.8 * shade))[None, :, None].repeat(3, -1).astype(np.uint8)
        return drawing.tiles(colors, 100)

    return Environment(
        name="strings",
        reset=reset,
        step=step,
        params=Params(scores),
        observation_space=Box(0.0, 0.0, (1,)),
        action_space=MultiDiscrete((letters,) * length),
        max_steps=1,
        scores={"motif": "motif"},
        render=render,
        expert=lambda state, params: state.demonstration,
        log_density=log_density,
    )
