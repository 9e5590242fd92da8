"""Masked diffusion of strings that are actions of one step: network, sampling, what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxrl import diffusion
from jaxrl.algorithms.diffusion.shared.fine_tuning import SAMPLES, OneStep
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy
from jaxrl.envs.bandits.strings import Params, tilted_probabilities
from jaxrl.kit import Part, group, static
from jaxrl.kit.groups import Optimizer, Torso
from jaxrl.networks.denoisers import LevelFeatures
from jaxrl.networks.dense import dense
from jaxrl.networks.initializers import initializer
from jaxrl.networks.torsos import MLP

LEAST = 1e-20  # probability whose logarithm is taken in place of that of 0

# Soft strings [..., L, V + 1] and level [...] -> logits [..., L, V].
Logits = Callable[[Array, Array], Array]


@group
class TokenDiffusion:
    """Masked diffusion model of strings."""

    torso: Torso = Torso(hidden=(128, 128), activation="silu")

    steps: int = static(8, low=1)
    """Number of denoising steps; about length / steps letters are unmasked in each."""


@group
class TokenTuning(TokenDiffusion):
    """Settings shared by algorithms that fine-tune a masked diffusion model on rewards."""

    rollouts: OneStep = OneStep()
    optimizer: Optimizer = Optimizer(learning_rate=1e-3)
    """Optimizer settings of the generative model."""


class StringDenoiser(nn.Module):
    """Logits of the letters of partly masked strings: [..., L, V + 1], level [...] -> [..., L,
    V]."""

    widths: tuple[int, ...]
    activation: str = "silu"
    level_features: int = 16
    initializer: str = "lecun"

    @nn.compact
    def __call__(self, string: Array, level: Array) -> Array:
        *batch, length, size = string.shape
        level = jnp.broadcast_to(level, tuple(batch))
        levels = LevelFeatures(self.level_features)(level)
        x = jnp.concatenate([string.reshape(*batch, length * size), levels], -1)
        x = MLP(self.widths, self.activation, self.initializer)(x)
        logits = dense(length * (size - 1), initializer(self.initializer, 1.0))(x)
        return logits.reshape(*batch, length, size - 1)


def sizes_of(env: Environment) -> tuple[int, int]:
    """Return the length L and the number V of letters of strings."""
    sizes = env.action_space.sizes
    return len(sizes), sizes[0]


def denoiser_part(env: Environment, config: Any, **options: Any) -> Part:
    """Return a part that holds a denoiser of strings."""
    length, letters = sizes_of(env)
    torso = config.torso
    network = StringDenoiser(torso.hidden, torso.activation, initializer=torso.initializer)
    return Part(network, (jnp.zeros((1, length, letters + 1)), jnp.ones(1)), **options)


def tuned_parts(env: Environment, config: Any) -> dict[str, Part]:
    """Return the `denoiser` that is trained, and its frozen `base`."""
    return {
        "denoiser": denoiser_part(env, config, optimizer=config.optimizer),
        "base": denoiser_part(env, config, begins_as="denoiser"),
    }


def one_hot(string: Array, letters: int) -> Array:
    """Return strings [..., L], in which the number `letters` is a mask, as [..., L, V + 1]."""
    return jax.nn.one_hot(string, letters + 1)


def unmask(logits: Logits, string: Array, step: Array, steps: int) -> Array:
    """Return the probabilities [..., L, V + 1] of each letter, or the mask, after a step, where a
    letter is masked before it."""
    alpha = jnp.broadcast_to(step / steps, string.shape[:-1])
    found = logits(string, 1 - alpha[..., 0])
    after = jnp.where(step == steps - 1, 1.0, alpha + 1 / steps)  # no mask is left
    return diffusion.unmasking_probs(found, alpha, after)


def sample_strings(key: Key, logits: Logits, n: int, size: tuple[int, int], steps: int) -> Array:
    """Draw strings int32 [n, L] from the model."""
    length, letters = size

    def take(string: Array, item: tuple[Array, Key]) -> tuple[Array, None]:
        step, key = item
        probs = unmask(logits, one_hot(string, letters), step, steps)
        new = jax.random.categorical(key, jnp.log(jnp.maximum(probs, LEAST))).astype(jnp.int32)
        return jnp.where(string == letters, new, string), None

    masked = jnp.full((n, length), letters, jnp.int32)
    items = jnp.arange(steps, dtype=jnp.float32), jax.random.split(key, steps)
    return jax.lax.scan(take, masked, items)[0]


def measure_strings(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Measure samples beside the exact law p(x) exp(r(x) / beta), beta a hyperparameter.

    `tilted_distance` is the total variation over all strings, with 4,096 samples, of which a
    perfect sampler of 256 strings has less than 0.1; `tilted_reward` the expected reward of the
    exact law.
    """
    law, reward = tilted_probabilities(env, policy.state.hyper["beta"])
    timestep = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (SAMPLES, *x.shape[1:])), example_timestep(env)
    )
    found, _, _ = policy.act(policy.state, timestep, policy.memory(SAMPLES), key, True)
    length, letters = sizes_of(env)
    number = (found * letters ** jnp.arange(length - 1, -1, -1)).sum(-1)
    share = jnp.bincount(number, length=len(law)) / SAMPLES
    return {
        "tilted_distance": 0.5 * jnp.abs(share - law).sum(),
        "tilted_reward": (law * reward).sum(),
    }


STRING_SCORES = {"tilted_distance": "distance from the tilted law", "tilted_reward": "its reward"}


def check_strings(env: Environment, config: Any, name: str) -> None:
    """Raise `UserError` unless actions are strings."""
    if not isinstance(env.params, Params):
        raise UserError(
            f"{name} cannot act in '{env.name}'; it needs strings as actions, such as those of the "
            "environment strings."
        )
