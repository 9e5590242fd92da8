"""Guidance of generative samplers by conditions, gradients, policies, selection, inpainting.

Samples are [..., D], features last. Outputs and gradients of networks and rewards are arguments.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "classifier_free_guidance",
    "classifier_guidance",
    "compose_scores",
    "guided_noise",
    "inpaint",
    "policy_guidance",
    "policy_guidance_weight",
    "select_best",
]


def compose_scores(unconditional: Array, conditional: Array, weight: Array | float) -> Array:
    """Prediction under several conditions at once, composed from those under each alone.

    unconditional + sum_k weight_k (conditional_k - unconditional)

    Args:
      unconditional: [...], predicted noise, score or velocity without a condition.
      conditional: [..., K], the same under each of K conditions; a negative weight excludes one.
        A broad prior model and a narrow one can also be used as conditions.
      weight: broadcasts to [..., K].
    Returns: [...].
    Gradients: none are stopped.
    Source: Ajay et al., 2023, "Is conditional generative modeling all you need for
      decision-making?"; Liu et al., 2022, "Compositional visual generation with composable
      diffusion models".
    Example: `diffusion.compose_scores(unconditional, conditional, weight)`
    """
    return unconditional + (weight * (conditional - unconditional[..., None])).sum(-1)


def classifier_free_guidance(
    conditional: Array, unconditional: Array, weight: Array | float
) -> Array:
    """Classifier-free guidance (CFG): push a prediction toward, or beyond, its condition.

    unconditional + weight (conditional - unconditional)

    Args:
      conditional, unconditional: [..., D], predicted noise, scores or velocities. With "this action
        is good" as the condition, larger weights mean larger policy improvements.
      weight: broadcasts to [..., D]; 0: no condition, 1: the conditional model, above 1: guided,
        beyond what was trained. Ho and Salimans write 1 + w for it.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Ho and Salimans, 2021, "Classifier-free diffusion guidance", eq. 6; Frans et al., 2025,
      "Diffusion guidance is a controllable policy improvement operator" (velocities of policies).
    Example: `diffusion.classifier_free_guidance(conditional, unconditional, weight=3.0)`
    """
    return compose_scores(unconditional, conditional[..., None], jnp.expand_dims(weight, -1))


def classifier_guidance(
    mean: Array, gradient: Array, variance: Array, scale: Array | float = 1.0
) -> Array:
    """Classifier guidance: shift the mean of a denoising step along a given gradient.

    mean + scale variance gradient

    Args:
      mean: [..., D], of the step, e.g. from `denoising_posterior`.
      gradient: [..., D], of log p(condition | x), a return or a negative cost, at the mean.
      variance: [...], of the step.
      scale: broadcasts to [..., D].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Dhariwal and Nichol, 2021, "Diffusion models beat GANs on image synthesis",
      algorithm 1; Janner et al., 2022, "Planning with diffusion for flexible behavior synthesis",
      algorithm 1.
    Example: `diffusion.classifier_guidance(mean, gradient, variance, scale=2.0)`
    """
    return mean + scale * jnp.expand_dims(variance, -1) * gradient


def guided_noise(
    noise: Array, gradient: Array, alpha_bar: Array, scale: Array | float = 1.0
) -> Array:
    """Guided noise prediction: add the gradient of a log-probability or return to its score.

    noise - scale sqrt(1 - alpha_bar) gradient

    Args:
      noise: [..., D], predicted.
      gradient: [..., D], of log p(condition | x) at the noisy sample.
      alpha_bar: [...], below 1.
      scale: broadcasts to [..., D].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Dhariwal and Nichol, 2021, "Diffusion models beat GANs on image synthesis",
      algorithm 2 and eq. 14.
    Example: `diffusion.guided_noise(noise, gradient, alpha_bar, scale=2.0)`
    """
    return noise - scale * jnp.expand_dims(jnp.sqrt(1 - alpha_bar), -1) * gradient


def policy_guidance(
    action: Array,
    gradient: Array,
    weight: Array | float,
    axis: int | tuple[int, ...] = -1,
) -> Array:
    """Move the noisy actions of a generated trajectory toward those of a policy.

    action + weight gradient / |gradient|

    Args:
      action: [..., D], the action entries of the noisy trajectory.
      gradient: [..., D], of the policy's log-probability of these actions (or of denoised ones).
      weight: how far to move, broadcasts to [..., D]; `policy_guidance_weight` is the schedule.
      axis: axes over which the length is computed; (-2, -1) for [..., T, D], as published.
    Returns: [..., D]; `action` where the gradient is 0.
    Gradients: none flow into `gradient`.
    Source: Jackson et al., 2024, "Policy-guided diffusion" and its published code.
    Example: `diffusion.policy_guidance(action, gradient, weight=0.1)`
    """
    gradient = jax.lax.stop_gradient(gradient)
    # Divide by the largest entry first, so that squares neither overflow nor vanish.
    largest = jnp.abs(gradient).max(axis, keepdims=True)
    scaled = gradient / jnp.where(largest > 0, largest, 1)
    length = jnp.sqrt(jnp.square(scaled).sum(axis, keepdims=True))
    return action + weight * scaled / jnp.where(length > 0, length, 1)


def policy_guidance_weight(
    step: Array, steps: int, strength: Array | float = 1.0, bump: float = 0.3
) -> Array:
    """Weight of policy guidance at each denoising step: decreasing, with a bump in the middle.

    strength (1 - step / steps + bump sin(pi (step + 1) / steps)), 0 at the last step

    Args:
      step: [...], from 0 (noise) to steps - 1 (clean).
      steps: the number of denoising steps.
      strength: broadcasts to [...].
      bump: the weight of the sine.
    Returns: [...].
    Gradients: none are stopped.
    Source: Jackson et al., 2024, "Policy-guided diffusion" (the published code).
    Example: `diffusion.policy_guidance_weight(step, steps=10)`
    """
    weight = 1 - step / steps + bump * jnp.sin(math.pi * (step + 1) / steps)
    return jnp.where(step < steps - 1, strength * weight, 0)


def select_best(candidates: Array, score: Array) -> Array:
    """Select the candidate with the best score, for guidance by rules without gradients.

    candidates[argmax_n score_n]

    Args:
      candidates: [..., N, D], N samples of the next denoising step; features are last as in all
        samples, so candidates are second-to-last.
      score: [..., N], of the clean sample that each candidate implies; larger is better.
    Returns: [..., D]; the first among equals.
    Gradients: flow into the chosen candidate; none flow into `score`.
    Source: Huang et al., 2024, "Symbolic music generation with non-differentiable rule guided
      diffusion", algorithm 1.
    Example: `diffusion.select_best(candidates, score)`
    """
    best = jnp.argmax(score, -1)[..., None, None]
    return jnp.take_along_axis(candidates, best, axis=-2)[..., 0, :]


def inpaint(noisy: Array, known: Array, mask: Array) -> Array:
    """Inpaint the known part of a sample: starts, goals and constraints of a plan.

    known where the mask is true, else noisy

    Args:
      noisy: [...], the sample after a denoising step.
      known: broadcasts to [...], clean values (Diffuser) or values with the step's noise
        (`add_noise`).
      mask: bool, broadcasts to [...], true where the value is known.
    Returns: [...].
    Gradients: flow into `noisy` and `known` where each is used.
    Source: Janner et al., 2022, "Planning with diffusion for flexible behavior synthesis",
      section 3.3.
    Example: `diffusion.inpaint(noisy, known, mask)`
    """
    return jnp.where(mask, known, noisy)
