"""Distortions of quantile fractions, for risk-sensitive policies over distorted means."""

from __future__ import annotations

import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = ["cpw_distortion", "cvar_distortion", "power_distortion", "wang_distortion"]


def _clip_to_open_interval(tau: Array) -> Array:
    """Keep fractions away from 0 and 1, where slopes are infinite."""
    smallest = jnp.finfo(tau.dtype).eps
    return jnp.clip(tau, smallest, 1 - smallest)


@check_arguments
def cvar_distortion(tau: Array, tail: Array | float) -> Array:
    """Restrict fractions to the worst outcomes, whose mean is the conditional value at risk.

    tail * tau

    Args:
      tau: [...], uniform in [0, 1].
      tail: the share of worst returns that count, in (0, 1]; 1: risk-neutral.
    Returns: [...], fractions of the quantiles to average.
    Gradients: none are stopped.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning".
    Example: `losses.cvar_distortion(tau, tail=0.25)`
    """
    return tail * tau


@check_arguments
def wang_distortion(tau: Array, shift: Array | float) -> Array:
    """Wang's transform: shift fractions on a normal scale.

    Phi(Phi^-1(tau) + shift), Phi the standard normal distribution function

    Args:
      tau: [...], uniform in [0, 1].
      shift: negative: risk-averse, positive: risk-seeking, 0: neutral.
    Returns: [...], fractions of the quantiles to average.
    Gradients: none are stopped; 0 at tau = 0 and 1.
    Source: Wang, 2000, "A class of distortion operators for pricing financial and insurance
      risks"; Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning".
    Example: `losses.wang_distortion(tau, shift=-0.75)`
    """
    # In float32: these functions do not support lower precisions.
    normal = ndtri(_clip_to_open_interval(tau).astype(jnp.promote_types(tau.dtype, jnp.float32)))
    return ndtr(normal + shift).astype(tau.dtype)


@check_arguments
def power_distortion(tau: Array, exponent: Array | float) -> Array:
    """Raise fractions to a power: risk-averse or risk-seeking by the exponent's sign.

    tau^(1 / (1 + exponent)) for exponent >= 0, else 1 - (1 - tau)^(1 / (1 - exponent))

    Args:
      tau: [...], uniform in [0, 1].
      exponent: negative: risk-averse, positive: risk-seeking, 0: neutral.
    Returns: [...], fractions of the quantiles to average.
    Gradients: none are stopped; 0 at tau = 0 and 1.
    Source: Dabney et al., 2018, "Implicit quantile networks for distributional reinforcement
      learning" (Pow).
    Example: `losses.power_distortion(tau, exponent=-2.0)`
    """
    tau, root = _clip_to_open_interval(tau), 1 / (1 + jnp.abs(jnp.asarray(exponent, tau.dtype)))
    averse = jnp.asarray(exponent) < 0
    distorted = jnp.where(averse, 1 - tau, tau) ** root
    return jnp.where(averse, 1 - distorted, distorted)


@check_arguments
def cpw_distortion(tau: Array, curvature: Array | float = 0.71) -> Array:
    """Cumulative probability weighting: overweight rare outcomes on both sides, as people do.

    tau^c / (tau^c + (1 - tau)^c)^(1 / c)

    Args:
      tau: [...], uniform in [0, 1].
      curvature: c in (0, 1]; 0.71 fits people's choices, 1: neutral.
    Returns: [...], fractions of the quantiles to average.
    Gradients: none are stopped; 0 at tau = 0 and 1.
    Source: Tversky and Kahneman, 1992, "Advances in prospect theory"; Dabney et al., 2018,
      "Implicit quantile networks for distributional reinforcement learning".
    Example: `losses.cpw_distortion(tau, curvature=0.71)`
    """
    tau = _clip_to_open_interval(tau)
    power, rest = tau**curvature, (1 - tau) ** curvature
    return power / (power + rest) ** (1 / curvature)
