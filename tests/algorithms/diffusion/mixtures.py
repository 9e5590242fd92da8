"""Exact networks of the environment `mixture`: the noise in its noisy samples, its velocity, and
soft values of the reward x."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core.types import TimeStep

ENV = envs.make("mixture")
SPREAD, RADIUS = 0.08, 0.6
ANGLE = 2 * np.pi * np.arange(8) / 8
CENTERS = jnp.asarray(RADIUS * np.stack([np.cos(ANGLE), np.sin(ANGLE)], -1), jnp.float32)


def posterior(signal, noise, x, shift=0.0, beta=np.inf):
    """Weights [..., 8], means [..., 8, 2] and variance [..., 1] of clean samples, given x [..., 2],
    which is `signal` clean + `noise` noise, of the mixture tilted by exp(x / beta)."""
    signal, noise = (jnp.asarray(v)[..., None, None] for v in (signal, noise))
    centers = CENTERS + jnp.array([SPREAD**2 / beta, 0.0])
    total = signal**2 * SPREAD**2 + noise**2
    away = x[..., None, :] - signal * centers
    prior = CENTERS[:, 0] / beta
    weight = jax.nn.softmax(prior - 0.5 * jnp.square(away).sum(-1) / total[..., 0], -1)
    mean = centers + signal * SPREAD**2 / total * away
    return weight, mean, SPREAD**2 * noise[..., 0] ** 2 / total[..., 0]


def clean(signal, noise, x, beta=np.inf):
    """The mean [..., 2] of clean samples, given x."""
    weight, mean, _ = posterior(signal, noise, x, beta=beta)
    return (weight[..., None] * mean).sum(-2)


def noise_network(process):
    """The denoiser that predicts the noise in samples of the mixture."""

    def predict(timestep, x, level):
        bar = process.alpha_bars()[jnp.round(level * process.levels).astype(int)]
        signal, noise = jnp.sqrt(bar), jnp.sqrt(1 - bar)
        return (x - signal[..., None] * clean(signal, noise, x)) / noise[..., None]

    return predict


def soft_value_network(process, beta):
    """The soft values [..., 1] of noisy samples: beta log E[exp(x / beta)] of the clean ones."""

    def value(timestep, x, level):
        bar = process.alpha_bars()[jnp.round(level * process.levels).astype(int)]
        weight, mean, variance = posterior(jnp.sqrt(bar), jnp.sqrt(1 - bar), x)
        tilt = mean[..., 0] / beta + variance / 2 / beta**2
        return beta * jax.nn.logsumexp(tilt, axis=-1, b=weight)[..., None]

    return value


def velocity_network(beta=np.inf):
    """The velocity of the flow to the mixture tilted by exp(x / beta)."""

    def predict(timestep, x, time):
        ahead = (1 - time)[..., None]
        return (clean(time, 1 - time, x, beta) - x) / ahead

    return predict


def first_steps(n):
    """Time steps [n] of as many episodes."""
    no = jnp.zeros(n, bool)
    return TimeStep(jnp.zeros((n, 1)), jnp.zeros(n), no, no, ~no)
