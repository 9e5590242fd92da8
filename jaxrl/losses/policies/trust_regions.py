"""How far a policy may move: mirror descent, MPO and its kin."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_kl, gaussian_kl
from jaxrl.losses.reductions import _allowed, boltzmann_weights

__all__ = [
    "decoupled_gaussian_kl",
    "mdpo",
    "mpo",
    "mpo_temperature",
    "mpo_weights",
    "pmpo",
    "vmpo",
    "vmpo_temperature",
    "vmpo_weights",
]


def mdpo(logits: Array, old_logits: Array, q_values: Array, step_size: Array | float) -> Array:
    """Mirror descent policy optimization's loss over all actions: its minimizer is the descent's.

    -sum_a p(a) Q(a) + KL(p || old) / step_size, p = softmax(logits)

    For sampled actions take `kl_penalty_surrogate` with `beta` 1 / step_size.

    Args:
      logits, old_logits: [..., A], unnormalized; -inf where an action cannot be taken.
      q_values: [..., A], values or advantages, finite.
      step_size: how far to move, positive.
    Returns: [...].
    Gradients: flow into `logits` only (and into `step_size`).
    Source: Tomar et al., 2022, "Mirror descent policy optimization".
    Example: `losses.mdpo(logits, old_logits, q_values, step_size=0.5).mean()`
    """
    old_logits, q_values = jax.lax.stop_gradient((old_logits, q_values))
    gain = (jax.nn.softmax(logits) * q_values).sum(-1)
    return categorical_kl(logits, old_logits) / step_size - gain


def _temperature_dual(
    scaled: Array, log_number: Array | float, temperature: Array, bound: Array | float
) -> Array:
    """temperature * (bound + log of the mean of exp(scaled)); -inf where an element is no part."""
    return temperature * (bound + jax.nn.logsumexp(scaled, -1) - log_number)


def mpo_weights(q_values: Array, temperature: Array | float) -> Array:
    """MPO's improved policy, on sampled actions: their weights, which sum to 1.

    softmax(Q / temperature) over the samples

    Args:
      q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [..., 1].
    Returns: [..., N].
    Gradients: none flows into any argument.
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo_weights(q_values, temperature=1.0)`
    """
    return boltzmann_weights(*jax.lax.stop_gradient((q_values, temperature)))


def mpo(log_prob: Array, q_values: Array, temperature: Array | float) -> Array:
    """MPO's policy loss: the sampled actions' likelihood, weighted by the improved policy.

    -sum_i w_i log_prob_i, w = mpo_weights(q_values, temperature)

    Args:
      log_prob, q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [..., 1]; learned with `mpo_temperature`.
    Returns: [...]. Add `lagrangian_penalty` of the divergence to the old policy.
    Gradients: flow into `log_prob` only.
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo(log_prob, q_values, temperature=1.0).mean()`
    """
    return -(mpo_weights(q_values, temperature) * log_prob).sum(-1)


def mpo_temperature(q_values: Array, temperature: Array, bound: Array | float) -> Array:
    """MPO's loss for its temperature: the dual of a bound on the improved policy's divergence.

    temperature * (bound + log mean_i exp(Q_i / temperature))

    Args:
      q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [...]: a softplus of a parameter, say.
      bound: epsilon, the divergence allowed.
    Returns: [...].
    Gradients: flow into `temperature` only. At its minimum the weights' divergence from uniform
      is the bound (or the best weights are nearer than that).
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo_temperature(q_values, temperature, bound=0.1).mean()`
    """
    scaled = jax.lax.stop_gradient(q_values) / jnp.expand_dims(temperature, -1)
    return _temperature_dual(scaled, math.log(q_values.shape[-1]), temperature, bound)


def decoupled_gaussian_kl(
    mean: Array, scale: Array, old_mean: Array, old_scale: Array
) -> tuple[Array, Array]:
    """MPO's divergences from an old Gaussian, one for the mean alone and one for the scale alone.

    KL(N(old_mean, old_scale) || N(mean, old_scale)),
    KL(N(old_mean, old_scale) || N(old_mean, scale))

    Args: mean, scale, old_mean, old_scale: [..., D], scales positive.
    Returns: two arrays [...], each to be bounded on its own, the second much more tightly.
    Gradients: flow into `mean` from the first and into `scale` from the second only.
    Source: Abdolmaleki et al., 2018, "Relative entropy regularized policy iteration".
    Example: `losses.decoupled_gaussian_kl(mean, scale, old_mean, old_scale)`
    """
    old_mean, old_scale = jax.lax.stop_gradient((old_mean, old_scale))
    return (
        gaussian_kl(old_mean, old_scale, mean, old_scale),
        gaussian_kl(old_mean, old_scale, old_mean, scale),
    )


def _top_half(advantage: Array, mask: Array | None) -> Array:
    """Which of a batch's elements are in its better half (ties with the last one included)."""
    allowed = _allowed(advantage, mask)
    if advantage.size == 0:
        return allowed
    ranked = -jnp.sort(-jnp.where(allowed, advantage, -jnp.inf), axis=None)
    least = ranked[jnp.maximum(allowed.sum() // 2, 1) - 1]
    return allowed & (advantage >= least)


def vmpo_weights(advantage: Array, temperature: Array | float, mask: Array | None = None) -> Array:
    """V-MPO's improved policy, on a batch: weights of its better half, which sum to 1.

    exp(A_i / temperature) / sum_j exp(A_j / temperature), over the half with the largest A; 0 else

    Args:
      advantage: [...], one batch: all axes together.
      temperature: positive, a scalar.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: [...], all 0 where nothing counts. Ties with the half's last element are included.
    Gradients: none flows into any argument.
    Source: Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for
      discrete and continuous control".
    Example: `losses.vmpo_weights(advantage, temperature=1.0)`
    """
    advantage, temperature = jax.lax.stop_gradient((advantage, temperature))
    top = _top_half(advantage, mask)
    return boltzmann_weights(advantage.ravel(), temperature, top.ravel()).reshape(advantage.shape)


def vmpo(
    log_prob: Array, advantage: Array, temperature: Array | float, mask: Array | None = None
) -> Array:
    """V-MPO's policy loss: likelihood of a batch's better half, the best actions weighing most.

    -sum_i w_i log_prob_i, w = vmpo_weights(advantage, temperature, mask)

    Args:
      log_prob, advantage: [...], one batch: all axes together.
      temperature: positive, a scalar; learned with `vmpo_temperature`.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: a scalar. Add `lagrangian_penalty` of the divergence to the old policy.
    Gradients: flow into `log_prob` only.
    Source: Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for
      discrete and continuous control".
    Example: `losses.vmpo(log_prob, advantage, temperature=1.0)`
    """
    weights = vmpo_weights(advantage, temperature, mask)
    return -(weights * jnp.where(weights > 0, log_prob, 0)).sum()


def vmpo_temperature(
    advantage: Array, temperature: Array, bound: Array | float, mask: Array | None = None
) -> Array:
    """V-MPO's loss for its temperature: the dual of a bound on the improved policy's divergence.

    temperature * (bound + log mean_i exp(A_i / temperature)), over the half with the largest A

    Args:
      advantage: [...], one batch: all axes together.
      temperature: positive, a scalar: a softplus of a parameter, say.
      bound: epsilon, the divergence allowed.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: a scalar, 0 where nothing counts.
    Gradients: flow into `temperature` only.
    Source: Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for
      discrete and continuous control".
    Example: `losses.vmpo_temperature(advantage, temperature, bound=0.1)`
    """
    top = _top_half(advantage, mask)
    some = top.any()
    kept = jnp.where(top, jax.lax.stop_gradient(advantage), 0) / temperature
    scaled = jnp.where(top | ~some, kept, -jnp.inf).ravel()
    if not scaled.size:
        return jnp.zeros_like(temperature)
    log_number = jnp.log(jnp.maximum(top.sum(), 1).astype(scaled.dtype))
    return jnp.where(some, _temperature_dual(scaled, log_number, temperature, bound), 0)


def pmpo(
    log_prob: Array,
    advantage: Array,
    kl: Array,
    alpha: Array | float = 0.5,
    beta: Array | float = 0.3,
    mask: Array | None = None,
) -> Array:
    """PMPO, the policy loss of Dreamer 4: good actions likelier, bad ones less, near a prior.

    mean = -alpha mean_{A >= 0} log_prob + (1 - alpha) mean_{A < 0} log_prob + beta mean kl

    Of the advantages only the signs count, so rewards need no scale.

    Args:
      log_prob, advantage: [...], one batch: all axes together.
      kl: [...], KL(policy || prior) in Dreamer 4, where the prior is a cloned policy; the
        preferences' paper has KL(reference || policy). By `categorical_kl`, say.
      alpha: in [0, 1], the weight of the good actions; 1: they alone.
      beta: the weight of the divergence: needed, as the likelihood of bad actions has no bound.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: [...], of which the mean over the mask is the loss: the means over good and over bad
      actions, as terms of it, weigh each of them by n / n_good or n / n_bad. 0 where the mask is
      false; the mean over no element is 0.
    Gradients: none flows into `advantage`.
    Source: Abdolmaleki et al., 2024, "Preference optimization as probabilistic inference"; Hafner
      et al., 2025, "Training agents inside of scalable world models", eq. 11.
    Example: `losses.masked_mean(losses.pmpo(log_prob, advantage, kl, mask=mask), mask)`
    """
    allowed, good = _allowed(log_prob, mask), advantage >= 0

    def terms(part):
        ratio = (allowed.sum() / jnp.maximum(part.sum(), 1)).astype(log_prob.dtype)
        return ratio * jnp.where(part, log_prob, 0)

    liked, disliked = terms(allowed & good), terms(allowed & ~good)
    return (1 - alpha) * disliked - alpha * liked + beta * jnp.where(allowed, kl, 0)
