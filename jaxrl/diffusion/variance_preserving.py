"""Variance-preserving diffusion: schedules, adding noise, conversions, denoising steps.

Samples are [..., D], features last; alpha_bar, the share of the variance that is signal, is [...]:
1 is clean, 0 is noise. Noise and network outputs are arguments.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "add_noise",
    "alpha_bar_from_beta",
    "beta_from_alpha_bar",
    "clean_from_noise",
    "clean_from_v",
    "cosine_alpha_bar",
    "ddim_step",
    "denoising_posterior",
    "dpm_solver_step",
    "linear_alpha_bar",
    "noise_from_clean",
    "noise_from_v",
    "score_from_noise",
    "v_target",
]


def _safe_sqrt(x: Array) -> Array:
    """Return the square root with gradient 0 at 0; 0 below 0, which only rounding can reach."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def _signal_and_noise(alpha_bar: Array) -> tuple[Array, Array]:
    """Return the scales of signal and noise in a sample, with an axis for its features."""
    alpha_bar = jnp.expand_dims(alpha_bar, -1)
    return _safe_sqrt(alpha_bar), _safe_sqrt(1 - alpha_bar)


def cosine_alpha_bar(time: Array, offset: float = 0.008) -> Array:
    """Cosine schedule: the share of signal at a time from 0 (clean) to 1 (noise).

    alpha_bar = f(time) / f(0), f(t) = cos^2(pi / 2 * (t + offset) / (1 + offset))

    Args:
      time: [...], from 0 to 1.
      offset: keeps the first steps from being too small.
    Returns: [...], from 1 to 0. For discrete steps see `beta_from_alpha_bar`, whose limit keeps the
      last step finite.
    Gradients: none are stopped.
    Source: Nichol and Dhariwal, 2021, "Improved denoising diffusion probabilistic models", eq. 17.
    Example: `diffusion.cosine_alpha_bar(time)`
    """
    first = math.cos(0.5 * math.pi * offset / (1 + offset)) ** 2
    return jnp.square(jnp.cos(0.5 * math.pi * (time + offset) / (1 + offset))) / first


def linear_alpha_bar(time: Array, first: float = 0.1, last: float = 20.0) -> Array:
    """Linear noise schedule: the share of signal at a time from 0 (clean) to 1 (noise).

    alpha_bar = exp(-integral of beta from 0 to time), beta(t) = first + t (last - first)

    Args:
      time: [...], from 0 (clean) to 1 (noise).
      first, last: the noise rate at time 0 and at time 1: N times the betas of N steps.
    Returns: [...].
    Gradients: none are stopped.
    Source: Song et al., 2021, "Score-based generative modeling through stochastic differential
      equations", appendix C (VP SDE); the limit of the betas of Ho et al., 2020.
    Example: `diffusion.linear_alpha_bar(time)`
    """
    return jnp.exp(-time * (first + 0.5 * time * (last - first)))


def alpha_bar_from_beta(beta: Array) -> Array:
    """Share of signal after each step, from the noise variances of the steps.

    alpha_bar_t = prod over s <= t of (1 - beta_s)

    Args: beta: [T, ...], from 0 to 1; Ho et al. use jnp.linspace(1e-4, 0.02, 1000).
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Ho et al., 2020, "Denoising diffusion probabilistic models", section 2.
    Example: `diffusion.alpha_bar_from_beta(beta)`
    """
    return jnp.cumprod(1 - beta, axis=0)


def beta_from_alpha_bar(alpha_bar: Array, largest: float = 0.999) -> Array:
    """Noise variance of each step, from the share of signal after each step.

    beta_t = min(1 - alpha_bar_t / alpha_bar_(t-1), largest), alpha_bar_(-1) = 1

    Args:
      alpha_bar: [T, ...], decreasing; 0 only in the last step.
      largest: limit that keeps the last step from erasing everything.
    Returns: [T, ...].
    Gradients: none are stopped; 0 where the limit applies.
    Source: Nichol and Dhariwal, 2021, "Improved denoising diffusion probabilistic models",
      section 3.2.
    Example: `diffusion.beta_from_alpha_bar(alpha_bar)`
    """
    previous = jnp.concatenate([jnp.ones_like(alpha_bar[:1]), alpha_bar[:-1]])
    return jnp.minimum(1 - alpha_bar / previous, largest)


