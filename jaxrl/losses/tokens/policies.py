"""Losses of token policies: one value per token or sequence, to be minimized.

Axis 0 is tokens, [T, ...]; the last axis is a group of answers to one prompt, [T, ..., G]. An
advantage [..., G] (see `group_relative` and similar functions) broadcasts over tokens.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.advantages.groups import group_relative
from jaxrl.losses.divergences.entropy_and_kl import kl_k3
from jaxrl.losses.policies.policy_gradients import (
    clipped_surrogate,
    importance_ratio,
    policy_gradient,
)
from jaxrl.losses.reductions import masked_mean

__all__ = [
    "crpg",
    "grpo",
    "gspo",
    "gspo_token",
    "guided_ratio",
    "mirror_descent_regression",
    "rpg",
    "rpg_advantage",
    "sequence_log_prob",
    "token_weights",
]


@check_arguments
def sequence_log_prob(log_prob: Array, mask: Array | None = None, normalize: bool = False) -> Array:
    """Log-probability of whole sequences, or its mean per token.

    sum_t log p(y_t), divided by the number of tokens if normalized

    Args:
      log_prob: [T, ...].
      mask: broadcasts to [T, ...], true where a token counts; None: all.
      normalize: return the mean instead of the sum.
    Returns: [...]; 0 for sequences without a token.
    Gradients: flow into `log_prob` where the mask is true.
    Source: common usage; normalized as in Zheng et al., 2025, "Group sequence policy optimization".
    Example: `losses.sequence_log_prob(log_prob, mask)`
    """
    log_prob = log_prob if mask is None else jnp.where(mask, log_prob, 0)
    total = log_prob.sum(0)
    if not normalize:
        return total
    number = log_prob.shape[0] if mask is None else jnp.broadcast_to(mask, log_prob.shape).sum(0)
    return total / jnp.maximum(number, 1).astype(total.dtype)


@check_arguments
def token_weights(mask: Array, average: str = "token", length: float | None = None) -> Array:
    """Weights of tokens, which decide how tokens of long answers count in a mean over all tokens.

    sequence: m / n of the sequence (GRPO: a mean over a sequence's tokens, then over sequences, so
    that tokens of long answers count less); token: 1 (DAPO: a mean over all tokens); constant:
    m / length (Dr. GRPO: a sum over a sequence's tokens, divided by `length`, then a mean over
    sequences, without length bias); n the number of tokens of a sequence, m its mean

    Average weighted losses over the mask: masked_mean(loss * token_weights(mask), mask).

    Args:
      mask: [T, ...], true where a token counts. Sequences without a token do not count.
      average: "sequence", "token" or "constant"; anything else raises ValueError.
      length: the divisor of "constant", e.g. the longest answer allowed; None: T.
    Returns: [T, ...], in the default precision; meaningless where the mask is false.
    Gradients: none.
    Source: Shao et al., 2024, "DeepSeekMath", eq. 3; Yu et al., 2025, "DAPO", section 3.3; Liu et
      al., 2025, "Understanding R1-Zero-like training: a critical perspective".
    Example: `losses.token_weights(mask, "sequence")`
    """
    number = jnp.maximum(mask.sum(0), 1)
    mean = mask.sum() / jnp.maximum(mask.any(0).sum(), 1)
    if average == "sequence":
        weight = mean / number
    elif average == "token":
        weight = 1.0
    elif average == "constant":
        weight = mean / (length or mask.shape[0])
    else:
        raise ValueError(f"average must be sequence, token or constant, not {average!r}")
    return jnp.broadcast_to(weight, mask.shape)


@check_arguments
def grpo(
    log_prob: Array,
    old_log_prob: Array,
    reference_log_prob: Array,
    advantage: Array,
    clip: Array | float,
    beta: Array | float,
) -> Array:
    """GRPO's loss: PPO's clipped surrogate plus a KL penalty toward a reference policy.

    -min(r A, clip(r, 1 - clip, 1 + clip) A) + beta * kl_k3(log_prob, reference_log_prob)

    Args:
      log_prob, old_log_prob, reference_log_prob: [T, ...], of the tokens.
      advantage: [...] or [T, ...], by `group_relative`.
      clip, beta: broadcast to [T, ...].
    Returns: [T, ...], for a mean with `token_weights` of "sequence".
    Gradients: flow only into `log_prob`.
    Source: Shao et al., 2024, "DeepSeekMath: pushing the limits of mathematical reasoning in open
      language models", eq. 3 and 4.
    Example: `losses.grpo(log_prob, old_log_prob, reference_log_prob, advantage, clip, beta)`
    """
    penalty = kl_k3(log_prob, jax.lax.stop_gradient(reference_log_prob))
    return clipped_surrogate(log_prob, old_log_prob, advantage, clip) + beta * penalty


@check_arguments
def gspo(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip_low: Array | float,
    clip_high: Array | float,
    mask: Array | None = None,
) -> Array:
    """GSPO's loss: clip whole sequences by the mean log-ratio of their tokens.

    -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), s = exp(mean_t(log_prob - old_log_prob))

    Args:
      log_prob, old_log_prob: [T, ...].
      advantage: [...], by `group_relative`.
      clip_low, clip_high: broadcast to [...]; much smaller than clips of a token's ratio.
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [...], one for each sequence.
    Gradients: flow only into `log_prob`, where the mask is true.
    Source: Zheng et al., 2025, "Group sequence policy optimization".
    Example: `losses.gspo(log_prob, old_log_prob, advantage, clip_low, clip_high, mask)`
    """
    ours, theirs = (sequence_log_prob(x, mask, normalize=True) for x in (log_prob, old_log_prob))
    return clipped_surrogate(ours, theirs, advantage, clip_low, clip_high)


@check_arguments
def gspo_token(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip_low: Array | float,
    clip_high: Array | float,
    mask: Array | None = None,
) -> Array:
    """GSPO-token's loss: clip by the whole sequence's ratio, with an advantage per token.

    -min(s[t] A[t], clip(s[t], 1 - clip_low, 1 + clip_high) A[t]), s[t] = stop(s) p[t] / stop(p[t]),
    s = exp(mean_t(log_prob - old_log_prob)), the ratio of `gspo`

    Args:
      log_prob, old_log_prob: [T, ...].
      advantage: broadcasts to [T, ...].
      clip_low, clip_high: broadcast to [T, ...].
      mask: broadcasts to [T, ...], true where a token counts; None: all.
    Returns: [T, ...], for a mean with `token_weights` of "sequence": with one advantage for all
      tokens, value and gradient are those of `gspo`; 0 where the mask is false.
    Gradients: flow only into `log_prob`, where the mask is true, and through the token's own
      log-probability, not through the sequence's ratio.
    Source: Zheng et al., 2025, "Group sequence policy optimization" (GSPO-token).
    Example: `losses.gspo_token(log_prob, old_log_prob, advantage, clip_low, clip_high, mask)`
    """
    advantage = jnp.broadcast_to(advantage, log_prob.shape)
    if mask is not None:
        log_prob, advantage = (jnp.where(mask, x, 0) for x in (log_prob, advantage))
    ours, theirs = (sequence_log_prob(x, mask, normalize=True) for x in (log_prob, old_log_prob))
    own = jax.lax.stop_gradient(ours) + (log_prob - jax.lax.stop_gradient(log_prob))
    return clipped_surrogate(own, theirs, advantage, clip_low, clip_high)


@check_arguments
def crpg(
    log_prob: Array,
    reference_log_prob: Array,
    reward: Array,
    limit: Array | float,
    mask: Array | None = None,
) -> Array:
    """CGPO's policy gradient: calibrated rewards shrink as answers leave a reference policy.

    -stop(R - mean(R)) log p, R = max(1 - log(p / p_ref) / limit, 0) * r, the mean over the batch

    Args:
      log_prob, reference_log_prob: [...], of whole answers, from `sequence_log_prob`.
      reward: [...], from `calibrated_reward`: in [0, 1], and 0 where a constraint is violated.
      limit: KL_max, above 0, broadcasts to [...].
      mask: broadcasts to [...], true where an answer counts; None: all.
    Returns: [...]; 0 where the mask is false.
    Gradients: flow only into `log_prob`, not through the reward.
    Source: Xu et al., 2024, "The perfect blend: redefining RLHF with mixture of judges", eq. 11
      and 12.
    Example: `losses.crpg(log_prob, reference_log_prob, reward, limit)`
    """
    if mask is not None:
        log_prob, reference_log_prob, reward = (
            jnp.where(mask, x, 0) for x in (log_prob, reference_log_prob, reward)
        )
    drift = log_prob - reference_log_prob
    shaped = jax.lax.stop_gradient(jnp.maximum(1 - drift / limit, 0) * reward)
    return policy_gradient(log_prob, shaped - masked_mean(shaped, mask))


def _rpg_slope(
    weight: Array | float,
    reference_weight: Array,
    log_ratio: Array,
    kl: Literal["forward", "reverse"],
    normalized: bool,
) -> Array:
    """Return dD / dlog p for `rpg`'s divergences, which is linear in the weights w and v."""
    slope = -reference_weight if kl == "forward" else weight * (log_ratio + 1)
    if normalized:
        return slope
    return slope + weight if kl == "forward" else slope - weight


