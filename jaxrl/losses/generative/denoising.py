"""Losses of denoisers: score matching, consistency, and sequences of frames.

Samples are [..., D], features last. Noise and network outputs are arguments.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import masked_mean
from jaxrl.losses.values.errors_and_targets import prediction_error

__all__ = [
    "consistency",
    "denoising_score_matching",
    "diffusion_forcing",
    "edm_weight",
    "pseudo_huber",
]


@check_arguments
def denoising_score_matching(score: Array, noise: Array, sigma: Array) -> Array:
    """Score-matching loss: fit the gradient of the log-density of noisy samples.

    sigma^2 |score + noise / sigma|^2 / 2 = |sigma score + noise|^2 / 2, at x = clean + sigma noise

    Args:
      score: [..., D], predicted at clean + sigma * noise.
      noise: [..., D], standard normal.
      sigma: [...], the noise's scale.
    Returns: [...], summed over features, weighted by sigma^2 so that all levels count equally.
    Gradients: none flow into `noise` or `sigma`.
    Source: Song and Ermon, 2019, "Generative modeling by estimating gradients of the data
      distribution", eq. 5 and 6; Vincent, 2011.
    Example: `losses.denoising_score_matching(score, noise, sigma).mean()`
    """
    noise, sigma = jax.lax.stop_gradient((noise, sigma))
    return 0.5 * jnp.square(jnp.expand_dims(sigma, -1) * score + noise).sum(-1)


@check_arguments
def edm_weight(sigma: Array, data_scale: Array | float = 0.5) -> Array:
    """Weight of EDM's denoising loss, which makes the loss of every noise level start at 1.

    (sigma^2 + d^2) / (sigma d)^2 = 1 / c_out^2, d = data_scale

    Args:
      sigma: [...], positive.
      data_scale: the data's standard deviation.
    Returns: [...], a factor for `prediction_error(denoised, clean)`.
    Gradients: none are stopped.
    Source: Karras et al., 2022, "Elucidating the design space of diffusion-based generative
      models", table 1 and eq. 8.
    Example: `losses.edm_weight(sigma, data_scale=0.5)`
    """
    return 1 / jnp.square(data_scale) + 1 / jnp.square(sigma)


@check_arguments
def pseudo_huber(prediction: Array, target: Array, threshold: Array | float) -> Array:
    """Pseudo-Huber distance: quadratic when small, linear when large, smooth everywhere.

    sqrt(|prediction - target|^2 + threshold^2) - threshold

    Args:
      prediction, target: [..., D].
      threshold: c, positive; 0.00054 sqrt(D) in the paper on consistency models.
    Returns: [...].
    Gradients: none flow into `target`.
    Source: Song and Dhariwal, 2024, "Improved techniques for training consistency models".
    Example: `losses.pseudo_huber(prediction, target, threshold=0.1).mean()`
    """
    # In units of the threshold and as d^2 / (sqrt(d^2 + 1) + 1): the difference of nearly equal
    # numbers would lose all digits.
    difference = (prediction - jax.lax.stop_gradient(target)) / jnp.expand_dims(threshold, -1)
    size = jnp.square(difference).sum(-1)
    return threshold * size / (jnp.sqrt(size + 1) + 1)


@check_arguments
def consistency(
    prediction: Array,
    target: Array,
    sigma: Array,
    lower_sigma: Array,
    threshold: Array | float,
) -> Array:
    """Loss of a consistency model: neighbors on a noise path must map to the same clean sample.

    pseudo_huber(f(x_sigma), stop(f(x_lower)), threshold) / (sigma - lower_sigma)

    Args:
      prediction: [..., D], f of the noisier sample, by `diffusion.consistency_output`.
      target: [..., D], f of the less noisy one: clean + lower_sigma * the same noise (training),
        or a teacher's step from the noisier sample (distillation), `diffusion.edm_euler_step` or
        `diffusion.edm_heun_step`.
      sigma, lower_sigma: [...]; sigma is the larger.
      threshold: as in `pseudo_huber`.
    Returns: [...].
    Gradients: none flow into `target`.
    Source: Song et al., 2023, "Consistency models", eq. 7 and 10; the distance and the weight of
      Song and Dhariwal, 2024, "Improved techniques for training consistency models".
    Example: `losses.consistency(prediction, target, sigma, lower_sigma, threshold=0.1).mean()`
    """
    return pseudo_huber(prediction, target, threshold) / (sigma - lower_sigma)


@check_arguments
def diffusion_forcing(
    prediction: Array, target: Array, weight: Array | float = 1.0, mask: Array | None = None
) -> Array:
    """Diffusion-forcing loss of a sequence in which each frame has its own noise level.

    mean over frames t that count of weight_t mean_d (prediction_td - target_td)^2

    Args:
      prediction, target: [T, ..., D], the target as in `prediction_error`; noise is added to the
        frames at levels [T, ...] by `diffusion.add_noise` or `diffusion.flow_interpolant`.
      weight: weight of each level, broadcasts to [T, ...].
      mask: broadcasts to [T, ...], true where a frame counts; None: everywhere.
    Returns: [...]; 0 where no frame counts.
    Gradients: none flow into `target`.
    Source: Chen et al., 2024, "Diffusion forcing: next-token prediction meets full-sequence
      diffusion", algorithm 1.
    Example: `losses.diffusion_forcing(prediction, target, weight, mask).mean()`
    """
    if mask is not None:  # before any product, so that masked NaN gives no NaN gradient
        mask = jnp.broadcast_to(mask, prediction.shape[:-1])
        prediction, target = (jnp.where(mask[..., None], x, 0) for x in (prediction, target))
        weight = jnp.where(mask, weight, 0)
    return masked_mean(weight * prediction_error(prediction, target), mask, axis=0)
