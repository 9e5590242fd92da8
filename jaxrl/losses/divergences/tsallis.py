"""Tsallis statistics: logarithm, entropy and divergence with an index q; 1 gives the usual ones."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import _log_probs, categorical_entropy, categorical_kl
from jaxrl.losses.divergences.f_divergences import categorical_renyi

__all__ = ["exp_q", "log_q", "tsallis_entropy", "tsallis_kl"]

BOUND = 80.0  # on exponents: float32 overflows a little above exp(80)


@check_arguments
def log_q(x: Array, q: float) -> Array:
    """Tsallis q-logarithm: the logarithm at q = 1, and x - 1 at q = 0.

    (x^(1 - q) - 1) / (1 - q)

    Some authors write ln_q for this function with the index 2 - q.

    Args:
      x: [...], positive.
      q: the index, a Python number.
    Returns: [...]. The power is kept below exp(80) so that nothing overflows.
    Gradients: none are stopped.
    Source: Tsallis, 1994, "What are the numbers that experiments provide?"; Zhu et al., 2023,
      "General Munchausen reinforcement learning with Tsallis Kullback-Leibler divergence".
    Example: `losses.log_q(x, q=2.0)`
    """
    if q == 1:
        return jnp.log(x)
    return jnp.expm1(jnp.minimum((1 - q) * jnp.log(x), BOUND)) / (1 - q)


@check_arguments
def exp_q(x: Array, q: float) -> Array:
    """Tsallis q-exponential, the inverse of `log_q`; for q < 1 it is 0 below a threshold.

    max(1 + (1 - q) x, 0)^(1 / (1 - q))

    Args:
      x: [...]; below 1 / (q - 1) where q > 1 (the function's pole).
      q: the index, a Python number.
    Returns: [...]; infinite from the pole on.
    Gradients: none are stopped; 0 below the threshold and beyond the pole.
    Source: Tsallis, 1994, "What are the numbers that experiments provide?"; Zhu et al., 2023,
      "General Munchausen reinforcement learning with Tsallis Kullback-Leibler divergence".
    Example: `losses.exp_q(x, q=0.5)`
    """
    if q == 1:
        return jnp.exp(x)
    base = 1 + (1 - q) * x
    inside = base > 0
    value = jnp.exp(jnp.log1p(jnp.where(inside, (1 - q) * x, 0)) / (1 - q))
    return jnp.where(inside, value, 0 if q < 1 else jnp.inf)


@check_arguments
def tsallis_entropy(logits: Array, q: float) -> Array:
    """Tsallis entropy of a categorical distribution: Shannon's at q = 1, 1 - sum p^2 at q = 2.

    (1 - sum_a p(a)^q) / (q - 1), p = softmax(logits)

    Args:
      logits: [..., A], unnormalized; -inf where an action cannot be taken.
      q: the index, a positive Python number.
    Returns: [...].
    Gradients: none are stopped.
    Source: Tsallis, 1988, "Possible generalization of Boltzmann-Gibbs statistics"; Lee et al.,
      2018, "Sparse Markov decision processes with causal sparse Tsallis entropy regularization"
      (q = 2, with a factor 1/2).
    Example: `losses.tsallis_entropy(logits, q=2.0)`
    """
    if q == 1:
        return categorical_entropy(logits)
    prob, log_prob = _log_probs(logits)
    surprise = jnp.expm1(jnp.minimum((q - 1) * log_prob, BOUND)) / (1 - q)
    return (prob * surprise).sum(-1)


@check_arguments
def tsallis_kl(logits: Array, other_logits: Array, q: float) -> Array:
    """Tsallis divergence between categorical distributions: KL at q = 1, chi-square at q = 2.

    -sum_a p(a) log_q(r(a) / p(a)) = (sum_a p(a)^q r(a)^(1 - q) - 1) / (q - 1)

    Args:
      logits, other_logits (of p and r): [..., A], unnormalized; -inf where an action is impossible.
      q: the index, a positive Python number.
    Returns: [...]. Its exponent is kept below 80 so that nothing overflows.
    Gradients: none are stopped; 0 beyond the bound.
    Source: Zhu et al., 2023, "General Munchausen reinforcement learning with Tsallis
      Kullback-Leibler divergence"; computed here as a function of `categorical_renyi`.
    Example: `losses.tsallis_kl(logits, other_logits, q=2.0)`
    """
    if q == 1:
        return categorical_kl(logits, other_logits)
    exponent = (q - 1) * categorical_renyi(logits, other_logits, q)
    return jnp.expm1(jnp.minimum(exponent, BOUND)) / (q - 1)
