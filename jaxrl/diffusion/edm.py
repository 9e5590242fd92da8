"""Continuous noise levels: EDM's preconditioning and steps, and consistency models' outputs.

Samples are [..., D], features last: noisy = clean + sigma * noise; sigma is [...].
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.diffusion.variance_preserving import _safe_sqrt

__all__ = [
    "consistency_output",
    "edm_churn",
    "edm_denoised",
    "edm_euler_step",
    "edm_heun_step",
    "edm_preconditioning",
    "karras_sigmas",
]


def karras_sigmas(
    fraction: Array, largest: float = 80.0, smallest: float = 0.002, rho: float = 7.0
) -> Array:
    """EDM's noise levels for a sampler: many small ones, few large ones.

    sigma = (largest^(1/rho) + fraction (smallest^(1/rho) - largest^(1/rho)))^rho

    Args:
      fraction: [...], from 0 (start, noise) to 1 (end): i / (N - 1). The caller appends a final 0.
      largest, smallest: the levels at the ends.
      rho: how strongly the levels concentrate at the small end; 1: evenly spaced; infinite: evenly
        spaced in their logarithm, the limit.
    Returns: [...].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", eq. 5.
    Example: `diffusion.karras_sigmas(fraction)`
    """
    if rho == float("inf"):
        return largest ** (1 - fraction) * smallest**fraction
    start, end = largest ** (1 / rho), smallest ** (1 / rho)
    return (start + fraction * (end - start)) ** rho


def edm_preconditioning(
    sigma: Array, data_scale: Array | float = 0.5
) -> tuple[Array, Array, Array, Array]:
    """EDM's coefficients, which give a denoiser's network inputs and outputs unit variance.

    c_skip = d^2 / (s^2 + d^2), c_out = s d / sqrt(s^2 + d^2), c_in = 1 / sqrt(s^2 + d^2),
    c_noise = log(s) / 4, s = sigma, d = data_scale

    Args:
      sigma: [...], positive.
      data_scale: the data's standard deviation, positive.
    Returns: c_skip, c_out, c_in, c_noise, each [...].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", table 1.
    Example: `diffusion.edm_preconditioning(sigma, data_scale=0.5)`
    """
    total = jnp.square(sigma) + data_scale**2
    size = jnp.sqrt(total)
    return data_scale**2 / total, sigma * data_scale / size, 1 / size, 0.25 * jnp.log(sigma)


def edm_denoised(
    noisy: Array, output: Array, sigma: Array, data_scale: Array | float = 0.5
) -> Array:
    """Clean sample predicted by EDM's network, from its raw output.

    c_skip(sigma) noisy + c_out(sigma) output, output = network(c_in(sigma) noisy, c_noise(sigma))

    Args:
      noisy, output: [..., D].
      sigma: [...], positive.
      data_scale: the data's standard deviation.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", eq. 7.
    Example: `diffusion.edm_denoised(noisy, output, sigma, data_scale=0.5)`
    """
    skip, out, _, _ = edm_preconditioning(sigma, data_scale)
    return jnp.expand_dims(skip, -1) * noisy + jnp.expand_dims(out, -1) * output


def edm_churn(
    noisy: Array, noise: Array, sigma: Array, amount: Array | float
) -> tuple[Array, Array]:
    """Add noise back before a step of EDM's stochastic sampler.

    higher = sigma (1 + amount), noisy + sqrt(higher^2 - sigma^2) noise

    Args:
      noisy, noise: [..., D]; the noise is standard normal (times S_noise).
      sigma: [...].
      amount: gamma, min(S_churn / N, sqrt(2) - 1) where churn is on, nonnegative.
    Returns: the noisier sample [..., D] and its level [...].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", algorithm 2, lines 4 to 6.
    Example: `diffusion.edm_churn(noisy, noise, sigma, amount=0.2)`
    """
    growth = jnp.square(amount) + 2 * amount
    return noisy + jnp.expand_dims(sigma * _safe_sqrt(growth), -1) * noise, sigma * (1 + amount)


def edm_euler_step(noisy: Array, denoised: Array, sigma: Array, next_sigma: Array) -> Array:
    """Take one first-order step of EDM's sampling ODE toward a lower noise level.

    noisy + (next_sigma - sigma) (noisy - denoised) / sigma

    Args:
      noisy, denoised: [..., D], the latter predicted at (noisy, sigma).
      sigma, next_sigma: [...]; sigma is positive; next_sigma 0 gives `denoised`.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", algorithm 1, lines 4 and 5.
    Example: `diffusion.edm_euler_step(noisy, denoised, sigma, next_sigma)`
    """
    ratio = jnp.expand_dims(next_sigma / sigma, -1)
    return ratio * noisy + (1 - ratio) * denoised


def edm_heun_step(
    noisy: Array, denoised: Array, next_denoised: Array, sigma: Array, next_sigma: Array
) -> Array:
    """Take one second-order step of EDM's sampling ODE toward a lower noise level.

    noisy + (next_sigma - sigma) (slope + next_slope) / 2, slope = (noisy - denoised) / sigma,
    next_slope = (euler - next_denoised) / next_sigma; just euler where next_sigma is 0

    Args:
      noisy, denoised: [..., D], the latter predicted at (noisy, sigma).
      next_denoised: [..., D], predicted at (euler, next_sigma), euler = edm_euler_step(...).
      sigma, next_sigma: [...]; sigma is positive.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", algorithm 1.
    Example: `diffusion.edm_heun_step(noisy, denoised, next_denoised, sigma, next_sigma)`
    """
    euler = edm_euler_step(noisy, denoised, sigma, next_sigma)
    sigma, next_sigma = jnp.expand_dims(sigma, -1), jnp.expand_dims(next_sigma, -1)
    more = next_sigma > 0
    slope = (noisy - denoised) / sigma
    next_slope = (euler - next_denoised) / jnp.where(more, next_sigma, 1)
    return jnp.where(more, noisy + 0.5 * (next_sigma - sigma) * (slope + next_slope), euler)


def consistency_output(
    noisy: Array,
    output: Array,
    sigma: Array,
    data_scale: Array | float = 0.5,
    smallest: Array | float = 0.002,
) -> Array:
    """Output of a consistency model, which at the smallest noise level is the sample itself.

    c_skip noisy + c_out output, c_skip = d^2 / ((s - smallest)^2 + d^2),
    c_out = d (s - smallest) / sqrt(s^2 + d^2), s = sigma, d = data_scale

    Args:
      noisy, output: [..., D], the latter the network's raw output.
      sigma: [...], at least `smallest`.
      data_scale: the data's standard deviation.
      smallest: the noise level at which nothing changes.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Song et al., 2023, "Consistency models", appendix C.
    Example: `diffusion.consistency_output(noisy, output, sigma)`
    """
    above = sigma - smallest
    skip = data_scale**2 / (jnp.square(above) + data_scale**2)
    out = data_scale * above / jnp.sqrt(jnp.square(sigma) + data_scale**2)
    return jnp.expand_dims(skip, -1) * noisy + jnp.expand_dims(out, -1) * output
