"""Entropies and divergences of policies: exact from logits, or estimated from samples."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import at_action

__all__ = [
    "binary_cross_entropy",
    "categorical_entropy",
    "categorical_kl",
    "categorical_nll",
    "cross_entropy",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_log_prob",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "proper_score",
    "sparsemax",
    "tanh_gaussian_log_prob",
]


def _log_probs(logits: Array) -> tuple[Array, Array]:
    """Return probabilities and their logarithms, the latter 0 where the probability is 0."""
    log_prob = jax.nn.log_softmax(logits)
    possible = log_prob > -jnp.inf
    return jnp.exp(log_prob), jnp.where(possible, log_prob, 0)


@check_arguments
def categorical_entropy(logits: Array) -> Array:
    """Entropy of a categorical distribution, in nats.

    H = -sum_a p(a) log p(a), p = softmax(logits)

    Args: logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...].
    Gradients: none are stopped.
    Source: Williams and Peng, 1991, "Function optimization using connectionist reinforcement
      learning algorithms"; Mnih et al., 2016, "Asynchronous methods for deep reinforcement
      learning", section 4.
    Example: `losses.categorical_entropy(logits)`
    """
    prob, log_prob = _log_probs(logits)
    return -(prob * log_prob).sum(-1)


@check_arguments
def categorical_kl(logits: Array, other_logits: Array) -> Array:
    """Kullback-Leibler divergence between two categorical distributions, in nats.

    KL(p || q) = sum_a p(a) (log p(a) - log q(a)), p = softmax(logits), q = softmax(other_logits)

    Args: logits, other_logits: [..., A], unnormalized; -inf where an action cannot be taken.
    Returns: [...]; infinite where q excludes what p allows.
    Gradients: none are stopped.
    Source: Schulman et al., 2015, "Trust region policy optimization", section 3.
    Example: `losses.categorical_kl(logits, other_logits)`
    """
    prob, log_prob = _log_probs(logits)
    other = jax.nn.log_softmax(other_logits)
    # Where p is 0 the term is 0 whatever q is, but 0 * (-(-inf)) would be NaN.
    return (prob * (log_prob - jnp.where(prob > 0, other, 0))).sum(-1)


@check_arguments
def cross_entropy(logits: Array, target: Array) -> Array:
    """Negative log-likelihood of a categorical distribution under soft targets.

    -sum_a target_a log p(a), p = softmax(logits)

    Args:
      logits: [..., A], unnormalized; -inf where an action cannot be taken.
      target: [..., A], probabilities, from a teacher or a search, or 1 at a label and 0 elsewhere.
    Returns: [...]; infinite where p excludes what the target allows.
    Gradients: none flow into `target`.
    Source: Hinton et al., 2015, "Distilling the knowledge in a neural network", section 2.
    Example: `losses.cross_entropy(logits, target)`
    """
    target = jax.lax.stop_gradient(target)
    log_prob = jax.nn.log_softmax(logits)
    # Where the target is 0 the term is 0 whatever p is, but 0 * -inf would be NaN.
    return -(target * jnp.where(target > 0, log_prob, 0)).sum(-1)


@check_arguments
def binary_cross_entropy(
    logits: Array, label: Array, positive_weight: Array | float = 1.0
) -> Array:
    """Binary cross-entropy (BCE): negative log-likelihood of labels 0 and 1, from logits.

    -positive_weight * y log p - (1 - y) log(1 - p), p = sigmoid(logits), y = label

    Args:
      logits: [...], log-odds of label 1.
      label: [...], bool, or float in [0, 1]: soft labels, such as a preference's probability.
      positive_weight: broadcasts to [...]; above 1 where label 1 is rare.
    Returns: [...]. With label 1 for an expert's steps and 0 for a policy's it is GAIL's
      discriminator loss (labels as in most later work).
    Gradients: none flow into `label`.
    Source: common usage, e.g. Cox, 1958, "The regression analysis of binary sequences"; Ho and
      Ermon, 2016, "Generative adversarial imitation learning", eq. 17.
    Example: `losses.binary_cross_entropy(logits, label).mean()`
    """
    label = jax.lax.stop_gradient(jnp.asarray(label, logits.dtype))
    # A classifier that is certain and right has no loss, but 0 * inf would be NaN.
    positive = jnp.where(label > 0, label * jax.nn.softplus(-logits), 0)
    negative = jnp.where(label < 1, (1 - label) * jax.nn.softplus(logits), 0)
    return positive_weight * positive + negative


@check_arguments
def gaussian_log_prob(x: Array, mean: Array, scale: Array) -> Array:
    """Log-density of a Gaussian with independent dimensions.

    sum_d -((x_d - mean_d) / scale_d)^2 / 2 - log scale_d - log(2 pi) / 2

    Args: x, mean, scale: [..., D]; standard deviations are positive.
    Returns: [...].
    Gradients: none are stopped.
    Source: common usage, e.g. Williams, 1992, "Simple statistical gradient-following algorithms
      for connectionist reinforcement learning", section 6.
    Example: `losses.gaussian_log_prob(x, mean, scale)`
    """
    z = (x - mean) / scale
    return (-0.5 * jnp.square(z) - jnp.log(scale) - 0.5 * math.log(2 * math.pi)).sum(-1)


@check_arguments
def categorical_nll(logits: Array, label: Array) -> Array:
    """Classification loss: negative log-likelihood of integer labels, from logits.

    -log softmax(logits)[label]

    With the action between two observations as the label this is the loss of an inverse model;
    with the skill that led to a state, that of DIAYN's discriminator.

    Args:
      logits: [..., A], unnormalized; -inf where a label is impossible.
      label: [...], integers from 0 to A - 1.
    Returns: [...].
    Gradients: none are stopped.
    Source: common usage; Pathak et al., 2017, "Curiosity-driven exploration by self-supervised
      prediction", eq. 3; Eysenbach et al., 2019, "Diversity is all you need: Learning skills
      without a reward function", algorithm 1.
    Example: `losses.categorical_nll(logits, label).mean()`
    """
    return -at_action(jax.nn.log_softmax(logits), label)


@check_arguments
def gaussian_entropy(scale: Array) -> Array:
    """Differential entropy of a Gaussian with independent dimensions, in nats.

    sum_d log scale_d + log(2 pi e) / 2

    Args: scale: [..., D], positive standard deviations.
    Returns: [...].
    Gradients: none are stopped.
    Source: common usage, e.g. Mnih et al., 2016, "Asynchronous methods for deep reinforcement
      learning", section 9 (continuous actions).
    Example: `losses.gaussian_entropy(scale)`
    """
    return (jnp.log(scale) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


@check_arguments
def gaussian_kl(mean: Array, scale: Array, other_mean: Array, other_scale: Array) -> Array:
    """Kullback-Leibler divergence between two Gaussians with independent dimensions, in nats.

    KL(p || q) = sum_d log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2

    Args: mean, scale (of p), other_mean, other_scale (of q): [..., D]; scales are positive.
    Returns: [...].
    Gradients: none are stopped.
    Source: Kingma and Welling, 2014, "Auto-encoding variational Bayes", appendix B.
    Example: `losses.gaussian_kl(mean, scale, other_mean, other_scale)`
    """
    ratio, shift = scale / other_scale, (mean - other_mean) / other_scale
    return (0.5 * (jnp.square(ratio) + jnp.square(shift) - 1) - jnp.log(ratio)).sum(-1)


@check_arguments
def tanh_gaussian_log_prob(x: Array, mean: Array, scale: Array) -> Array:
    """Log-density of a tanh-squashed Gaussian action, given the sample before tanh.

    log N(x; mean, scale) - sum_d log(1 - tanh(x_d)^2), the log-density of tanh(x)

    Args:
      x: [..., D], the sample before tanh (arctanh of the action would lose it to rounding).
      mean, scale: [..., D], of the Gaussian; standard deviations are positive.
    Returns: [...].
    Gradients: none are stopped.
    Source: Haarnoja et al., 2018, "Soft actor-critic", appendix C.
    Example: `losses.tanh_gaussian_log_prob(x, mean, scale)`
    """
    # log(1 - tanh(x)^2), avoiding the difference, which rounds to 0 once |x| is large.
    log_slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))
    return gaussian_log_prob(x, mean, scale) - log_slope.sum(-1)


@check_arguments
def sparsemax(logits: Array) -> Array:
    """Project logits onto the probability simplex: a softmax that can give zeros.

    argmin_p |p - logits|^2 over probabilities p: p_a = max(logits_a - tau, 0), sum_a p_a = 1

    Args: logits: [..., A]; -inf where an action cannot be taken.
    Returns: [..., A], probabilities.
    Gradients: none are stopped; 0 where the probability is 0.
    Source: Martins and Astudillo, 2016, "From softmax to sparsemax", algorithm 1.
    Example: `losses.sparsemax(logits)`
    """
    logits = logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))  # p does not change
    ordered = -jnp.sort(-logits, axis=-1)
    number = jnp.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    total = jnp.where(ordered > -jnp.inf, ordered, 0).cumsum(-1)
    positive = 1 + number * ordered > total
    size = positive.sum(-1, keepdims=True)
    kept = jnp.take_along_axis(total, size - 1, -1)
    return jnp.maximum(logits - (kept - 1) / size.astype(logits.dtype), 0)


@check_arguments
def kl_k1(log_prob: Array, other_log_prob: Array) -> Array:
    """Monte Carlo estimate k1 of KL(p || q): unbiased, high variance, sometimes negative.

    k1 = log p(x) - log q(x), x ~ p

    Args: log_prob, other_log_prob: [...], log p(x) and log q(x) of samples x of p.
    Returns: [...].
    Gradients: none are stopped. The gradient of its mean with respect to p is not that of the
      divergence (its expectation is 0), since p also determines the samples.
    Source: Schulman, 2020, "Approximating KL divergence".
    Example: `losses.kl_k1(log_prob, other_log_prob).mean()`
    """
    return log_prob - other_log_prob


@check_arguments
def kl_k2(log_prob: Array, other_log_prob: Array) -> Array:
    """Monte Carlo estimate k2 of KL(p || q): biased, low variance, never negative.

    k2 = (log p(x) - log q(x))^2 / 2, x ~ p

    Args: log_prob, other_log_prob: [...], log p(x) and log q(x) of samples x of p.
    Returns: [...].
    Gradients: none are stopped. With respect to p, the expected gradient is the divergence's.
    Source: Schulman, 2020, "Approximating KL divergence".
    Example: `losses.kl_k2(log_prob, other_log_prob).mean()`
    """
    return 0.5 * jnp.square(log_prob - other_log_prob)


@jax.custom_jvp
def _curvature_of_exp(x: Array) -> Array:
    """Return exp(x) - 1 - x, accurate near 0, where the terms cancel; exp is at most exp(60).

    Near 0 it uses a series, exact to 2e-9 and faster on a CPU than expm1.
    """
    small = jnp.abs(x) < 0.5
    y = jnp.where(small, x, 0)
    series = jnp.zeros_like(y)
    for k in range(9, 1, -1):
        series = series * y + 1 / math.factorial(k)
    return jnp.where(small, y * y * series, jnp.exp(jnp.where(x > 60, 60, x)) - 1 - x)


# The derivative, exp(x) - 1, needs no second exponential.
_curvature_of_exp.defjvps(lambda tangent, value, x: (value + x) * tangent)


@check_arguments
def kl_k3(log_prob: Array, other_log_prob: Array) -> Array:
    """Monte Carlo estimate k3 of KL(p || q): unbiased, low variance, never negative.

    k3 = (r - 1) - log r, r = q(x) / p(x), x ~ p

    Args: log_prob, other_log_prob: [...], log p(x) and log q(x) of samples x of p.
    Returns: [...].
    Gradients: none are stopped. The ratio is kept below exp(60) so that nothing overflows.
    Source: Schulman, 2020, "Approximating KL divergence".
    Example: `losses.kl_k3(log_prob, other_log_prob).mean()`
    """
    log_ratio = other_log_prob - log_prob
    return _curvature_of_exp(log_ratio)


@check_arguments
def proper_score(prob: Array, outcome: Array, rule: str = "quadratic") -> Array:
    """Proper score: a reward of probability forecasts whose expectation honesty maximizes.

    quadratic: 2 p_o - sum_a p_a^2; log: log p_o; spherical: p_o / |p|

    Args:
      prob: [..., A], the forecast.
      outcome: o, [...], integers from 0 to A - 1.
      rule: "quadratic" (Brier), "log" or "spherical".
    Returns: [...], to be maximized; a log score of -inf if the outcome was deemed impossible.
    Gradients: none are stopped.
    Source: Gneiting and Raftery, 2007, "Strictly proper scoring rules, prediction, and
      estimation".
    Example: `losses.proper_score(prob, outcome)`
    """
    happened = at_action(prob, outcome)
    if rule == "log":
        return jnp.log(happened)
    square = jnp.square(prob).sum(-1)
    if rule == "quadratic":
        return 2 * happened - square
    if rule != "spherical":
        raise ValueError(f"rule must be 'quadratic', 'log' or 'spherical', not {rule!r}")
    return happened / jnp.sqrt(square)
