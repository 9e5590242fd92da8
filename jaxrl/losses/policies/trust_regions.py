"""Trust regions of policies: mirror descent, MPO and related methods."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_kl, gaussian_kl
from jaxrl.losses.reductions import _full_mask, boltzmann_weights

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


@check_arguments
def mdpo(logits: Array, old_logits: Array, q_values: Array, step_size: Array | float) -> Array:
    """All-action loss of mirror descent policy optimization, minimized by the mirror descent step.

    -sum_a p(a) Q(a) + KL(p || old) / step_size, p = softmax(logits)

    For sampled actions use `kl_penalty_surrogate` with `beta` 1 / step_size.

    Args:
      logits, old_logits: [..., A], unnormalized; -inf where an action cannot be taken.
      q_values: [..., A], values or advantages, finite.
      step_size: how far to move, positive.
    Returns: [...].
    Gradients: flow only into `logits` (and into `step_size`).
    Source: Tomar et al., 2022, "Mirror descent policy optimization".
    Example: `losses.mdpo(logits, old_logits, q_values, step_size=0.5).mean()`
    """
    old_logits, q_values = jax.lax.stop_gradient((old_logits, q_values))
    gain = (jax.nn.softmax(logits) * q_values).sum(-1)
    return categorical_kl(logits, old_logits) / step_size - gain


def _temperature_dual(
    scaled: Array, log_number: Array | float, temperature: Array, bound: Array | float
) -> Array:
    """Return temperature * (bound + log mean exp(scaled)); -inf excludes an element."""
    return temperature * (bound + jax.nn.logsumexp(scaled, -1) - log_number)


@check_arguments
def mpo_weights(q_values: Array, temperature: Array | float) -> Array:
    """MPO's improved policy on sampled actions, as weights that sum to 1.

    softmax(Q / temperature) over the samples

    Args:
      q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [..., 1].
    Returns: [..., N].
    Gradients: none flow into any argument.
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo_weights(q_values, temperature=1.0)`
    """
    return boltzmann_weights(*jax.lax.stop_gradient((q_values, temperature)))


@check_arguments
def mpo(log_prob: Array, q_values: Array, temperature: Array | float) -> Array:
    """MPO's policy loss: likelihood of sampled actions, weighted by the improved policy.

    -sum_i w_i log_prob_i, w = mpo_weights(q_values, temperature)

    Args:
      log_prob, q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [..., 1]; learned with `mpo_temperature`.
    Returns: [...]. Add `lagrangian_penalty` of the divergence from the old policy.
    Gradients: flow only into `log_prob`.
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo(log_prob, q_values, temperature=1.0).mean()`
    """
    return -(mpo_weights(q_values, temperature) * log_prob).sum(-1)


@check_arguments
def mpo_temperature(q_values: Array, temperature: Array, bound: Array | float) -> Array:
    """MPO's temperature loss: the dual of a bound on the improved policy's divergence.

    temperature * (bound + log mean_i exp(Q_i / temperature))

    Args:
      q_values: [..., N], of N actions sampled from the old policy.
      temperature: positive, broadcasts to [...], e.g. a softplus of a parameter.
      bound: epsilon, the allowed divergence.
    Returns: [...].
    Gradients: flow only into `temperature`. At the minimum, the weights' divergence from uniform
      equals the bound (or is smaller if even the best weights are closer).
    Source: Abdolmaleki et al., 2018, "Maximum a posteriori policy optimization".
    Example: `losses.mpo_temperature(q_values, temperature, bound=0.1).mean()`
    """
    scaled = jax.lax.stop_gradient(q_values) / jnp.expand_dims(temperature, -1)
    return _temperature_dual(scaled, math.log(q_values.shape[-1]), temperature, bound)


@check_arguments
def decoupled_gaussian_kl(
    mean: Array, scale: Array, old_mean: Array, old_scale: Array
) -> tuple[Array, Array]:
    """MPO's divergences from an old Gaussian, one for its mean and one for its scale.

    KL(N(old_mean, old_scale) || N(mean, old_scale)),
    KL(N(old_mean, old_scale) || N(old_mean, scale))

    Args: mean, scale, old_mean, old_scale: [..., D]; scales are positive.
    Returns: two arrays [...], to be bounded separately, the second much more tightly.
    Gradients: flow only into `mean` from the first and only into `scale` from the second.
    Source: Abdolmaleki et al., 2018, "Relative entropy regularized policy iteration".
    Example: `losses.decoupled_gaussian_kl(mean, scale, old_mean, old_scale)`
    """
    old_mean, old_scale = jax.lax.stop_gradient((old_mean, old_scale))
    return (
        gaussian_kl(old_mean, old_scale, mean, old_scale),
        gaussian_kl(old_mean, old_scale, old_mean, scale),
    )


def _top_half(advantage: Array, mask: Array | None) -> Array:
    """Return a mask of the better half of a batch, including ties with its last element."""
    allowed = _full_mask(advantage, mask)
    if advantage.size == 0:
        return allowed
    ranked = -jnp.sort(-jnp.where(allowed, advantage, -jnp.inf), axis=None)
    least = ranked[jnp.maximum(allowed.sum() // 2, 1) - 1]
    return allowed & (advantage >= least)


@check_arguments
def vmpo_weights(advantage: Array, temperature: Array | float, mask: Array | None = None) -> Array:
    """V-MPO's improved policy on a batch, as weights of its better half that sum to 1.

    exp(A_i / temperature) / sum_j exp(A_j / temperature) over the half with the largest A, else 0

    Args:
      advantage: [...], one batch over all axes.
      temperature: positive, a scalar.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: [...]; all 0 if no element counts. Ties with the half's last element are included.
    Gradients: none flow into any argument.
    Source: Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for
      discrete and continuous control".
    Example: `losses.vmpo_weights(advantage, temperature=1.0)`
    """
    advantage, temperature = jax.lax.stop_gradient((advantage, temperature))
    top = _top_half(advantage, mask)
    return boltzmann_weights(advantage.ravel(), temperature, top.ravel()).reshape(advantage.shape)


@check_arguments
def vmpo(
    log_prob: Array, advantage: Array, temperature: Array | float, mask: Array | None = None
) -> Array:
    """V-MPO's policy loss: likelihood of a batch's better half, weighted toward the best actions.

    -sum_i w_i log_prob_i, w = vmpo_weights(advantage, temperature, mask)

    Args:
      log_prob, advantage: [...], one batch over all axes.
      temperature: positive, a scalar; learned with `vmpo_temperature`.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: a scalar. Add `lagrangian_penalty` of the divergence from the old policy.
    Gradients: flow only into `log_prob`.
    Source: Song et al., 2020, "V-MPO: on-policy maximum a posteriori policy optimization for
      discrete and continuous control".
    Example: `losses.vmpo(log_prob, advantage, temperature=1.0)`
    """
    weights = vmpo_weights(advantage, temperature, mask)
    return -(weights * jnp.where(weights > 0, log_prob, 0)).sum()


@check_arguments
def vmpo_temperature(
    advantage: Array, temperature: Array, bound: Array | float, mask: Array | None = None
) -> Array:
    """V-MPO's temperature loss: the dual of a bound on the improved policy's divergence.

    temperature * (bound + log mean_i exp(A_i / temperature)), over the half with the largest A

    Args:
      advantage: [...], one batch over all axes.
      temperature: positive, a scalar, e.g. a softplus of a parameter.
      bound: epsilon, the allowed divergence.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: a scalar; 0 if no element counts.
    Gradients: flow only into `temperature`.
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


