"""Masked sums, means and weights, and the value of the taken action."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = ["at_action", "boltzmann_weights", "masked_mean", "masked_sum", "standardize"]

Axis = int | tuple[int, ...] | None


def _full_mask(x: Array, mask: Array | None) -> Array:
    """Return the mask as booleans in x's shape, all true if there is none."""
    return jnp.ones(x.shape, bool) if mask is None else jnp.broadcast_to(mask, x.shape).astype(bool)


@check_arguments
def masked_sum(x: Array, mask: Array | None = None, axis: Axis = None) -> Array:
    """Sum over the elements where a mask is true, such as the log-probabilities of a text's tokens.

    sum(mask * x)

    Summing the log-likelihoods of a denoising chain's steps and of its initial noise gives the
    joint log-density of the chain, not the log-density of its last sample.

    Args:
      x: [...].
      mask: broadcasts to [...], true where an element counts; None: everywhere. The values of the
        other elements, even NaN, have no influence.
      axis: the axes to reduce; None: all.
    Returns: x's shape without `axis`.
    Gradients: flow into `x` where the mask is true.
    Source: common usage, as in Ouyang et al., 2022, "Training language models to follow
      instructions with human feedback"; for denoising steps Black et al., 2024, "Training diffusion
      models with reinforcement learning", section 4.
    Example: `losses.masked_sum(x, mask, axis=0)`
    """
    return (x if mask is None else jnp.where(mask, x, 0)).sum(axis)


@check_arguments
def masked_mean(x: Array, mask: Array | None = None, axis: Axis = None) -> Array:
    """Mean over the elements where a mask is true.

    sum(mask * x) / max(sum(mask), 1)

    Args:
      x: [...].
      mask: broadcasts to [...], true where an element counts; None: everywhere. The values of the
        other elements, even NaN, have no influence.
      axis: the axes to reduce; None: all.
    Returns: x's shape without `axis`; 0 where nothing counts.
    Gradients: flow into `x` where the mask is true.
    Source: common usage, as in Schulman et al., 2017, "Proximal policy optimization algorithms".
    Example: `losses.masked_mean(x, mask)`
    """
    allowed = _full_mask(x, mask)
    return masked_sum(x, allowed, axis) / jnp.maximum(allowed.sum(axis), 1).astype(x.dtype)


@check_arguments
def standardize(
    x: Array,
    mask: Array | None = None,
    axis: Axis = None,
    epsilon: float = 1e-8,
    deviation: str = "population",
) -> Array:
    """Scale to zero mean and unit variance over a mask, as is often done with advantages.

    (x - mean) / (std + epsilon)

    Args:
      x: [...].
      mask: broadcasts to [...], true where an element counts; None: everywhere.
      axis: the axes to take mean and deviation over; None: all.
      epsilon: added to the deviation, above 0.
      deviation: "population" (ddof=0) or "sample" (ddof=1, as in `torch.std`); anything else raises
        ValueError.
    Returns: [...]; 0 where the mask is false and where all elements that count are equal.
    Gradients: none are stopped; 0 for equal elements.
    Source: Andrychowicz et al., 2021, "What matters for on-policy deep actor-critic methods?",
      section 3.5 (per-minibatch advantage normalization).
    Example: `losses.standardize(x, mask)`
    """
    if deviation not in ("population", "sample"):
        raise ValueError(f"deviation must be population or sample, not {deviation!r}")
    allowed = _full_mask(x, mask)
    counted = jnp.where(allowed, x, 0)
    number = jnp.maximum(allowed.sum(axis, keepdims=True), 1).astype(x.dtype)
    centered = jnp.where(allowed, x - counted.sum(axis, keepdims=True) / number, 0)
    freedom = number if deviation == "population" else jnp.maximum(number - 1, 1)
    variance = jnp.square(centered).sum(axis, keepdims=True) / freedom
    # The mean of equal elements can differ from them by rounding, which must not count as variance.
    least = jnp.where(allowed, x, jnp.inf).min(axis, keepdims=True, initial=jnp.inf)
    most = jnp.where(allowed, x, -jnp.inf).max(axis, keepdims=True, initial=-jnp.inf)
    varies = (most > least) & (variance > 0)
    scale = jnp.sqrt(jnp.where(varies, variance, 1))
    return jnp.where(varies, centered / (scale + epsilon), 0)


@check_arguments
def boltzmann_weights(
    score: Array, temperature: Array | float = 1.0, mask: Array | None = None
) -> Array:
    """Weights of candidates that sum to 1: a softmax of their scores where a mask is true.

    exp(score_k / temperature) / sum_j exp(score_j / temperature)

    Args:
      score: [..., K]: rewards of K answers (reward-weighted regression), dynamics rewards of K
        candidates for a next state (MoReC's filter), values of actions (a Boltzmann policy), soft
        values of K samples of a denoising step, to resample them (SVDD), or logarithms of
        importance ratios (self-normalized weights). -inf excludes a candidate.
      temperature: positive, broadcasts to [..., 1].
      mask: broadcasts to [..., K], true where there is a candidate; None: everywhere.
    Returns: [..., K]; 0 where the mask is false, and everywhere if nothing counts.
    Gradients: none are stopped.
    Source: Peters and Schaal, 2007, "Reinforcement learning by reward-weighted regression"; Luo et
      al., 2024, "Reward-consistent dynamics models are strongly generalizable for offline
      reinforcement learning" (temperature 0.1); Li et al., 2024, "Derivative-free guidance in
      continuous and discrete diffusion models with soft value-based decoding", algorithm 1;
      Owen, 2013, "Monte Carlo theory, methods and examples", section 9.2 (self-normalized weights).
    Example: `losses.boltzmann_weights(score, temperature=0.1)`
    """
    allowed = _full_mask(score, mask) & (score != -jnp.inf)
    some = allowed.any(-1, keepdims=True)
    scaled = jnp.where(allowed, score, 0) / temperature
    return jnp.where(allowed, jax.nn.softmax(jnp.where(allowed | ~some, scaled, -jnp.inf)), 0)


@check_arguments
def at_action(values: Array, action: Array) -> Array:
    """Select the entry of the taken action: values[..., action].

    Args:
      values: [..., A], one number per action (Q-values, logits, log-probabilities).
      action: [...], integers from 0 to A - 1.
    Returns: [...].
    Gradients: flow into the taken action's entry.
    Source: Q(s, a) in Sutton and Barto, 2018, "Reinforcement learning", section 3.5.
    Example: `losses.at_action(values, action)`
    """
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
