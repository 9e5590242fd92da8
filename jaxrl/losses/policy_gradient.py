"""Losses of stochastic policies, to be minimised: one value per element, the caller averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array


def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """-advantage * log_prob (Williams, 1992): its gradient is REINFORCE's estimate, negated.

    Shapes broadcast. No gradient flows into `advantage`.
    """
    return -jax.lax.stop_gradient(advantage) * log_prob


def clipped_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip: Array | float
) -> Array:
    """-min(r A, clip(r, 1 - clip, 1 + clip) A), r = exp(log_prob - old_log_prob)
    (Schulman et al., 2017, eq. 7).

    Shapes broadcast. No gradient flows into `old_log_prob` and `advantage`.
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    # Far beyond any clip: an overflowing ratio would make the clipped side's zero gradient NaN.
    ratio = jnp.exp(jnp.minimum(log_prob - old_log_prob, 60.0))
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


def approximate_kl(log_prob: Array, old_log_prob: Array) -> Array:
    """An unbiased, never negative estimate of KL(old || new) from samples of the old policy:
    (r - 1) - log r, r = exp(log_prob - old_log_prob) (Schulman, 2020, "k3"). Shapes broadcast."""
    log_ratio = log_prob - old_log_prob
    return jnp.expm1(log_ratio) - log_ratio
