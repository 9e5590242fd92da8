"""Flows on straight paths: points, velocities, conversions, steps, and sampling with noise.

Samples are [..., D], features last. Time is 0 at noise and 1 at data, and broadcasts to [...].
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "flow_clean",
    "flow_interpolant",
    "flow_noise",
    "flow_score",
    "flow_step",
    "flow_velocity",
    "memoryless_drift",
    "memoryless_scale",
    "velocity_from_clean",
    "velocity_from_score",
]


def flow_interpolant(
    noise: Array, clean: Array, time: Array, least_noise: Array | float = 0.0
) -> Array:
    """Point on the straight path from noise to data.

    (1 - (1 - least_noise) time) noise + time clean

    Args:
      noise, clean: [..., D].
      time: [...], from 0 (noise) to 1 (data); a separate one per frame gives diffusion forcing.
      least_noise: sigma_min, the noise left at time 1.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Lipman et al., 2023, "Flow matching for generative modeling", eq. 22.
    Example: `diffusion.flow_interpolant(noise, clean, time)`
    """
    time = jnp.expand_dims(time, -1)
    return (1 - (1 - least_noise) * time) * noise + time * clean


def flow_velocity(noise: Array, clean: Array, least_noise: Array | float = 0.0) -> Array:
    """Velocity of the straight path from noise to data.

    clean - (1 - least_noise) noise

    Args:
      noise, clean: [..., D].
      least_noise: sigma_min, as in `flow_interpolant`.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Lipman et al., 2023, "Flow matching for generative modeling", eq. 23.
    Example: `diffusion.flow_velocity(noise, clean)`
    """
    return clean - (1 - least_noise) * noise


def flow_step(noisy: Array, velocity: Array, step_size: Array) -> Array:
    """Take one Euler step along a velocity.

    noisy + step_size velocity

    Args:
      noisy, velocity: [..., D].
      step_size: [...], in units of time.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Euler's method, common usage, as in Liu et al., 2023, "Flow straight and fast".
    Example: `diffusion.flow_step(noisy, velocity, step_size)`
    """
    return noisy + jnp.expand_dims(step_size, -1) * velocity


def flow_clean(noisy: Array, velocity: Array, time: Array) -> Array:
    """Clean sample implied by a velocity: the end of its straight line.

    noisy + (1 - time) velocity

    Args:
      noisy, velocity: [..., D].
      time: [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Lipman et al., 2023, "Flow matching for generative modeling", eq. 22 and 23 with
      sigma_min = 0, solved for the sample.
    Example: `diffusion.flow_clean(noisy, velocity, time)`
    """
    return flow_step(noisy, velocity, 1 - time)


def flow_noise(noisy: Array, velocity: Array, time: Array) -> Array:
    """Noise implied by a velocity: the start of its straight line.

    noisy - time velocity

    Args:
      noisy, velocity: [..., D].
      time: [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Lipman et al., 2023, "Flow matching for generative modeling", eq. 22 and 23 with
      sigma_min = 0, solved for the noise.
    Example: `diffusion.flow_noise(noisy, velocity, time)`
    """
    return flow_step(noisy, velocity, -time)


def flow_score(noisy: Array, velocity: Array, time: Array) -> Array:
    """Score of a flow's samples (gradient of their log-density), from its velocity.

    -flow_noise(noisy, velocity, time) / (1 - time)

    Args:
      noisy, velocity: [..., D].
      time: [...], below 1.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Domingo-Enrich et al., 2025, "Adjoint matching: fine-tuning flow and diffusion
      generative models with memoryless stochastic optimal control", for straight paths.
    Example: `diffusion.flow_score(noisy, velocity, time)`
    """
    return -flow_noise(noisy, velocity, time) / jnp.expand_dims(1 - time, -1)


def velocity_from_clean(noisy: Array, clean: Array, time: Array) -> Array:
    """Velocity implied by a prediction of the clean sample; the inverse of `flow_clean`.

    (clean - noisy) / (1 - time)

    Args:
      noisy, clean: [..., D].
      time: [...], below 1.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Hafner et al., 2025, "Training agents inside of scalable world models".
    Example: `diffusion.velocity_from_clean(noisy, clean, time)`
    """
    return (clean - noisy) / jnp.expand_dims(1 - time, -1)


def velocity_from_score(noisy: Array, score: Array, time: Array) -> Array:
    """Velocity implied by a score; the inverse of `flow_score`.

    (noisy + (1 - time) score) / time

    Args:
      noisy, score: [..., D].
      time: [...], positive.
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Domingo-Enrich et al., 2025, "Adjoint matching: fine-tuning flow and diffusion
      generative models with memoryless stochastic optimal control", for straight paths.
    Example: `diffusion.velocity_from_score(noisy, score, time)`
    """
    time = jnp.expand_dims(time, -1)
    return (noisy + (1 - time) * score) / time


def memoryless_scale(time: Array, offset: Array | float = 0.0) -> Array:
    """Noise scale of a flow's sampler with which samples forget their initial noise.

    sigma = sqrt(2 (1 - time + offset) / (time + offset))

    Args:
      time: [...], from 0 to 1.
      offset: keeps the result finite at times 0 and 1; the step size in the paper's experiments.
    Returns: [...].
    Gradients: none are stopped; infinite where the result is 0, at time 1 without an offset.
    Source: Domingo-Enrich et al., 2025, "Adjoint matching: fine-tuning flow and diffusion
      generative models with memoryless stochastic optimal control".
    Example: `diffusion.memoryless_scale(time, offset=0.02)`
    """
    return jnp.sqrt(2 * (1 - time + offset) / (time + offset))


def memoryless_drift(
    noisy: Array, velocity: Array, time: Array, offset: Array | float = 0.0
) -> Array:
    """Drift that, with noise of `memoryless_scale`, samples the flow's distribution.

    2 velocity - noisy / (time + offset)

    Args:
      noisy, velocity: [..., D].
      time: [...].
      offset: as in `memoryless_scale`.
    Returns: [..., D]: a step is noisy + h drift + sqrt(h) memoryless_scale noise.
    Gradients: none are stopped.
    Source: Domingo-Enrich et al., 2025, "Adjoint matching: fine-tuning flow and diffusion
      generative models with memoryless stochastic optimal control".
    Example: `diffusion.memoryless_drift(noisy, velocity, time, offset=0.02)`
    """
    return 2 * velocity - noisy / jnp.expand_dims(time + offset, -1)
