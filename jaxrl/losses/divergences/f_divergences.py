"""Divergences other than Kullback-Leibler's, exact or estimated from samples."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import _log_probs, kl_k3

__all__ = [
    "categorical_renyi",
    "chi_square",
    "f_divergence",
    "gaussian_fisher_divergence",
    "gaussian_renyi",
    "jensen_shannon",
    "squared_hellinger",
    "total_variation",
]

BOUND = 60.0  # on log-ratios: exp(60) is beyond any useful ratio, and its square does not overflow


@check_arguments
def total_variation(logits: Array, other_logits: Array) -> Array:
    """Total variation distance between two categorical distributions, in [0, 1].

    sum_a |p(a) - q(a)| / 2, p = softmax(logits), q = softmax(other_logits)

    Args: logits, other_logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...].
    Gradients: none are stopped; 0 where the probabilities are equal.
    Source: Schulman et al., 2015, "Trust region policy optimization", section 3.
    Example: `losses.total_variation(logits, other_logits)`
    """
    return 0.5 * jnp.abs(jax.nn.softmax(logits) - jax.nn.softmax(other_logits)).sum(-1)


@check_arguments
def squared_hellinger(logits: Array, other_logits: Array) -> Array:
    """Squared Hellinger distance between two categorical distributions, in [0, 1].

    sum_a (sqrt(p(a)) - sqrt(q(a)))^2 / 2, p = softmax(logits), q = softmax(other_logits)

    Args: logits, other_logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...].
    Gradients: none are stopped.
    Source: common usage, e.g. Liese and Vajda, 2006, "On divergences and informations in
      statistics and information theory".
    Example: `losses.squared_hellinger(logits, other_logits)`
    """
    # Roots from the log-probabilities: the gradient of sqrt itself is infinite at 0.
    root, other_root = (
        jnp.where(prob > 0, jnp.exp(0.5 * log_prob), 0)
        for prob, log_prob in (_log_probs(logits), _log_probs(other_logits))
    )
    return 0.5 * jnp.square(root - other_root).sum(-1)


@check_arguments
def jensen_shannon(logits: Array, other_logits: Array) -> Array:
    """Jensen-Shannon divergence between two categorical distributions, in [0, log 2].

    KL(p || m) / 2 + KL(q || m) / 2, m = (p + q) / 2, p, q = softmax(logits), softmax(other_logits)

    Args: logits, other_logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...], in nats.
    Gradients: none are stopped.
    Source: Lin, 1991, "Divergence measures based on the Shannon entropy", section 4.
    Example: `losses.jensen_shannon(logits, other_logits)`
    """
    prob, log_prob = _log_probs(logits)
    other_prob, other_log_prob = _log_probs(other_logits)
    middle = 0.5 * (prob + other_prob)
    log_middle = jnp.log(jnp.where(middle > 0, middle, 1))
    terms = prob * (log_prob - log_middle) + other_prob * (other_log_prob - log_middle)
    return 0.5 * terms.sum(-1)


@check_arguments
def chi_square(logits: Array, other_logits: Array) -> Array:
    """Chi-square divergence between two categorical distributions: their ratio's variance.

    chi^2(p || q) = sum_a (p(a) - q(a))^2 / q(a), p, q = softmax(logits), softmax(other_logits)

    Args: logits, other_logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...], nonnegative. The ratio p / q is kept below exp(60) so that nothing overflows.
    Gradients: none are stopped; 0 through a ratio beyond its bound.
    Source: Laidlaw et al., 2025, "Correlated proxies: a new definition and improved mitigation for
      reward hacking"; Pearson, 1900, "On the criterion that a given system of deviations ...".
    Example: `losses.chi_square(logits, other_logits)`
    """
    prob, log_prob = _log_probs(logits)
    other = jax.nn.log_softmax(other_logits)
    ratio = jnp.where(prob > 0, jnp.exp(jnp.minimum(log_prob - other, BOUND)), 0)
    return ((prob - jnp.exp(other)) * (ratio - 1)).sum(-1)


@check_arguments
def categorical_renyi(logits: Array, other_logits: Array, order: float) -> Array:
    """Renyi divergence between two categorical distributions, in nats.

    log(sum_a p(a)^order q(a)^(1 - order)) / (order - 1)

    Args:
      logits, other_logits (of p and q): [..., A], unnormalized; -inf where an action is impossible.
      order: positive, but not 1, where the limit is `categorical_kl`.
    Returns: [...]; infinite where no action is possible under both, and, for an order above 1,
      where q excludes what p allows.
    Gradients: none are stopped.
    Source: van Erven and Harremoes, 2014, "Renyi divergence and Kullback-Leibler divergence".
    Example: `losses.categorical_renyi(logits, other_logits, order=2.0)`
    """
    prob, log_prob = _log_probs(logits)
    other = jax.nn.log_softmax(other_logits)
    counts = prob > 0
    power = jnp.where(
        counts, order * log_prob + (1 - order) * jnp.where(counts, other, 0), -jnp.inf
    )
    return jax.nn.logsumexp(power, -1) / (order - 1)


@check_arguments
def gaussian_renyi(
    mean: Array, scale: Array, other_mean: Array, other_scale: Array, order: float
) -> Array:
    """Renyi divergence between two Gaussians with independent dimensions, in nats.

    sum_d log(s_q / s_p) + log(s_q^2 / v) / (2 (order - 1)) + order (m_p - m_q)^2 / (2 v),
    v = order * s_q^2 + (1 - order) * s_p^2

    Args:
      mean, scale (of p), other_mean, other_scale (of q): [..., D]; scales are positive.
      order: positive, but not 1, where the limit is `gaussian_kl`.
    Returns: [...]; infinite where v is not positive in some dimension.
    Gradients: none are stopped.
    Source: Gil et al., 2013, "Renyi divergence measures for commonly used univariate continuous
      distributions", table 2.
    Example: `losses.gaussian_renyi(mean, scale, other_mean, other_scale, order=2.0)`
    """
    # Everything in units of q's scale: squares of tiny scales would underflow.
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    variance = order + (1 - order) * jnp.square(ratio)
    finite = variance > 0
    variance = jnp.where(finite, variance, 1)
    spread = -jnp.log(ratio) - jnp.log(variance) / (2 * (order - 1))
    terms = spread + 0.5 * order * jnp.square(shift) / variance
    return jnp.where(finite, terms, jnp.inf).sum(-1)


@check_arguments
def gaussian_fisher_divergence(
    mean: Array, scale: Array, other_mean: Array, other_scale: Array
) -> Array:
    """Fisher divergence between two Gaussians: the mean squared difference of their scores.

    E_{x ~ p} |grad log p(x) - grad log q(x)|^2
      = sum_d (s_p / s_q^2 - 1 / s_p)^2 + (m_p - m_q)^2 / s_q^4

    Args: mean, scale (of p), other_mean, other_scale (of q): [..., D]; scales are positive.
    Returns: [...].
    Gradients: none are stopped.
    Source: Hyvarinen, 2005, "Estimation of non-normalized statistical models by score matching"
      (with a factor 1/2); the closed form is derived here from the scores -(x - m) / s^2.
    Example: `losses.gaussian_fisher_divergence(mean, scale, other_mean, other_scale)`
    """
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    return (jnp.square((ratio - 1 / ratio) / other_scale) + jnp.square(shift / other_scale)).sum(-1)


@check_arguments
def f_divergence(log_prob: Array, other_log_prob: Array, kind: str) -> Array:
    """Monte Carlo estimate of an f-divergence, unbiased and nonnegative for every sample.

    g(t), t = q(x) / p(x), x ~ p, with g(1) = g'(1) = 0:
      "kl": KL(p || q), t - 1 - log t (k3)
      "reverse_kl": KL(q || p), t log t - t + 1
      "jensen_shannon": (t log t - (1 + t) log((1 + t) / 2)) / 2
      "squared_hellinger": (sqrt(t) - 1)^2 / 2
      "chi_square": chi^2(p || q), t + 1 / t - 2
      "total_variation": |t - 1| / 2

    Args:
      log_prob, other_log_prob: [...], log p(x) and log q(x) of samples x of p.
      kind: which divergence.
    Returns: [...]. Log-ratios are kept between -60 and 60 so that nothing overflows.
    Gradients: none are stopped. If gradients flow through x = x(noise, p) (reparameterized), the
      mean's gradient is the divergence's; otherwise it is not, since p also determines the samples.
    Source: Liese and Vajda, 2006, "On divergences and informations in statistics and information
      theory", with generators multiplied by t and shifted to touch 0 at 1.
    Example: `losses.f_divergence(log_prob, other_log_prob, kind="jensen_shannon").mean()`
    """
    if kind == "kl":
        return kl_k3(log_prob, other_log_prob)
    x = jnp.clip(other_log_prob - log_prob, -BOUND, BOUND)
    if kind == "reverse_kl":
        return x * jnp.exp(x) - jnp.expm1(x)
    if kind == "jensen_shannon":
        ratio = jnp.exp(x)
        return 0.5 * (ratio * x - (1 + ratio) * (jax.nn.softplus(x) - math.log(2)))
    if kind == "squared_hellinger":
        return 0.5 * jnp.square(jnp.expm1(0.5 * x))
    if kind == "chi_square":
        return 4 * jnp.square(jnp.sinh(0.5 * x))
    if kind == "total_variation":
        return 0.5 * jnp.abs(jnp.expm1(x))
    raise ValueError(f"no f-divergence of this kind: {kind!r}")