@check_arguments
def rpg_advantage(
    log_prob: Array,
    reference_log_prob: Array,
    advantage: Array,
    beta: Array | float,
    kl: Literal["forward", "reverse"] = "reverse",
    normalized: bool = True,
) -> Array:
    """RPG's advantage, which includes the KL penalty so that PPO's clips apply to both.

    stop(A - (beta / w) dD/dlog p), w and D as in `rpg`; that is
    A + beta p_ref / p                   forward, KL(p_ref || p)
    A + beta (p_ref / p - 1)             forward, unnormalized
    A - beta (log(p / p_ref) + 1)        reverse, KL(p || p_ref)
    A - beta log(p / p_ref)              reverse, unnormalized

    With this advantage, `surrogate` has the gradient of `rpg`; `clipped_surrogate` and
    `dual_clipped_surrogate` are its clipped forms.

    Args:
      log_prob, reference_log_prob: [...].
      advantage, beta: broadcast to [...].
      kl, normalized: as in `rpg`.
    Returns: [...].
    Gradients: none flow into any argument.
    Source: Zhang et al., 2025, "On the design of KL-regularized policy gradient algorithms for LLM
      reasoning"; that PPO's clips with this advantage are RPG's is derived here (published code
      clips the reward's part and the penalty's part slightly differently).
    Example: `losses.rpg_advantage(log_prob, reference_log_prob, advantage, beta)`
    """
    if kl not in ("forward", "reverse"):
        raise ValueError(f"kl must be forward or reverse, not {kl!r}")
    log_prob, reference_log_prob, advantage = jax.lax.stop_gradient(
        (log_prob, reference_log_prob, advantage)
    )
    reference_ratio = importance_ratio(reference_log_prob, log_prob)
    log_ratio = log_prob - reference_log_prob
    return advantage - beta * _rpg_slope(1.0, reference_ratio, log_ratio, kl, normalized)


