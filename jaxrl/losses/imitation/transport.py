"""Costs and rewards from optimal transport, and progress along an expert's trajectory.

Points are rows, [..., N, D]; a cost or plan is [..., N, M]; `jaxrl.solvers` computes plans. For an
agent's and an expert's trajectory, the agent's time is axis 0 and the expert's the last: [T, M].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import safe_norm, squared_distances

__all__ = [
    "alignment_progress",
    "nearest_distance",
    "progress_discount",
    "transport_cost",
    "transport_reward",
]


@check_arguments
def nearest_distance(x: Array, y: Array) -> Array:
    """Distance of each row of x to the nearest row of y, to select the data nearest to a policy.

    min_j |x_i - y_j|

    Args:
      x: [..., N, D], such as an offline dataset's states.
      y: [..., M, D], such as states of a learned policy's rollouts in a learned model.
    Returns: [..., N].
    Gradients: flow into `x` and the nearest row of `y`; 0 where they are equal.
    Source: derived here from the rule of Gai et al., 2023, "OER: offline experience replay for
      continual offline reinforcement learning" (keep the data most similar to the policy's).
    Example: `losses.nearest_distance(x, y)`
    """
    nearest = squared_distances(x, y).argmin(-1)
    return safe_norm(x - jnp.take_along_axis(y, nearest[..., None], -2))


@check_arguments
def transport_cost(cost: Array, plan: Array, regularization: Array | float = 0.0) -> Array:
    """Cost of a transport plan, optionally with the entropic term.

    sum_ij P_ij cost_ij + regularization sum_ij P_ij (log P_ij - 1)

    Args:
      cost, plan: [..., N, M]; where the plan is 0 the cost has no influence.
      regularization: 0: the plain cost (for Sinkhorn's plan, the Sinkhorn distance).
    Returns: [...].
    Gradients: none are stopped. The gradient of the optimal value with respect to `cost` is the
      plan itself: stop gradients through the plan to get it for free.
    Source: Cuturi, 2013, "Sinkhorn distances"; Peyre and Cuturi, 2019, "Computational optimal
      transport", eq. 4.2.
    Example: `losses.transport_cost(cost, plan)`
    """
    positive = plan > 0
    log_plan = jnp.log(jnp.where(positive, plan, 1))
    entropic = regularization * jnp.where(positive, plan * (log_plan - 1), 0)
    return (jnp.where(positive, plan * jnp.where(positive, cost, 0), 0) + entropic).sum((-2, -1))


@check_arguments
def transport_reward(cost: Array, plan: Array, scale: Array | float = 1.0) -> Array:
    """Imitation reward of each step: minus its part of the transport cost to the expert.

    r_t = -scale sum_j P_tj cost_tj

    Args:
      cost, plan: [T, M]: time of the agent first, steps of the expert last.
      scale: scale of the rewards, a scalar.
    Returns: [T]; the sum over time is -scale times the transport cost.
    Gradients: none: this is a reward.
    Source: Papagiannis and Li, 2020, "Imitation learning with Sinkhorn distances"; Liu et al.,
      2024, "Imitation learning from observation with automatic discount scheduling".
    Example: `losses.transport_reward(cost, plan)`
    """
    cost, plan = jax.lax.stop_gradient((cost, plan))
    return -scale * jnp.where(plan > 0, plan * cost, 0).sum(-1)


@check_arguments
def alignment_progress(cost: Array) -> Array:
    """Number of steps of a trajectory that follow an expert's in the right order.

    Length of the longest strictly increasing subsequence of argmin_j cost_tj

    Args: cost: [T, M], distances of the agent's steps (time, first) to the expert's (last). For the
      first k steps only, pass cost[:k, :k].
    Returns: a scalar in cost's dtype, a whole number from 0 to min(T, M).
    Gradients: none: this counts.
    Source: Liu et al., 2024, "Imitation learning from observation with automatic discount
      scheduling" (progress recognizer).
    Example: `losses.alignment_progress(cost)`
    """
    position = jax.lax.stop_gradient(cost).argmin(-1)
    time = jnp.arange(position.shape[0])

    def step(lengths, here):
        now, place = here
        before = (time < now) & (position < place)
        longest = jnp.where(before, lengths, 0).max(initial=0) + 1
        return jnp.where(time == now, longest, lengths), None

    lengths, _ = jax.lax.scan(step, jnp.zeros_like(position), (time, position))
    return lengths.max(initial=0).astype(cost.dtype)


@check_arguments
def progress_discount(progress: Array, weight: Array | float) -> Array:
    """Discount factor under which rewards beyond the mastered part of a task hardly count.

    weight^(1 / progress), so that discount^progress = weight

    Args:
      progress: [...], the number of steps mastered, at least 1.
      weight: in (0, 1), the weight of a reward after `progress` steps.
    Returns: [...].
    Gradients: none are stopped.
    Source: Liu et al., 2024, "Imitation learning from observation with automatic discount
      scheduling" (its published code).
    Example: `losses.progress_discount(progress, weight=0.2)`
    """
    return jnp.exp(jnp.log(weight) / progress)
