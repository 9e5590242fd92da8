"""Losses for learning from a fixed dataset: cloning, its weights, and regularizers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import safe_norm
from jaxrl.losses.divergences.entropy_and_kl import binary_cross_entropy, gaussian_kl
from jaxrl.losses.policies.policy_gradients import policy_gradient
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "amq_estimate",
    "behavior_cloning",
    "diverse_cloning",
    "gradient_diversity",
    "modt",
    "normalized_score",
    "percentile_weights",
    "policy_smoothness",
    "safe_set",
    "td3_bc",
]


@check_arguments
def behavior_cloning(log_prob: Array, weight: Array | float = 1.0) -> Array:
    """Behavior-cloning loss: negative log-likelihood of the data's actions, optionally weighted.

    -weight * log_prob

    Args:
      log_prob: [...], of the data's actions under the policy.
      weight: broadcasts to [...], such as `percentile_weights` (filtered cloning) or
        `advantage_weight` (which `awr` uses); 1: plain cloning.
    Returns: [...].
    Gradients: none flow into `weight`.
    Source: Pomerleau, 1991, "Efficient training of artificial neural networks for autonomous
      navigation"; weighted as in Peng et al., 2019, "Advantage-weighted regression".
    Example: `losses.behavior_cloning(log_prob, weight).mean()`
    """
    return policy_gradient(log_prob, jnp.asarray(weight, log_prob.dtype))


@check_arguments
def percentile_weights(returns: Array, fraction: Array | float, mask: Array | None = None) -> Array:
    """Weights for filtered cloning: 1 for the trajectories with the highest returns, else 0.

    1 where return >= the k-th highest return, k = ceil(fraction * number of trajectories)

    Args:
      returns: [..., N], one per trajectory.
      fraction: the share to keep, in (0, 1], a scalar; ties with the last one are also kept.
      mask: [..., N], true where there is a trajectory; None: everywhere.
    Returns: [..., N].
    Gradients: none.
    Source: Chen et al., 2021, "Decision transformer" (percentile behavior cloning).
    Example: `losses.percentile_weights(returns, fraction=0.4)`
    """
    allowed = _full_mask(returns, mask)
    counted = jnp.where(allowed, jax.lax.stop_gradient(returns), -jnp.inf)
    number = allowed.sum(-1, keepdims=True)
    last = jnp.clip(jnp.ceil(fraction * number).astype(int), 1, jnp.maximum(number, 1)) - 1
    threshold = jnp.take_along_axis(-jnp.sort(-counted, axis=-1), last, -1)
    return (allowed & (counted >= threshold)).astype(returns.dtype)


@check_arguments
def td3_bc(
    q_value: Array,
    action: Array,
    data_action: Array,
    alpha: Array | float = 2.5,
    mask: Array | None = None,
) -> Array:
    """Policy loss of TD3+BC: raise the value of the policy's action, stay near the data's.

    -lambda Q(s, action) + mean_d (action_d - data_action_d)^2, lambda = alpha / mean |Q|

    Args:
      q_value: [...], of the policy's own (deterministic) action.
      action, data_action: [..., D].
      alpha: weight of the value relative to cloning.
      mask: broadcasts to [...], true where an element counts in the mean of |Q|; None: all.
    Returns: [...]; 0 where the mask is false.
    Gradients: none flow into `data_action` or through lambda.
    Source: Fujimoto and Gu, 2021, "A minimalist approach to offline reinforcement learning".
    Example: `losses.td3_bc(q_value, action, data_action).mean()`
    """
    if mask is not None:
        mask = jnp.broadcast_to(mask, q_value.shape)
        q_value = jnp.where(mask, q_value, 0)
        action, data_action = (jnp.where(mask[..., None], x, 0) for x in (action, data_action))
    size = masked_mean(jnp.abs(jax.lax.stop_gradient(q_value)), mask)
    scale = jnp.where(size > 0, alpha / jnp.where(size > 0, size, 1), 0)
    distance = jnp.square(action - jax.lax.stop_gradient(data_action)).mean(-1)
    return distance - scale * q_value


@check_arguments
def gradient_diversity(gradient: Array) -> Array:
    """EDAC's regularizer: how much an ensemble's members agree on where Q rises.

    sum_{i != j} <g_i, g_j> / (|g_i| |g_j|) / (N - 1), the cosine 0 where a gradient is 0

    Args: gradient: [..., D, N], of each of N critics with respect to the action's D dimensions, at
      the data's action; compute it inside the critics' loss, to differentiate through it.
    Returns: [...], from -N / (N - 1) to N, to add to the critics' loss with a weight.
    Gradients: none are stopped; 0 for a gradient that is 0.
    Source: An et al., 2021, "Uncertainty-based offline reinforcement learning with diversified
      Q-ensemble".
    Example: `losses.gradient_diversity(gradient).mean()`
    """
    length = safe_norm(gradient, axis=-2)[..., None, :]
    direction = gradient / jnp.where(length > 0, length, 1)
    own = jnp.square(direction).sum((-2, -1))
    return (jnp.square(direction.sum(-1)).sum(-1) - own) / max(gradient.shape[-1] - 1, 1)


@check_arguments
def policy_smoothness(
    mean: Array, scale: Array, perturbed_mean: Array, perturbed_scale: Array
) -> Array:
    """Largest change of a Gaussian policy under small perturbations of its state.

    max_k KL(pi(s) || pi(s_k)) + KL(pi(s_k) || pi(s))

    Args:
      mean, scale: [..., D], the policy at a state.
      perturbed_mean, perturbed_scale: [..., K, D], at K states sampled near it.
    Returns: [...].
    Gradients: none are stopped.
    Source: Wen et al., 2024,
      "Towards robust offline-to-online reinforcement learning via uncertainty and smoothness"
      (its published code); Yang et al., 2022, "RORL".
    Example: `losses.policy_smoothness(mean, scale, perturbed_mean, perturbed_scale).mean()`
    """
    here, there = (mean[..., None, :], scale[..., None, :]), (perturbed_mean, perturbed_scale)
    return (gaussian_kl(*here, *there) + gaussian_kl(*there, *here)).max(-1)


@check_arguments
def diverse_cloning(log_prob: Array, other_log_prob: Array, alpha: Array | float) -> Array:
    """Cloning loss of an ensemble's member that also moves it away from the other members.

    -log_prob - alpha (log_prob - max_k other_log_prob_k)

    Args:
      log_prob: [...], of an action under this member.
      other_log_prob: [..., K], of the same action under the K other members.
      alpha: weight of the disagreement, broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `other_log_prob`.
    Source: Lei et al., 2024, "Uni-O4: unifying online and offline deep reinforcement learning with
      multi-step on-policy optimization" (its published code).
    Example: `losses.diverse_cloning(log_prob, other_log_prob, alpha=0.1).mean()`
    """
    highest = jax.lax.stop_gradient(other_log_prob).max(-1)
    return behavior_cloning(log_prob) - alpha * (log_prob - highest)


@check_arguments
def amq_estimate(q_value: Array, done: Array) -> Array:
    """Offline score of a policy: its mean Q along rollouts of a learned model.

    mean of Q(s_t, a_t) over the steps up to each rollout's first done

    Args:
      q_value: [T, ...], of a fitted critic along rollouts of the policy in a learned model.
      done: [T, ...], true where the model's rollout ends; later steps have no influence.
    Returns: a scalar: accept a new policy if its estimate exceeds the old one's.
    Gradients: flow into `q_value` up to the first done.
    Source: Lei et al., 2024, "Uni-O4: unifying online and offline deep reinforcement learning with
      multi-step on-policy optimization" (AM-Q; the mean as in its published code).
    Example: `losses.amq_estimate(q_value, done)`
    """
    ended = done.astype(int)
    return masked_mean(q_value, jnp.cumsum(ended, 0) - ended == 0)


@check_arguments
def modt(
    predicted_action: Array,
    action: Array,
    predicted_state: Array,
    next_state: Array,
    predicted_return: Array,
    return_to_go: Array,
    state_weight: Array | float = 1.0,
    return_weight: Array | float = 1.0,
) -> Array:
    """Loss of a decision transformer that predicts actions and, optionally, states and returns.

    mean_d (action error)^2 + state_weight mean_d (state error)^2 + return_weight (return error)^2

    Args:
      predicted_action, action: [..., D].
      predicted_state, next_state: [..., S].
      predicted_return, return_to_go: [...].
      state_weight, return_weight: broadcast to [...]; 0 drops the term. The plain sum is our
        choice.
    Returns: [...], one per token triple.
    Gradients: none flow into `action`, `next_state` or `return_to_go`.
    Source: Chen et al., 2021, "Decision transformer" (actions); Ghanem et al., 2023,
      "Multi-objective decision transformers for offline reinforcement learning" (all three).
    Example: `losses.modt(predicted_action, action, predicted_state, next_state, predicted_return,
      return_to_go).mean()`
    """
    action, next_state, return_to_go = jax.lax.stop_gradient((action, next_state, return_to_go))
    return (
        jnp.square(predicted_action - action).mean(-1)
        + state_weight * jnp.square(predicted_state - next_state).mean(-1)
        + return_weight * jnp.square(predicted_return - return_to_go)
    )


@check_arguments
def normalized_score(
    returns: Array, random_return: Array | float, expert_return: Array | float
) -> Array:
    """D4RL's normalized score: 0 for a random policy's return, 100 for an expert's.

    100 (returns - random_return) / (expert_return - random_return)

    Args:
      returns: [...].
      random_return, expert_return: broadcast to [...], different from each other.
    Returns: [...].
    Gradients: none are stopped; this is a diagnostic, not a loss.
    Source: Fu et al., 2020, "D4RL: datasets for deep data-driven reinforcement learning".
    Example: `losses.normalized_score(returns, random_return=10.0, expert_return=110.0)`
    """
    return 100 * (returns - random_return) / (expert_return - random_return)


@check_arguments
def safe_set(logits: Array, safe: Array, age: Array, decay: Array | float = 1.0) -> Array:
    """Loss of a safe-state classifier that discounts old labels, since they may be wrong.

    -decay^age log p, p = sigmoid(logits) where safe, else 1 - sigmoid(logits)

    Args:
      logits: [...], log-odds that a state is safe.
      safe: [...], bool.
      age: [...], age of the label, e.g. in iterations.
      decay: in [0, 1], the weight of a label of age 1; 1: nothing is forgotten.
    Returns: [...].
    Gradients: none flow into `age`.
    Source: derived here, our reading of "optimistic forgetting" in the abstract of "Safe
      reinforcement learning with minimal supervision" (2025, arXiv 2501.04481), which does not
      define it.
    Example: `losses.safe_set(logits, safe, age, decay=0.9).mean()`
    """
    weight = decay ** jax.lax.stop_gradient(jnp.asarray(age, logits.dtype))
    return weight * binary_cross_entropy(logits, safe)