@check_arguments
def rpg(
    log_prob: Array,
    old_log_prob: Array,
    reference_log_prob: Array,
    advantage: Array,
    beta: Array | float,
    kl: Literal["forward", "reverse"] = "reverse",
    normalized: bool = True,
    reinforce: bool = False,
) -> Array:
    """RPG's losses: exact gradients of reward minus a KL penalty, from an old policy's samples.

    -w A + beta * D, w = p / p_old, v = p_ref / p_old (1 if the old policy is the reference), and
    D = v log(p_ref / p)                 forward, KL(p_ref || p)
    D = v log(p_ref / p) + w - v         forward, unnormalized
    D = w log(p / p_ref)                 reverse, KL(p || p_ref)
    D = w log(p / p_ref) - w + v         reverse, unnormalized;
    or, in REINFORCE style, -stop(w A - beta * dD/dlog p) log p, with the same gradient

    Args:
      log_prob, old_log_prob, reference_log_prob: [...], of tokens, or of sequences for the
        sequence's divergence; the old policy is the one that acted.
      advantage: broadcasts to [...].
      beta: broadcasts to [...].
      kl: the divergence's direction.
      normalized: if false, use the divergence of measures that need not sum to 1.
      reinforce: use REINFORCE style, a weight times the log-probability.
    Returns: [...].
    Gradients: flow only into `log_prob`. For a clipped loss see `rpg_advantage`.
    Source: Zhang et al., 2025, "On the design of KL-regularized policy gradient algorithms for LLM
      reasoning", with the old policy as reference; the weight v for any other is derived here.
    Example: `losses.rpg(log_prob, old_log_prob, reference_log_prob, advantage, beta)`
    """
    if kl not in ("forward", "reverse"):
        raise ValueError(f"kl must be forward or reverse, not {kl!r}")
    old_log_prob, reference_log_prob, advantage = jax.lax.stop_gradient(
        (old_log_prob, reference_log_prob, advantage)
    )
    weight = importance_ratio(log_prob, old_log_prob)
    reference_weight = importance_ratio(reference_log_prob, old_log_prob)
    log_ratio = log_prob - reference_log_prob
    if reinforce:
        slope = _rpg_slope(weight, reference_weight, log_ratio, kl, normalized)
        return policy_gradient(log_prob, weight * advantage - beta * slope)
    divergence = weight * log_ratio if kl == "reverse" else -reference_weight * log_ratio
    if not normalized:
        excess = weight - reference_weight
        divergence = divergence + (excess if kl == "forward" else -excess)
    return -weight * advantage + beta * divergence


