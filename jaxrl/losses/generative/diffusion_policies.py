"""Denoising chains as policies: likelihoods of steps, two-level advantages, divergences.

Each denoising step is a Gaussian action, so `clipped_surrogate` applies to it unchanged.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import gaussian_log_prob

__all__ = [
    "denoising_advantage",
    "denoising_clip",
    "denoising_kl",
    "denoising_log_prob",
    "vard",
]


@check_arguments
def denoising_log_prob(
    sample: Array, mean: Array, scale: Array, least_scale: Array | float = 0.1
) -> Array:
    """Log-likelihood of one denoising step, with a floor on its noise scale (DPPO, DDPO).

    log N(sample; mean, max(scale, least_scale)^2 I)

    Args:
      sample: [..., D], the next sample of the chain.
      mean: [..., D], of the step: a diffusion model's by `diffusion.ddim_step` at eta = 1 or
        `diffusion.denoising_posterior`, or f(x) alpha of a consistency model's prediction.
      scale: [...], of the step's noise.
      least_scale: the floor; the sampler's floor is for exploration, this one bounds the ratio.
    Returns: [...], summed over features (published code averages them).
    Gradients: none are stopped; 0 into `scale` below the floor.
    Source: Ren et al., 2024, "Diffusion policy policy optimization"; Black et al., 2024,
      "Training diffusion models with reinforcement learning", section 4; Oertell et al., 2024,
      "RL for consistency models: faster reward guided text-to-image generation".
    Example: `losses.denoising_log_prob(sample, mean, scale, least_scale=0.1)`
    """
    scale = jnp.expand_dims(jnp.maximum(scale, least_scale), -1)
    return gaussian_log_prob(sample, mean, jnp.broadcast_to(scale, mean.shape))


@check_arguments
def denoising_advantage(
    advantage: Array, remaining: Array, denoising_discount: Array | float
) -> Array:
    """DPPO's advantage of one denoising step: the action's, discounted for early, noisy steps.

    denoising_discount^remaining advantage

    Args:
      advantage: [...], of the action in the environment (from a critic of states only).
      remaining: [...], integers, the number of denoising steps after this one: K - 1 - k.
      denoising_discount: from 0 to 1.
    Returns: [...].
    Gradients: none are stopped; `clipped_surrogate` stops them.
    Source: Ren et al., 2024, "Diffusion policy policy optimization" and its published code.
    Example: `losses.denoising_advantage(advantage, remaining, denoising_discount=0.99)`
    """
    return advantage * denoising_discount ** remaining.astype(advantage.dtype)


@check_arguments
def denoising_clip(
    fraction: Array, clip: Array | float, first_clip: Array | float = 1e-3, rate: float = 3.0
) -> Array:
    """DPPO's clip of each denoising step's likelihood ratio, small for early, noisy steps.

    first_clip + (clip - first_clip) (exp(rate fraction) - 1) / (exp(rate) - 1)

    Args:
      fraction: [...], k / (K - 1), from 0 (noise) to 1 (clean).
      clip, first_clip: at the last and at the first step, broadcast to [...].
      rate: how late the clip grows, not 0.
    Returns: [...], for `clipped_surrogate`.
    Gradients: none are stopped.
    Source: Ren et al., 2024, "Diffusion policy policy optimization" (the published code).
    Example: `losses.denoising_clip(fraction, clip=0.01)`
    """
    return first_clip + (clip - first_clip) * jnp.expm1(rate * fraction) / math.expm1(rate)


@check_arguments
def denoising_kl(mean: Array, base_mean: Array, scale: Array) -> Array:
    """DPOK's divergence of a fine-tuned denoising step from that of the frozen model.

    KL = |mean - base_mean|^2 / (2 scale^2)

    Args:
      mean, base_mean: [..., D].
      scale: [...], the noise scale that both steps share, positive.
    Returns: [...], summed over features; its sum over the chain bounds the samples' divergence.
    Gradients: none flow into `base_mean`.
    Source: Fan et al., 2023, "DPOK: reinforcement learning for fine-tuning text-to-image diffusion
      models"; Shekhar and Zhang, 2025, "ROCM: RLHF on consistency models" (its KL).
    Example: `losses.denoising_kl(mean, base_mean, scale).sum(0)`
    """
    difference = (mean - jax.lax.stop_gradient(base_mean)) / jnp.expand_dims(scale, -1)
    return 0.5 * jnp.square(difference).sum(-1)


@check_arguments
def vard(value: Array, mean: Array, base_mean: Array, scale: Array, beta: Array | float) -> Array:
    """VARD's loss: fine-tune each denoising step on a learned value of its output.

    -value + beta denoising_kl(mean, base_mean, scale)

    Args:
      value: [...], V(x_(t-1), t-1), the expected final reward of the step's output, through which
        gradients reach the denoiser.
      mean, base_mean: [..., D], of the step and of the frozen model's step.
      scale: [...], the noise scale that both steps share, positive.
      beta: weight of the divergence, broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `base_mean`.
    Source: Dai et al., 2025, "VARD: efficient and dense fine-tuning for diffusion models with
      value-based RL": value plus KL regularization; the closed form of the KL is derived here.
    Example: `losses.vard(value, mean, base_mean, scale, beta=0.1).mean()`
    """
    return beta * denoising_kl(mean, base_mean, scale) - value
