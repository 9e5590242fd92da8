"""Losses of token policies with other bounds on the probability ratio than PPO's clip.

Axis 0 is tokens, [T, ...]; an advantage [...] of answers broadcasts over tokens.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.policies.policy_gradients import importance_ratio, policy_gradient
from jaxrl.losses.tokens.policies import sequence_log_prob

__all__ = ["cispo", "gmpo", "sapo"]


@check_arguments
def cispo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip_low: Array | float,
    clip_high: Array | float,
) -> Array:
    """CISPO's loss: bound the weight of a token instead of dropping its gradient.

    -stop(clip(r, 1 - clip_low, 1 + clip_high)) A log_prob, r = importance_ratio(log_prob, old)

    Args:
      log_prob, old_log_prob: [T, ...], of the tokens.
      advantage: broadcasts to [T, ...], by `group_relative`.
      clip_low, clip_high: broadcast to [T, ...]; a clip_low of 1 leaves out the lower bound, as the
        paper does.
    Returns: [T, ...], for a mean with `token_weights` of "token".
    Gradients: flow only into `log_prob`, of every token.
    Source: MiniMax, 2025, "MiniMax-M1: scaling test-time compute efficiently with lightning
      attention", arXiv:2506.13585, section 3.1.
    Example: `losses.cispo(log_prob, old_log_prob, advantage, clip_low=1.0, clip_high=0.28)`
    """
    ratio = importance_ratio(jax.lax.stop_gradient(log_prob), old_log_prob)
    return policy_gradient(log_prob, jnp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)


@check_arguments
def gmpo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip_low: Array | float,
    clip_high: Array | float,
    mask: Array | None = None,
) -> Array:
    """GMPO's loss: the geometric mean of an answer's token ratios, each clipped in logarithms.

    -A exp(mean_t d[t]), d = min(l, clip(l, -clip_low, clip_high)) if A > 0, else max of the two,
    l = log_prob - old_log_prob

    Args:
      log_prob, old_log_prob: [T, ...], of the tokens.
      advantage: [...], by `group_relative`.
      clip_low, clip_high: broadcast to [T, ...]; the paper's are 0.4, wider than PPO's.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [...], one for each sequence.
    Gradients: flow only into `log_prob`, where the mask is true and no clip is active.
    Source: Zhao et al., 2025, "Geometric-mean policy optimization", arXiv:2507.20673; the
      clip is that of its pseudocode.
    Example: `losses.gmpo(log_prob, old_log_prob, advantage, 0.4, 0.4, mask)`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    log_ratio = log_prob - old_log_prob
    clipped = jnp.clip(jax.lax.stop_gradient(log_ratio), -clip_low, clip_high)
    active = jnp.where(advantage > 0, clipped < log_ratio, clipped > log_ratio)
    mean = sequence_log_prob(jnp.where(active, clipped, log_ratio), mask, normalize=True)
    return -advantage * importance_ratio(mean, jnp.zeros_like(mean))


@check_arguments
def sapo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    temperature: Array | float = 1.0,
    negative_temperature: Array | float = 1.05,
) -> Array:
    """SAPO's loss: a soft gate in the place of the clip, whose slope falls off on both sides.

    -4 / tau sigmoid(tau (r - 1)) A, r = importance_ratio(log_prob, old_log_prob), tau the
    temperature for A > 0 and the negative temperature otherwise

    Args:
      log_prob, old_log_prob: [T, ...], of the tokens.
      advantage: broadcasts to [T, ...], by `group_relative`.
      temperature, negative_temperature: broadcast to [T, ...], above 0; larger ones close sooner.
    Returns: [T, ...], for a mean with `token_weights` of "sequence".
    Gradients: flow only into `log_prob`; at r = 1 they are the policy gradient's.
    Source: Gao et al., 2025, "Soft adaptive policy optimization", arXiv:2511.20347, eq. 5 and 6.
    Example: `losses.sapo(log_prob, old_log_prob, advantage)`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    tau = jnp.where(advantage > 0, temperature, negative_temperature)
    gate = jax.nn.sigmoid(tau * (importance_ratio(log_prob, old_log_prob) - 1))
    return -4 / tau * gate * advantage
