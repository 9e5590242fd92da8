"""Token diffusion: masked diffusion, and fine-tuning on rewards."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.policies.policy_gradients import importance_ratio

__all__ = [
    "ctmc_kl",
    "masked_diffusion",
    "masked_diffusion_weight",
    "sepo",
]


@check_arguments
def masked_diffusion_weight(alpha: Array, alpha_rate: Array) -> Array:
    """Weight that makes the masked-diffusion loss a bound on the log-likelihood.

    -alpha_rate / (1 - alpha)

    Args:
      alpha: [...], the probability that a token is not masked at the sampled time, below 1.
      alpha_rate: [...], its derivative in time, not positive; for alpha = 1 - t the weight
        is 1 / t.
    Returns: [...].
    Gradients: none are stopped.
    Source: Sahoo et al., 2024, "Simple and effective masked diffusion language models";
      Shi et al., 2024, "Simplified and generalized masked diffusion for discrete data".
    Example: `losses.masked_diffusion_weight(alpha, alpha_rate)`
    """
    return -alpha_rate / (1 - alpha)


@check_arguments
def masked_diffusion(log_prob: Array, masked: Array, weight: Array) -> Array:
    """Loss of a masked diffusion model (MDLM) at one time; its mean bounds -log p(sequence).

    -weight sum over masked tokens l of log_prob_l

    Args:
      log_prob: [..., L], of the true tokens given the masked sequence.
      masked: [..., L], bool, true where a token is masked.
      weight: [...], `masked_diffusion_weight`, for times sampled uniformly from 0 to 1.
    Returns: [...]; 0 where nothing is masked.
    Gradients: flow into `log_prob` where `masked` is true; none into `weight`.
    Source: Sahoo et al., 2024, "Simple and effective masked diffusion language models",
      section 3.
    Example: `losses.masked_diffusion(log_prob, masked, weight).mean()`
    """
    return -jax.lax.stop_gradient(weight) * jnp.where(masked, log_prob, 0).sum(-1)


@check_arguments
def sepo(
    log_score: Array,
    old_log_score: Array,
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip: Array | float,
) -> Array:
    """SEPO: policy gradient of a discrete diffusion model through its probability ratios.

    sum_y stop(q(y) min(r_y A, clip(r_y, 1 - clip, 1 + clip) A)) log s(x)_y,
    r_y = q(y) / q_old(y) * s_old(x)_y / s(x)_y, s(x)_y = q(y) / q(x)

    It is based on the identity sum_y q(y) grad log s(x)_y = -grad log q(x), which is exact if s is
    the exact ratio of the model's own probabilities and y runs over all sequences. The gradient is
    biased with a learned s, which is not exactly such a ratio, and with a sum over sequences that
    differ in one token, which omits terms.

    Args:
      log_score, old_log_score: [..., Y], log s(x)_y of the sample x against each y, under the
        model and under the one that sampled x.
      log_prob, old_log_prob: [..., Y], estimates of log q(y) of both models (self-normalized
        importance sampling in the paper).
      advantage: [...], of x.
      clip: broadcasts to [..., Y].
    Returns: [...], to be minimized; its value is meaningless.
    Gradients: flow only into `log_score`.
    Source: Zekri and Boulle, 2025, "Fine-tuning discrete diffusion models with policy gradient
      methods" (its clipped form), and its published code.
    Example: `losses.sepo(log_score, old_log_score, log_prob, old_log_prob, advantage, clip=0.2)`
    """
    ratio = importance_ratio(log_prob + old_log_score, old_log_prob + log_score)
    advantage = jnp.expand_dims(advantage, -1)
    bounded = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
    weight = jnp.exp(log_prob) * bounded
    return (jax.lax.stop_gradient(weight) * log_score).sum(-1)


@check_arguments
def ctmc_kl(
    log_rate: Array, base_log_rate: Array, duration: Array, mask: Array | None = None
) -> Array:
    """DRAKES's divergence of a fine-tuned jump process from the frozen one, along a path.

    sum_t duration_t sum_y rate_y (log rate_y - log base_rate_y) - rate_y + base_rate_y

    Args:
      log_rate, base_log_rate: [T, ..., Y], of jumps from the state at t to each other state; -inf
        where a jump is impossible. For masked diffusion: log_softmax of the masked tokens' logits
        plus log(-alpha_rate / (1 - alpha)), and -inf at tokens without a mask.
      duration: [T, ...], how long the process stayed in that state.
      mask: broadcasts to [T, ...], true where a step counts; None: everywhere.
    Returns: [...], whose mean over paths is the divergence; infinite where only the fine-tuned
      process can jump.
    Gradients: none flow into `duration`. They flow into `base_log_rate`, since a reparameterized
      path moves the states at which both rates are taken; the frozen model's parameters are the
      caller's to freeze.
    Source: Wang et al., 2024, "Fine-tuning discrete diffusion models via reward optimization with
      applications to DNA and protein design" and its published code.
    Example: `losses.ctmc_kl(log_rate, base_log_rate, duration, mask).mean()`
    """
    duration = jax.lax.stop_gradient(duration)
    if mask is not None:  # before any product, so that masked NaN gives no NaN gradient
        mask = jnp.broadcast_to(mask, log_rate.shape[:-1])
        allowed = mask[..., None]
        log_rate, base_log_rate = (
            jnp.where(allowed, x, -jnp.inf) for x in (log_rate, base_log_rate)
        )
        duration = jnp.where(mask, duration, 0)
    possible = log_rate > -jnp.inf
    log_rate = jnp.where(possible, log_rate, 0)
    rate = jnp.where(possible, jnp.exp(log_rate), 0)
    # Where the rate is 0 the first term is 0 whatever the frozen rate is.
    ratio = log_rate - jnp.where(possible, base_log_rate, 0)
    return (duration * (rate * ratio - rate + jnp.exp(base_log_rate)).sum(-1)).sum(0)