def add_noise(clean: Array, noise: Array, alpha_bar: Array) -> Array:
    """Add noise to clean samples, as in the forward process of diffusion.

    sqrt(alpha_bar) clean + sqrt(1 - alpha_bar) noise

    Args:
      clean, noise: [..., D]; the noise is standard normal.
      alpha_bar: [...]; a separate level per frame of a sequence gives diffusion forcing.
    Returns: [..., D].
    Gradients: none are stopped; 0 into `alpha_bar` through a root at 0.
    Source: Ho et al., 2020, "Denoising diffusion probabilistic models", eq. 4.
    Example: `diffusion.add_noise(clean, noise, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return signal * clean + spread * noise


def clean_from_noise(noisy: Array, noise: Array, alpha_bar: Array) -> Array:
    """Clean sample implied by a noise prediction.

    (noisy - sqrt(1 - alpha_bar) noise) / sqrt(alpha_bar)

    Args:
      noisy, noise: [..., D].
      alpha_bar: [...], positive.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Ho et al., 2020, "Denoising diffusion probabilistic models", eq. 15.
    Example: `diffusion.clean_from_noise(noisy, noise, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return (noisy - spread * noise) / signal


def noise_from_clean(noisy: Array, clean: Array, alpha_bar: Array) -> Array:
    """Noise implied by a prediction of the clean sample.

    (noisy - sqrt(alpha_bar) clean) / sqrt(1 - alpha_bar)

    Args:
      noisy, clean: [..., D].
      alpha_bar: [...], below 1.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Song et al., 2021, "Denoising diffusion implicit models", eq. 9, solved for the noise.
    Example: `diffusion.noise_from_clean(noisy, clean, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return (noisy - signal * clean) / spread


def v_target(clean: Array, noise: Array, alpha_bar: Array) -> Array:
    """Target of v-prediction, which is well scaled at every noise level.

    v = sqrt(alpha_bar) noise - sqrt(1 - alpha_bar) clean

    Args:
      clean, noise: [..., D].
      alpha_bar: [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Salimans and Ho, 2022, "Progressive distillation for fast sampling of diffusion models",
      section 4 and appendix D.
    Example: `diffusion.v_target(clean, noise, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return signal * noise - spread * clean


def clean_from_v(noisy: Array, v: Array, alpha_bar: Array) -> Array:
    """Clean sample implied by a v-prediction, without a division, so valid at every level.

    sqrt(alpha_bar) noisy - sqrt(1 - alpha_bar) v

    Args:
      noisy, v: [..., D].
      alpha_bar: [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Salimans and Ho, 2022, "Progressive distillation for fast sampling of diffusion models",
      appendix D.
    Example: `diffusion.clean_from_v(noisy, v, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return signal * noisy - spread * v


def noise_from_v(noisy: Array, v: Array, alpha_bar: Array) -> Array:
    """Noise implied by a v-prediction, without a division, so valid at every level.

    sqrt(1 - alpha_bar) noisy + sqrt(alpha_bar) v

    Args:
      noisy, v: [..., D].
      alpha_bar: [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Salimans and Ho, 2022, "Progressive distillation for fast sampling of diffusion models",
      appendix D.
    Example: `diffusion.noise_from_v(noisy, v, alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    return spread * noisy + signal * v


def score_from_noise(noise: Array, alpha_bar: Array) -> Array:
    """Score of noisy samples (gradient of their log-density), implied by a noise prediction.

    -noise / sqrt(1 - alpha_bar)

    Args:
      noise: [..., D], predicted.
      alpha_bar: [...], below 1.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Song et al., 2021, "Score-based generative modeling through stochastic differential
      equations"; Vincent, 2011, "A connection between score matching and denoising
      autoencoders".
    Example: `diffusion.score_from_noise(noise, alpha_bar)`
    """
    return -noise / _signal_and_noise(alpha_bar)[1]


def denoising_posterior(
    noisy: Array, clean: Array, alpha_bar: Array, previous_alpha_bar: Array
) -> tuple[Array, Array]:
    """Mean and variance of DDPM's step to a less noisy sample, from a predicted clean one.

    q(x_(t-1) | x_t, x_0): mean = (sqrt(b') beta x_0 + sqrt(alpha) (1 - b') x_t) / (1 - b),
    variance = beta (1 - b') / (1 - b),
    b = alpha_bar, b' = previous_alpha_bar, alpha = b / b', beta = 1 - alpha

    Args:
      noisy, clean: [..., D], x_t and x_0.
      alpha_bar: [...], of x_t, below 1.
      previous_alpha_bar: [...], of the less noisy x_(t-1), positive; 1 at the last step.
    Returns: the mean [..., D] and the variance [...], the same for all features.
    Gradients: none are stopped.
    Source: Ho et al., 2020, "Denoising diffusion probabilistic models", eq. 6 and 7.
    Example: `diffusion.denoising_posterior(noisy, clean, alpha_bar, previous_alpha_bar)`
    """
    alpha = alpha_bar / previous_alpha_bar
    share = (1 - previous_alpha_bar) / (1 - alpha_bar)
    clean_weight = _safe_sqrt(previous_alpha_bar) * (1 - alpha) / (1 - alpha_bar)
    noisy_weight = _safe_sqrt(alpha) * share
    mean = jnp.expand_dims(clean_weight, -1) * clean + jnp.expand_dims(noisy_weight, -1) * noisy
    return mean, (1 - alpha) * share


def ddim_step(
    noisy: Array,
    clean: Array,
    alpha_bar: Array,
    previous_alpha_bar: Array,
    eta: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Mean and noise scale of DDIM's step: deterministic at eta = 0, DDPM's step at eta = 1.

    mean = sqrt(b') x_0 + sqrt(1 - b' - scale^2) noise, noise = noise_from_clean(x_t, x_0, b)
    scale = eta sqrt((1 - b') / (1 - b)) sqrt(1 - b / b'), b = alpha_bar, b' = previous_alpha_bar

    Args:
      noisy, clean: [..., D], x_t and the predicted x_0.
      alpha_bar: [...], of x_t, below 1.
      previous_alpha_bar: [...], of the next, less noisy sample; steps may skip levels.
      eta: from 0 to 1, broadcasts to [...].
    Returns: the mean [..., D] and the standard deviation [...]: the sample is mean + scale * noise.
    Gradients: none are stopped; 0 through a root at 0.
    Source: Song et al., 2021, "Denoising diffusion implicit models", eq. 12 and 16.
    Example: `diffusion.ddim_step(noisy, clean, alpha_bar, previous_alpha_bar, eta=1.0)`
    """
    share = (1 - previous_alpha_bar) / (1 - alpha_bar)
    scale = eta * _safe_sqrt(share * (1 - alpha_bar / previous_alpha_bar))
    direction = jnp.expand_dims(_safe_sqrt(1 - previous_alpha_bar - jnp.square(scale)), -1)
    noise = noise_from_clean(noisy, clean, alpha_bar)
    return _signal_and_noise(previous_alpha_bar)[0] * clean + direction * noise, scale


def dpm_solver_step(
    noisy: Array,
    clean: Array,
    earlier_clean: Array,
    alpha_bar: Array,
    previous_alpha_bar: Array,
    earlier_alpha_bar: Array,
) -> Array:
    """Take one step of DPM-Solver++ (2M), of second order with one prediction per step.

    sqrt(1 - b') / sqrt(1 - b) x_t + (sqrt(b') - sqrt(b) sqrt(1 - b') / sqrt(1 - b)) d,
    d = x_0 + (x_0 - earlier x_0) h / (2 earlier h), h = l(b') - l(b), earlier h = l(b) - l(b''),
    l(b) = log(b / (1 - b)) / 2, b = alpha_bar, b' = previous_alpha_bar, b'' = earlier_alpha_bar

    Args:
      noisy, clean: [..., D], x_t and the predicted x_0.
      earlier_clean: [..., D], x_0 as it was predicted at the last, noisier sample.
      alpha_bar: [...], of x_t, positive, below 1.
      previous_alpha_bar: [...], of the next, less noisy sample; 1 at the last step, which is of
        first order and returns `clean`.
      earlier_alpha_bar: [...], of the last, noisier sample, positive; the same as `alpha_bar` at
        the first step, which is of first order: `ddim_step`.
    Returns: [..., D].
    Gradients: none are stopped; 0 through a root at 0.
    Source: Lu et al., 2022, "DPM-Solver++: fast solver for guided sampling of diffusion
      probabilistic models", algorithm 2.
    Example: `diffusion.dpm_solver_step(
      noisy, clean, earlier_clean, alpha_bar, previous_alpha_bar, earlier_alpha_bar)`
    """
    signal, spread = _signal_and_noise(alpha_bar)
    next_signal, next_spread = _signal_and_noise(previous_alpha_bar)
    odds = lambda b: jnp.log(b) - jnp.log1p(-b)
    past = odds(alpha_bar) - odds(earlier_alpha_bar)
    second = (past > 0) & (previous_alpha_bar < 1)
    end = jnp.where(second, previous_alpha_bar, alpha_bar)
    share = 0.5 * (odds(end) - odds(alpha_bar)) / jnp.where(second, past, 1)
    direction = clean + jnp.expand_dims(share, -1) * (clean - earlier_clean)
    ratio = next_spread / spread
    return ratio * noisy + (next_signal - signal * ratio) * direction
