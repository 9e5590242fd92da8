"""Estimates of a policy's return from trajectories that stop early, as late rewards count less.

Poiani, Metelli and Restelli (2023, "Truncating trajectories in Monte Carlo reinforcement learning",
arXiv:2305.04361) allocate a budget of steps before any is played, so that the confidence interval
of the return is as narrow as possible. `counts[t]` is the number of trajectories that play step t.
"""

from __future__ import annotations

import heapq

import numpy as np

from jaxrl.core.errors import UserError


def importance(horizon: int, discount: float) -> np.ndarray:
    """Weights d [horizon] for which the squared width of Hoeffding's interval is
    sum_t d_t / counts_t.

    d_t = gamma^t (gamma^t + 2 sum_{u > t} gamma^u), since the rewards of one trajectory vary
    together. Derived here: a trajectory of h steps adds sum_{t < h} gamma^t reward_t / counts_t,
    and Hoeffding's width is the root of the sum of squared ranges. Raises `UserError` for a horizon
    below 1 and a discount outside (0, 1].
    """
    if horizon < 1 or not 0 < discount <= 1:
        raise UserError(
            f"The horizon is {horizon} and the discount {discount:g}; they must be at least 1 and "
            "in (0, 1]."
        )
    gamma = discount ** np.arange(horizon)
    return gamma * (2 * np.cumsum(gamma[::-1])[::-1] - gamma)


def shares(horizon: int, discount: float) -> np.ndarray:
    """The shares [horizon] of a budget that make the interval narrowest, if counts could be
    fractions.

    They are proportional to the roots of `importance`. They never rise, so that there are
    trajectories with these shares.
    """
    root = np.sqrt(importance(horizon, discount))
    return root / root.sum()


def allocation(budget: int, horizon: int, discount: float) -> np.ndarray:
    """Counts [horizon], at least one each, that sum to `budget` and make the interval narrowest.

    They are `shares`, rounded: each step of the budget goes where it reduces the width most. This
    is optimal, since further steps reduce it less and less. Raises `UserError` for a budget below
    the horizon.
    """
    weight = importance(horizon, discount)
    if budget < horizon:
        raise UserError(
            f"The budget is {budget} steps; one trajectory to the horizon takes {horizon}."
        )
    counts = np.ones(horizon, int)
    reduction = lambda t: (-weight[t] / (counts[t] * (counts[t] + 1)), t)
    heap = [reduction(t) for t in range(horizon)]
    heapq.heapify(heap)
    for _ in range(budget - horizon):
        t = heap[0][1]
        counts[t] += 1
        heapq.heapreplace(heap, reduction(t))
    return counts


def lengths(counts: np.ndarray) -> np.ndarray:
    """The length of each trajectory, [counts[0]], the longest first. Raises `UserError` if counts
    rise, since a trajectory that plays a step has played all steps before it."""
    if (np.diff(counts) > 0).any():
        raise UserError(f"The counts {counts.tolist()} rise, but no trajectory can begin late.")
    return (np.arange(counts[0])[:, None] < counts).sum(1)


def truncated_return(reward: np.ndarray, counts: np.ndarray, discount: float) -> float:
    """Unbiased estimate of the return up to the horizon, sum_t gamma^t mean reward_t.

    reward: [counts[0], horizon], from trajectories as long as `lengths`; entries beyond a
        trajectory's length are not read.
    """
    played = np.arange(len(counts)) < lengths(counts)[:, None]
    means = np.where(played, reward, 0.0).sum(0) / counts
    return float(discount ** np.arange(len(counts)) @ means)
