"""Intervals of returns and bounds of gaps, of Markov games for two players that data show in part.

An estimate of a game holds, for each joint action, by how much its Bellman backup may be wrong. So
the return of any policy lies in an interval; the upper ends for deviations and the lower ends for
the policy itself bound how far it is from an equilibrium, and the policy with the least bound is
chosen. That is Bellman-consistent pessimism with tables for function classes (Zhang, Bai and Jiang,
2023, "Offline learning in Markov games with general function approximation", arXiv:2302.02571; of
its text the abstract could be read, so the tables' intervals and the sum over players, as in
`markov_games.nash_gap`, are ours).

Shapes are those of `jaxrl.exact.markov_games`; besides

    joint   [H, S, A, B]  probability of each joint action: a policy that may be correlated
    radius  [H, S, A, B]  bound of the error of reward + expected values; 0 where it is known, and
                          infinite where there are no data
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.exact.markov_games import MarkovGame, Policies, action_values, check_game


class Estimate(NamedTuple):
    """An estimated game; rewards of a step lie between `low` and `high`, whatever is estimated."""

    game: MarkovGame
    radius: Array
    low: float
    high: float


def join(policies: Policies) -> Array:
    """Return the joint policy of players who act independently."""
    return policies[0][..., :, None] * policies[1][..., None, :]


def from_counts(
    counts: Array,
    reward: Array,
    initial: Array,
    *,
    low: float = 0.0,
    high: float = 1.0,
    failure: float = 0.05,
) -> Estimate:
    """Return the estimate that data give, whose radii hold with probability 1 - `failure`.

    counts: [H, S, A, B, S], how often the data have each transition. reward: [2, H, S, A, B],
    without noise; it is read where there are data only. initial: [S], known.

    The radius is half of the range of later values times the bound of Weissman et al. (2003) for
    the distance of an empirical distribution, sqrt(2 log((2^S - 2) / p) / n), with p for each of
    all joint actions.

    Raises `UserError` unless `failure` lies between 0 and 1.
    """
    if not 0 < failure < 1:
        raise UserError(f"failure is {failure}; it must lie between 0 and 1.")
    steps, states = counts.shape[:2]
    total = counts.sum(-1)
    seen = total > 0
    share = failure / total.size
    logarithm = math.log(max(2**states - 2, 1) / share)
    distance = jnp.sqrt(2 * logarithm / jnp.maximum(total, 1))
    later = (high - low) * jnp.arange(steps - 1, -1, -1)[:, None, None, None]
    radius = jnp.where(seen, jnp.minimum(distance, 2) / 2 * later, jnp.inf)
    even = jnp.full(states, 1 / states)
    transition = jnp.where(seen[..., None], counts / jnp.maximum(total, 1)[..., None], even)
    middle = (low + high) / 2
    game = MarkovGame(transition, jnp.where(seen, reward, middle), initial)
    return Estimate(game, radius, low, high)


def widen(values: Array, radius: Array, low: Array, high: Array, sign: int) -> Array:
    """Return the upper (sign 1) or lower (-1) ends of intervals around `values`, within bounds."""
    return jnp.clip(values + sign * radius, low, high)


def return_bounds(estimate: Estimate, joint: Array) -> tuple[Array, Array]:
    """Return the lower and the upper ends of both players' returns, [2] each."""
    ends = [
        jnp.stack([_backward(estimate, joint, player, sign, "own") for player in range(2)])
        for sign in (-1, 1)
    ]
    return ends[0], ends[1]


def deviation_bound(
    estimate: Estimate, joint: Array, player: int, correlated: bool = False
) -> Array:
    """Return the most that a player may get by leaving `joint`, if the other goes on.

    correlated: whether the player knows its recommended action before it leaves, as in correlated
    equilibria; otherwise it meets the other's marginal policy, as in coarse correlated equilibria
    and, for independent players, in Nash equilibria.
    """
    return _backward(estimate, joint, player, 1, "told" if correlated else "untold")


def gap_bound(estimate: Estimate, joint: Array, correlated: bool = False) -> Array:
    """Return a bound of the sum of what both players gain by leaving `joint`; with radii of 0 it is
    that sum."""
    check_game(estimate.game)
    lower = return_bounds(estimate, joint)[0]
    best = jnp.stack([deviation_bound(estimate, joint, p, correlated) for p in range(2)])
    return (best - lower).sum()


def select(estimate: Estimate, joints: Array, correlated: bool = False) -> tuple[Array, Array]:
    """Return which of the policies `joints` [P, H, S, A, B] has the least bound, and all bounds
    [P]."""
    bounds = jax.vmap(lambda joint: gap_bound(estimate, joint, correlated))(joints)
    return bounds.argmin(), bounds


def _backward(estimate: Estimate, joint: Array, player: int, sign: int, leaves: str) -> Array:
    """Return an end of the return of a player: of `joint`, or of the best way to leave it."""
    game, radius, low, high = estimate
    steps = len(game.transition)

    def back(following: Array, step: Array) -> tuple[Array, None]:
        values = action_values(game, step, player, following)
        left = steps - step
        ends = widen(values, radius[step], low * left, high * left, sign)
        policy = joint[step]
        if player:  # own actions first
            ends, policy = ends.swapaxes(1, 2), policy.swapaxes(1, 2)
        if leaves == "own":
            return precise.einsum("sab,sab->s", ends, policy), None
        if leaves == "untold":
            return precise.einsum("sab,sb->sa", ends, policy.sum(1)).max(-1), None
        # For each recommended action a, the best action c against what the other then does.
        return precise.einsum("scb,sab->sac", ends, policy).max(-1).sum(-1), None

    last = jnp.zeros(game.initial.shape, game.reward.dtype)
    first, _ = jax.lax.scan(back, last, jnp.arange(steps), reverse=True)
    return precise.matmul(game.initial, first)
