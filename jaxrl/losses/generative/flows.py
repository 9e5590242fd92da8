"""Losses of flows on straight paths: flow matching, shortcut models, adjoint matching.

Samples are [..., D], features last. Time is 0 at noise and 1 at data, and broadcasts to [...].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.diffusion.flows import flow_velocity
from jaxrl.losses.values.errors_and_targets import prediction_error

__all__ = [
    "adjoint_matching",
    "flow_matching",
    "shortcut_forcing",
    "shortcut_velocity",
]


@check_arguments
def flow_matching(
    velocity: Array, noise: Array, clean: Array, least_noise: Array | float = 0.0
) -> Array:
    """Flow-matching loss of a velocity network at a point between noise and data.

    mean_d (velocity_d - flow_velocity(noise, clean)_d)^2

    Args:
      velocity: [..., D], predicted at `diffusion.flow_interpolant(noise, clean, time)`.
      noise, clean: [..., D].
      least_noise: sigma_min, as in `diffusion.flow_interpolant`.
    Returns: [...], a mean over features.
    Gradients: none flow into `noise` or `clean`.
    Source: Lipman et al., 2023, "Flow matching for generative modeling", eq. 23; with
      least_noise = 0 Liu et al., 2023, "Flow straight and fast: learning to generate and transfer
      data with rectified flow", eq. 1.
    Example: `losses.flow_matching(velocity, noise, clean).mean()`
    """
    return prediction_error(velocity, flow_velocity(noise, clean, least_noise))


@check_arguments
def shortcut_velocity(velocity: Array, next_velocity: Array) -> Array:
    """Target of a shortcut model's large step: the mean velocity of its two half steps.

    stop((velocity + next_velocity) / 2)

    Args:
      velocity: [..., D], predicted at (noisy, time, half the step).
      next_velocity: [..., D], predicted after the first half step: at (flow_step(noisy, velocity,
        half), time + half, half the step).
    Returns: [..., D], the target of the velocity at (noisy, time, the step); the smallest step's
      target is `diffusion.flow_velocity`.
    Gradients: none: this is a target.
    Source: Frans et al., 2025, "One step diffusion via shortcut models".
    Example: `losses.shortcut_velocity(velocity, next_velocity)`
    """
    return jax.lax.stop_gradient(0.5 * (velocity + next_velocity))


@check_arguments
def shortcut_forcing(prediction: Array, target: Array, time: Array) -> Array:
    """Dreamer 4's loss of a world model that predicts clean latents, for any step size.

    (0.9 time + 0.1) mean_d (prediction_d - target_d)^2

    Args:
      prediction: [..., D], the predicted clean sample.
      target: [..., D]; for the smallest step the clean sample, else
        flow_clean(noisy, shortcut_velocity(v, next_v), time), where v and next_v are
        `diffusion.velocity_from_clean` of the half steps: this equals the paper's (1 - time)^2
        times the squared error of velocities, but avoids its division.
      time: [...], the signal level of each frame.
    Returns: [...], a mean over features.
    Gradients: none flow into `target` or `time`.
    Source: Hafner et al., 2025, "Training agents inside of scalable world models" (Dreamer 4).
    Example: `losses.shortcut_forcing(prediction, target, time).mean()`
    """
    return (0.9 * jax.lax.stop_gradient(time) + 0.1) * prediction_error(prediction, target)


@check_arguments
def adjoint_matching(velocity: Array, base_velocity: Array, adjoint: Array, scale: Array) -> Array:
    """Adjoint-matching loss: fine-tune a flow on a reward by matching drift to lean adjoint.

    sum_d (2 (velocity_d - base_velocity_d) / scale + scale adjoint_d)^2

    Args:
      velocity, base_velocity: [..., D], of the fine-tuned and the frozen model, at samples of the
        fine-tuned model with `diffusion.memoryless_scale` noise.
      adjoint: [..., D], the lean adjoint along the same path: at time 1 the negative gradient of
        the reward, and backward in time flow_step(adjoint, pullback, step_size), where the pullback
        is jax.vjp of the base model's drift (`diffusion.memoryless_drift`) at the earlier sample,
        applied to `adjoint`.
      scale: [...], `diffusion.memoryless_scale`, positive.
    Returns: [...], summed over features; the paper sums over steps.
    Gradients: flow only into `velocity`.
    Source: Domingo-Enrich et al., 2025, "Adjoint matching: fine-tuning flow and diffusion
      generative models with memoryless stochastic optimal control", algorithm 1.
    Example: `losses.adjoint_matching(velocity, base_velocity, adjoint, scale).mean()`
    """
    base_velocity, adjoint, scale = jax.lax.stop_gradient((base_velocity, adjoint, scale))
    scale = jnp.expand_dims(scale, -1)
    return jnp.square(2 * (velocity - base_velocity) / scale + scale * adjoint).sum(-1)
