"""Decomposed values: a team's from its agents', Q-values from a value and advantages."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = ["dueling_q_values", "qmix", "vdn"]


@check_arguments
def vdn(q_value: Array, mask: Array | None = None) -> Array:
    """VDN's team value: the sum of the agents' values, which learn from one common error.

    sum_n q_value[n]

    Args:
      q_value: [..., N], each agent's value of the action that it took.
      mask: broadcasts to [..., N], true where an agent takes part; None: all do.
    Returns: [...].
    Gradients: none are stopped.
    Source: Sunehag et al., 2018, "Value-decomposition networks for cooperative multi-agent
      learning".
    Example: `losses.vdn(q_value)`
    """
    return (q_value if mask is None else jnp.where(mask, q_value, 0)).sum(-1)


@check_arguments
def qmix(
    q_value: Array, weight: Array, bias: Array, output_weight: Array, output_bias: Array
) -> Array:
    """QMIX's team value, monotonic in each agent's, so that each agent's best action is the team's.

    sum_h |output_weight[h]| elu(sum_n q_value[n] |weight[n, h]| + bias[h]) + output_bias

    Args:
      q_value: [..., N], each agent's value of the action that it took.
      weight, bias: [..., N, H] and [..., H], from a network of the whole state.
      output_weight, output_bias: [..., H] and [...], from a network of the whole state.
    Returns: [...].
    Gradients: none are stopped.
    Source: Rashid et al., 2018,
      "QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning",
      section 4.
    Example: `losses.qmix(q_value, weight, bias, output_weight, output_bias)`
    """
    hidden = jax.nn.elu((q_value[..., None] * jnp.abs(weight)).sum(-2) + bias)
    return (hidden * jnp.abs(output_weight)).sum(-1) + output_bias


@check_arguments
def dueling_q_values(value: Array, advantage: Array) -> Array:
    """Q-values from a state's value and its actions' advantages.

    value + advantage[a] - mean_b advantage[b]

    Args:
      value: [...].
      advantage: [..., A].
    Returns: [..., A].
    Gradients: none are stopped.
    Source: Wang et al., 2016, "Dueling network architectures for deep reinforcement learning",
      eq. 9.
    Example: `losses.dueling_q_values(value, advantage)`
    """
    return value[..., None] + advantage - advantage.mean(-1, keepdims=True)
