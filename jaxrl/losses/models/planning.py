"""Losses of learned models for search (MuZero), and targets from search."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.gradients.estimators import scale_gradient
from jaxrl.losses.distributions.distributional import (
    categorical_cross_entropy,
    two_hot_cross_entropy,
)
from jaxrl.losses.distributions.transforms import signed_hyperbolic

__all__ = [
    "completed_q_values",
    "gumbel_improved_logits",
    "muzero",
    "process_value_target",
    "surprisal_bump",
]


@check_arguments
def muzero(
    policy_logits: Array,
    value_logits: Array,
    reward_logits: Array,
    target_policy: Array,
    target_value: Array,
    target_reward: Array,
    atoms: Array,
    value_weight: Array | float = 1.0,
) -> Array:
    """MuZero's loss of an unrolled model: cross-entropies of policy, value and reward.

    l_k = CE(policy_k) + value_weight * CE(value_k) + CE(reward_k), the last from k = 1 on, with
    two-hot targets of signed_hyperbolic values; gradients of l_1, ..., l_K are scaled by 1 / K

    The paper also halves the gradient that enters the dynamics at each unrolled step: pass
    scale_gradient(latent, 0.5) to the dynamics.

    Args:
      policy_logits: [K + 1, ..., A], of the root (k = 0) and of each unrolled step.
      value_logits, reward_logits: [K + 1, ..., S]; reward k is that of the step that led to k.
      target_policy: [K + 1, ..., A], the search's visit counts divided by their sum; zeros where
        there is none (beyond the episode's end).
      target_value, target_reward: [K + 1, ...], untransformed: n-step returns that bootstrap from
        the search's values, and rewards; 0 beyond the episode's end.
      atoms: [S], of the transformed values, such as -300, ..., 300.
      value_weight: weight of the value loss; the paper uses 1/4 with reanalyzed data.
    Returns: [K + 1, ...], to be summed over k; the loss itself is not scaled.
    Gradients: none flow into the targets; those into predictions from k = 1 on are scaled by 1 / K.
    Source: Schrittwieser et al., 2020, "Mastering Atari, Go, chess and shogi by planning with a
      learned model", eq. 1 and appendices F, G and H.
    Example: `losses.muzero(policy_logits, value_logits, reward_logits, target_policy,
      target_value, target_reward, atoms).sum(0)`
    """
    step = jnp.arange(target_value.shape[0]).reshape(-1, *[1] * (target_value.ndim - 1))
    value, reward = signed_hyperbolic(target_value), signed_hyperbolic(target_reward)
    loss = (
        categorical_cross_entropy(policy_logits, target_policy)
        + value_weight * two_hot_cross_entropy(value_logits, value, atoms)
        + jnp.where(step > 0, two_hot_cross_entropy(reward_logits, reward, atoms), 0)
    )
    unrolled = max(target_value.shape[0] - 1, 1)
    return scale_gradient(loss, jnp.where(step > 0, 1 / unrolled, 1).astype(loss.dtype))


@check_arguments
def completed_q_values(q_values: Array, visits: Array, logits: Array, value: Array) -> Array:
    """Complete a search's Q-values with an estimate of the state's value for unvisited actions.

    q_a where visits_a > 0, else (v + N q) / (1 + N), with N = sum of visits and q the mean of the
    visited q_a under the policy's probabilities among them

    Args:
      q_values: [..., A], from the search; anything finite where visits are 0.
      visits: [..., A], counts.
      logits: [..., A], from the policy network.
      value: [...], v, from the value network.
    Returns: [..., A].
    Gradients: none are stopped (a search's results usually carry none).
    Source: Danihelka et al., 2022, "Policy improvement by planning with Gumbel", eq. 10 and
      appendix D.
    Example: `losses.completed_q_values(q_values, visits, logits, value)`
    """
    seen = visits > 0
    any_seen = seen.any(-1, keepdims=True)
    # Normalize over the visited actions alone: a policy near 0 on all of them must not give 0 / 0.
    weight = jax.nn.softmax(jnp.where(seen | ~any_seen, logits, -jnp.inf))
    weighted = (jnp.where(seen, weight, 0) * jnp.where(seen, q_values, 0)).sum(-1)
    total = visits.sum(-1).astype(q_values.dtype)
    mixed = (value + total * weighted) / (1 + total)
    return jnp.where(seen, q_values, mixed[..., None])


@check_arguments
def gumbel_improved_logits(
    logits: Array,
    completed_q_values: Array,
    visits: Array,
    visit_offset: float = 50.0,
    scale: float = 1.0,
) -> Array:
    """Gumbel MuZero's improved policy, the policy network's target after a search.

    logits + (visit_offset + max_b visits_b) * scale * completed_q_values

    Args:
      logits: [..., A], of the policy network.
      completed_q_values: [..., A], in [0, 1] or rescaled to it.
      visits: [..., A], counts.
      visit_offset, scale: c_visit and c_scale.
    Returns: [..., A], logits of the improved policy; their softmax is the target of
      `categorical_cross_entropy`.
    Gradients: none are stopped.
    Source: Danihelka et al., 2022, "Policy improvement by planning with Gumbel", eq. 8 and 11.
    Example: `losses.gumbel_improved_logits(logits, completed_q_values, visits)`
    """
    most = visits.max(-1, keepdims=True).astype(logits.dtype)
    return logits + (visit_offset + most) * scale * completed_q_values


@check_arguments
def process_value_target(step_error: Array, remaining: Array) -> Array:
    """Values of a reasoning trace's prefixes, from each step's error and distance to the answer.

    v_k = max(v_(k-1) + (1 - v_(k-1)) (1 - 2 step_error_k) / (remaining_k + 1), 0), v_0 = 0;
    k / K for the K steps of an error-free trace

    Args:
      step_error: [T, ...], in [0, 1]: 0 for a step that leads to the answer, 1 for a wrong one.
      remaining: [T, ...], the smallest number of further steps known to reach the answer.
    Returns: [T, ...], in [0, 1], targets of a process reward model.
    Gradients: none are stopped.
    Source: Zhang et al., 2024, "ReST-MCTS*: LLM self-training via process reward guided tree
      search".
    Example: `losses.process_value_target(step_error, remaining)`
    """
    gain = (1 - 2 * step_error) / (remaining + 1)

    def forward(value: Array, gain: Array) -> tuple[Array, Array]:
        value = jnp.maximum(value + (1 - value) * gain, 0)
        return value, value

    return jax.lax.scan(forward, jnp.zeros(gain.shape[1:], gain.dtype), gain)[1]


@check_arguments
def surprisal_bump(surprisal: Array, center: Array | float, width: Array | float) -> Array:
    """Reward for moderate surprisal, neither predictable nor incoherent (an inverted U).

    exp(-((surprisal - center) / width)^2 / 2)

    Args:
      surprisal: [...], -log p of the generated text, per token.
      center, width: location and width of the peak.
    Returns: [...], in [0, 1].
    Gradients: none are stopped.
    Source: Materzok et al., 2025, "COS(M+O)S: curiosity and RL-enhanced MCTS for exploring story
      space via language models" (moderate surprisal; the Gaussian form is our choice).
    Example: `losses.surprisal_bump(surprisal, center=3.0, width=1.0)`
    """
    return jnp.exp(-0.5 * jnp.square((surprisal - center) / width))
