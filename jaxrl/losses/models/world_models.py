"""Losses of world models with latent states, and of policies learned in imagination."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_kl, gaussian_kl
from jaxrl.losses.exploration.information import standard_normal_kl
from jaxrl.losses.policies.policy_gradients import policy_gradient

__all__ = [
    "bounded_log_variance",
    "categorical_kl_balancing",
    "dreamer_actor",
    "gaussian_kl_balancing",
    "gaussian_nll",
    "information_bottleneck",
    "latent_plan",
    "percentile_range",
]


def _balance_kl(
    representation: Array, dynamics: Array, weights: tuple, free_nats: Array | float
) -> Array:
    """Return the weighted sum of the two divergences, each at least `free_nats`."""
    representation, dynamics = (jnp.maximum(x, free_nats) for x in (representation, dynamics))
    return weights[0] * dynamics + weights[1] * representation


@check_arguments
def categorical_kl_balancing(
    posterior_logits: Array,
    prior_logits: Array,
    dynamics_weight: Array | float = 0.8,
    representation_weight: Array | float = 0.2,
    free_nats: Array | float = 0.0,
) -> Array:
    """KL balancing: train a world model's prior toward its posterior faster than the reverse.

    w_d max(KL(stop(q) || p), free) + w_r max(KL(q || stop(p)), free), the divergences summed over
    the groups of latent variables

    Args:
      posterior_logits: [..., G, C], q, of G variables with C classes each; both axes are summed.
      prior_logits: [..., G, C], p.
      dynamics_weight, representation_weight: 0.8 and 0.2 in Dreamer v2, 0.5 and 0.1 in v3's
        first version, 1 and 0.1 in its last.
      free_nats: divergences below this are not reduced further; 1 in Dreamer v3.
    Returns: [...].
    Gradients: those of the first part flow into the prior, those of the second into the posterior.
    Source: Hafner et al., 2021, "Mastering Atari with discrete world models", algorithm 2; Hafner
      et al., 2023, "Mastering diverse domains through world models".
    Example: `losses.categorical_kl_balancing(posterior_logits, prior_logits).mean()`
    """
    posterior, prior = jax.lax.stop_gradient((posterior_logits, prior_logits))
    representation = categorical_kl(posterior_logits, prior).sum(-1)
    dynamics = categorical_kl(posterior, prior_logits).sum(-1)
    weights = (dynamics_weight, representation_weight)
    return _balance_kl(representation, dynamics, weights, free_nats)


@check_arguments
def gaussian_kl_balancing(
    mean: Array,
    scale: Array,
    prior_mean: Array,
    prior_scale: Array,
    dynamics_weight: Array | float = 0.8,
    representation_weight: Array | float = 0.2,
    free_nats: Array | float = 0.0,
) -> Array:
    """KL balancing, as in `categorical_kl_balancing`, for Gaussian latent variables.

    w_d max(KL(stop(q) || p), free) + w_r max(KL(q || stop(p)), free)

    Args:
      mean, scale: [..., D], q, of the posterior.
      prior_mean, prior_scale: [..., D], p.
      dynamics_weight, representation_weight, free_nats: as in `categorical_kl_balancing`. With
        weights that sum to 1 this is the plain divergence with free nats (PlaNet: 3).
    Returns: [...].
    Gradients: those of the first part flow into the prior, those of the second into the posterior.
    Source: Hafner et al., 2021, "Mastering Atari with discrete world models", algorithm 2; Hafner
      et al., 2019, "Learning latent dynamics for planning from pixels" (free nats).
    Example: `losses.gaussian_kl_balancing(mean, scale, prior_mean, prior_scale).mean()`
    """
    posterior, prior = jax.lax.stop_gradient(((mean, scale), (prior_mean, prior_scale)))
    representation = gaussian_kl(mean, scale, *prior)
    dynamics = gaussian_kl(*posterior, prior_mean, prior_scale)
    weights = (dynamics_weight, representation_weight)
    return _balance_kl(representation, dynamics, weights, free_nats)


@check_arguments
def bounded_log_variance(log_variance: Array, minimum: Array, maximum: Array) -> Array:
    """Softly bound a model's log-variances, as PETS does; the bounds may be learned.

    x = maximum - softplus(maximum - log_variance); minimum + softplus(x - minimum)

    Args:
      log_variance: [...].
      minimum, maximum: broadcast to [...]; add 0.01 * (maximum - minimum).sum() to the loss to
        pull them together.
    Returns: [...], above `minimum` and (up to the second softplus) below `maximum`.
    Gradients: none are stopped.
    Source: Chua et al., 2018, "Deep reinforcement learning in a handful of trials using
      probabilistic dynamics models", appendix A.1.
    Example: `losses.bounded_log_variance(log_variance, minimum, maximum)`
    """
    below = maximum - jax.nn.softplus(maximum - log_variance)
    return minimum + jax.nn.softplus(below - minimum)


@check_arguments
def gaussian_nll(mean: Array, log_variance: Array, target: Array, beta: float = 0.0) -> Array:
    """Negative log-likelihood of a probabilistic model's prediction, up to a constant.

    sum_d stop(variance_d^beta) * (log variance_d + (target_d - mean_d)^2 / variance_d) / 2

    Args:
      mean, log_variance, target: [..., D].
      beta: 0: the likelihood (PETS); 1: the mean's gradient is that of the squared error; 0.5
        keeps the mean from being neglected where the variance is large (beta-NLL).
    Returns: [...].
    Gradients: none flow into `target` or through the factor with `beta`.
    Source: Chua et al., 2018, "Deep reinforcement learning in a handful of trials using
      probabilistic dynamics models", section 4; Seitzer et al., 2022, "On the pitfalls of
      heteroscedastic uncertainty estimation with probabilistic neural networks".
    Example: `losses.gaussian_nll(mean, log_variance, target).mean()`
    """
    squared = jnp.square(jax.lax.stop_gradient(target) - mean)
    nll = 0.5 * (log_variance + squared * jnp.exp(-log_variance))
    return (jax.lax.stop_gradient(jnp.exp(beta * log_variance)) * nll).sum(-1)


@check_arguments
def percentile_range(x: Array, low: float = 5.0, high: float = 95.0) -> Array:
    """Spread of returns without outliers, by which Dreamer v3 divides them.

    percentile(x, high) - percentile(x, low), over all axes

    Args:
      x: [...], such as a batch's lambda-returns.
      low, high: percentiles.
    Returns: a scalar, for a running average that `dreamer_actor` takes.
    Gradients: none.
    Source: Hafner et al., 2023, "Mastering diverse domains through world models".
    Example: `losses.percentile_range(x)`
    """
    share = jnp.array([low, high], x.dtype) / 100
    ends = jnp.quantile(jax.lax.stop_gradient(x), share)
    return (ends[1] - ends[0]).astype(x.dtype)


@check_arguments
def dreamer_actor(
    log_prob: Array,
    returns: Array,
    value: Array,
    entropy: Array,
    entropy_weight: Array | float,
    reinforce: Array | float = 1.0,
    scale: Array | float = 1.0,
) -> Array:
    """Dreamer's actor loss in imagination: REINFORCE, gradients through the dynamics, or both.

    (reinforce * (-log_prob * stop(returns - value)) - (1 - reinforce) * returns) / max(1, scale)
    - entropy_weight * entropy

    Args:
      log_prob, returns, value, entropy: [...]: of the imagined action, the lambda-return of its
        state, the critic's value of its state, and the policy's entropy there.
      entropy_weight: 1e-3 (Dreamer v2, Atari), 3e-4 (v3).
      reinforce: 1: discrete actions, 0: gradients of the return through the dynamics.
      scale: running average of `percentile_range` (v3): returns above 1 are divided by it.
    Returns: [...]; the caller weights it by the probability that imagination continues.
    Gradients: only the dynamics part's flow into `returns`, none into `value` or `scale`.
    Source: Hafner et al., 2021, "Mastering Atari with discrete world models"; Hafner et
      al., 2023, "Mastering diverse domains through world models".
    Example: `losses.dreamer_actor(log_prob, returns, value, entropy, entropy_weight=1e-3).mean()`
    """
    score = policy_gradient(log_prob, returns - value)
    objective = reinforce * score - (1 - reinforce) * returns
    return objective / jnp.maximum(jax.lax.stop_gradient(scale), 1) - entropy_weight * entropy


@check_arguments
def latent_plan(
    log_prob: Array,
    mean: Array,
    scale: Array,
    prior_mean: Array,
    prior_scale: Array,
    beta: Array | float,
) -> Array:
    """Play-LMP's loss: likelihood of actions given a latent plan that the goal must predict.

    -log_prob + beta * KL(q || p), q the recognized plan's distribution and p the proposed one

    Args:
      log_prob: [...], of the window's actions given state, goal and a plan sampled from q.
      mean, scale: [..., D], q(plan | window).
      prior_mean, prior_scale: [..., D], p(plan | state, goal).
      beta: the divergence's weight.
    Returns: [...].
    Gradients: none are stopped.
    Source: Lynch et al., 2019, "Learning latent plans from play"; in the form of a conditional
      variational autoencoder, Sohn et al., 2015.
    Example: `losses.latent_plan(log_prob, mean, scale, prior_mean, prior_scale, beta=0.01).mean()`
    """
    return -log_prob + beta * gaussian_kl(mean, scale, prior_mean, prior_scale)


@check_arguments
def information_bottleneck(
    log_prob: Array, mean: Array, scale: Array, beta: Array | float
) -> Array:
    """Information-bottleneck loss (VIB, HIB) of a code that predicts a target and little else.

    -log_prob + beta * KL(N(mean, scale) || N(0, 1)), an upper bound on -I(code; target) +
    beta * I(code; input) up to a constant

    Args:
      log_prob: [...], of the target (e.g. the privileged state) given a code sampled from
        N(mean, scale).
      mean, scale: [..., D], of the code given the input (a history of observations).
      beta: cost of a nat of information about the input.
    Returns: [...].
    Gradients: none are stopped.
    Source: Alemi et al., 2017, "Deep variational information bottleneck"; applied by He et al.,
      2024, "Bridging the sim-to-real gap from the information bottleneck perspective".
    Example: `losses.information_bottleneck(log_prob, mean, scale, beta=0.1).mean()`
    """
    return -log_prob + beta * standard_normal_kl(mean, scale)