@check_arguments
def pmpo(
    log_prob: Array,
    advantage: Array,
    kl: Array,
    alpha: Array | float = 0.5,
    beta: Array | float = 0.3,
    mask: Array | None = None,
) -> Array:
    """PMPO, Dreamer 4's policy loss: good actions likelier, bad ones less likely, near a prior.

    mean = -alpha mean_{A >= 0} log_prob + (1 - alpha) mean_{A < 0} log_prob + beta mean kl

    Only the signs of advantages matter, so rewards need no scaling.

    Args:
      log_prob, advantage: [...], one batch over all axes.
      kl: [...], e.g. from `categorical_kl`: KL(policy || prior) in Dreamer 4, where the prior is a
        cloned policy; the paper on preferences uses KL(reference || policy).
      alpha: in [0, 1], the weight of the good actions; 1: only these.
      beta: the weight of the divergence; needed, as the likelihood of bad actions is unbounded.
      mask: broadcasts to [...], true where an element counts; None: everywhere.
    Returns: [...], whose mean over the mask is the loss: good and bad actions are weighted by
      n / n_good and n / n_bad, so that it contains the mean over each. 0 where the mask is false;
      the mean over no elements is 0.
    Gradients: none flow into `advantage`.
    Source: Abdolmaleki et al., 2024, "Preference optimization as probabilistic inference"; Hafner
      et al., 2025, "Training agents inside of scalable world models", eq. 11.
    Example: `losses.masked_mean(losses.pmpo(log_prob, advantage, kl, mask=mask), mask)`
    """
    allowed, good = _full_mask(log_prob, mask), advantage >= 0

    def terms(part):
        ratio = (allowed.sum() / jnp.maximum(part.sum(), 1)).astype(log_prob.dtype)
        return ratio * jnp.where(part, log_prob, 0)

    liked, disliked = terms(allowed & good), terms(allowed & ~good)
    return (1 - alpha) * disliked - alpha * liked + beta * jnp.where(allowed, kl, 0)
