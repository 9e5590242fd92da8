"""Losses for real data combined with data from an imperfect simulator.

Two classifiers distinguish real from simulated data, one from (s, a), one from (s, a, s'). Their
logits are log-odds of being real; train them with `binary_cross_entropy`, real being label 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = ["dynamics_gap", "dynamics_gap_regularizer", "dynamics_ratio"]


@check_arguments
def dynamics_gap(transition_logits: Array, pair_logits: Array) -> Array:
    """Log-ratio of a transition's probability in a simulator and in reality, from two classifiers.

    log p_sim(s' | s, a) - log p_real(s' | s, a) = pair_logits - transition_logits

    Args:
      transition_logits: [...], log-odds that (s, a, s') is real, from the transition classifier.
      pair_logits: [...], log-odds that (s, a) is real.
    Returns: [...]; the mean over the simulator's next states estimates KL(sim || real).
    Gradients: none are stopped.
    Source: Eysenbach et al., 2021, "Off-dynamics reinforcement learning"; Niu et al., 2022,
      "When to trust your simulator".
    Example: `losses.dynamics_gap(transition_logits, pair_logits)`
    """
    return pair_logits - transition_logits


@check_arguments
def dynamics_ratio(
    transition_logits: Array,
    pair_logits: Array,
    low: Array | float = 1e-5,
    high: Array | float = 1.0,
) -> Array:
    """Importance weight of a simulated transition: its real over its simulated probability.

    clip(p_real(s' | s, a) / p_sim(s' | s, a), low, high)

    Args:
      transition_logits, pair_logits: [...], as in `dynamics_gap`.
      low, high: bounds, positive.
    Returns: [...], a weight for the squared temporal-difference error of simulated data.
    Gradients: none.
    Source: Niu et al., 2022, "When to trust your simulator: dynamics-aware hybrid
      offline-and-online reinforcement learning" (bounds as in its published code).
    Example: `losses.dynamics_ratio(transition_logits, pair_logits)`
    """
    gap = dynamics_gap(*jax.lax.stop_gradient((transition_logits, pair_logits)))
    return jnp.exp(jnp.clip(-gap, jnp.log(low), jnp.log(high)))


@check_arguments
def dynamics_gap_regularizer(
    q_value: Array,
    gap: Array,
    data_q_value: Array,
    temperature: Array | float = 1.0,
    mask: Array | None = None,
    data_mask: Array | None = None,
) -> Array:
    """H2O's regularizer: push values down where a simulator is wrong and up on real data.

    temperature log sum_b exp((Q_b + log w_b) / temperature) - mean_b Q_b(data),
    w = gap / sum_b gap_b

    Args:
      q_value: [..., B], of simulated state-action pairs.
      gap: [..., B], at least 0: their dynamics gap (a divergence, such as a mean of
        `dynamics_gap`, clipped from below); if all are 0, all have the same weight.
      data_q_value: [..., B'], of pairs from the real data.
      temperature: positive, broadcasts to [...].
      mask, data_mask: [..., B] and [..., B'], true where an element counts; None: everywhere.
    Returns: [...], to add to the critic's loss with a weight.
    Gradients: none flow into `gap`.
    Source: Niu et al., 2022, "When to trust your simulator: dynamics-aware hybrid
      offline-and-online reinforcement learning", and its published code.
    Example: `losses.dynamics_gap_regularizer(q_value, gap, data_q_value)`
    """
    allowed = _full_mask(gap, mask)
    gap = jnp.where(allowed, jax.lax.stop_gradient(gap), 0)
    gap = jnp.where(gap.sum(-1, keepdims=True) > 0, gap, allowed.astype(gap.dtype))
    weight = gap / jnp.maximum(gap.sum(-1, keepdims=True), jnp.finfo(gap.dtype).tiny)
    counts = weight > 0
    exponent = jnp.where(counts, q_value, 0) + jnp.log(jnp.where(counts, weight, 1))
    scaled = exponent / jnp.asarray(temperature, gap.dtype)[..., None]
    some = counts.any(-1)
    pushed = jax.nn.logsumexp(jnp.where(counts | ~some[..., None], scaled, -jnp.inf), axis=-1)
    return jnp.where(some, temperature * pushed, 0) - masked_mean(data_q_value, data_mask, -1)