@check_arguments
def mirror_descent_regression(
    log_prob: Array,
    old_log_prob: Array,
    reward: Array,
    temperature: Array | float,
    mask: Array | None = None,
) -> Array:
    """Kimi k1.5's loss: regress answers' log-ratios on their rewards minus the group's mean.

    (r - mean(r) - temperature * (log_prob - old_log_prob))^2

    Its minimizer is p_old exp(r / temperature) / Z, where mean(r) replaces temperature * log Z.

    Args:
      log_prob, old_log_prob: [..., G], of whole answers, from `sequence_log_prob`.
      reward: [..., G].
      temperature: tau, broadcasts to [..., G].
      mask: broadcasts to [..., G], true where an answer counts; None: all.
    Returns: [..., G]; 0 where the mask is false.
    Gradients: flow only into `log_prob`.
    Source: Kimi team, 2025, "Kimi k1.5: scaling reinforcement learning with LLMs", section 2.3.2.
    Example: `losses.mirror_descent_regression(log_prob, old_log_prob, reward, temperature)`
    """
    allowed = True if mask is None else mask
    log_ratio = jnp.where(allowed, log_prob - jax.lax.stop_gradient(old_log_prob), 0)
    centered = group_relative(jax.lax.stop_gradient(reward), mask, normalize=False)
    return jnp.square(centered - temperature * log_ratio)


@check_arguments
def guided_ratio(
    log_prob: Array, old_log_prob: Array, hinted_log_prob: Array, hinted: Array
) -> Array:
    """Importance ratio of answers, some of them sampled with a hint in the context.

    p(y | x) / p_old(y | x, hint) where hinted, else p(y | x) / p_old(y | x)

    The policy is trained without hints, so `hinted` answers are off-policy for it.

    Args:
      log_prob, old_log_prob: [...], without the hint.
      hinted_log_prob: [...], of the old policy with the hint.
      hinted: [...], boolean, true where the answer was sampled with the hint.
    Returns: [...].
    Gradients: flow only into `log_prob`.
    Source: Nath et al., 2025, "Adaptive guidance accelerates reinforcement learning of reasoning
      models".
    Example: `losses.guided_ratio(log_prob, old_log_prob, hinted_log_prob, hinted)`
    """
    acted = jnp.where(hinted, hinted_log_prob, old_log_prob)
    return importance_ratio(log_prob, jax.lax.stop_gradient(acted))
