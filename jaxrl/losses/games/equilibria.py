"""Games in normal form: payoffs of deviations, and losses whose minima are equilibria.

payoff[..., k, a_1, ..., a_N] is the payoff of player k of N; all players have A actions (for a
player with fewer, repeat one). The players' axis comes before the axes of their actions.
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = [
    "deviation_payoff",
    "nash_loss",
    "nash_loss_estimate",
]


def _axis_names(players: int) -> str:
    return "abcdefgh"[:players]


def _player_payoff(payoff: Array, players: int, player: int) -> Array:
    """The payoffs of one player, [..., A, ..., A]."""
    return jnp.take(payoff, player, axis=payoff.ndim - players - 1)


@check_arguments
def deviation_payoff(payoff: Array, policy: Array) -> Array:
    """Expected payoff of each player's actions against the others' mixed strategies.

    u_k(a) = sum_{a_-k} payoff_k(a, a_-k) prod_{j != k} policy_j(a_j)

    Args:
      payoff: [..., N, A, ..., A], N players; for a population of policies, PSRO's meta-game.
      policy: [..., N, A], probabilities.
    Returns: [..., N, A], the gradient of each player's expected payoff for its own strategy.
    Gradients: none are stopped.
    Source: Nash, 1951, "Non-cooperative games"; Lanctot et al., 2017, "A unified game-theoretic
      approach to multiagent reinforcement learning" (meta-strategies).
    Example: `losses.deviation_payoff(payoff, policy)`
    """
    players = policy.shape[-2]
    every = _axis_names(players)

    def payoffs(player):
        others = [j for j in range(players) if j != player]
        terms = ",".join(["..." + every, *("..." + every[j] for j in others)])
        opponents = (policy[..., j, :] for j in others)
        return precise.einsum(
            f"{terms}->...{every[player]}", _player_payoff(payoff, players, player), *opponents
        )

    return jnp.stack([payoffs(player) for player in range(players)], -2)


@check_arguments
def nash_loss_estimate(
    gradient: Array, other_gradient: Array, weight: Array | float = 1.0
) -> Array:
    """Unbiased estimate of `nash_loss` from two independent estimates of the payoff gradients.

    sum_k weight_k <project(g_k), project(g'_k)>, project(g) = g - mean(g)

    Args:
      gradient, other_gradient: [..., N, A], each an unbiased estimate, from its own samples, of
        deviation_payoff(payoff, policy) - temperature log(policy).
      weight: eta, positive, broadcasts to [..., N].
    Returns: [...].
    Gradients: none are stopped.
    Source: Gemp et al., 2024, "Approximating Nash equilibria in normal-form games via stochastic
      optimization".
    Example: `losses.nash_loss_estimate(gradient, other_gradient)`
    """
    first = gradient - gradient.mean(-1, keepdims=True)
    second = other_gradient - other_gradient.mean(-1, keepdims=True)
    return (weight * (first * second).sum(-1)).sum(-1)


@check_arguments
def nash_loss(
    payoff: Array, policy: Array, temperature: Array | float, weight: Array | float = 1.0
) -> Array:
    """Loss that is 0 at logit equilibria, which approach Nash equilibria at low temperatures.

    sum_k weight_k |project(u_k - temperature log policy_k)|^2, u = deviation_payoff

    Args:
      payoff: [..., N, A, ..., A].
      policy: [..., N, A], probabilities, positive.
      temperature: weight of the players' entropies.
      weight: eta, how much each player counts, positive, broadcasts to [..., N].
    Returns: [...].
    Gradients: none are stopped.
    Source: Gemp et al., 2024, "Approximating Nash equilibria in normal-form games via stochastic
      optimization".
    Example: `losses.nash_loss(payoff, policy, temperature=0.1)`
    """
    played = policy > 0  # elsewhere a floor without a gradient replaces log(0)
    floor = math.log(float(jnp.finfo(policy.dtype).tiny))
    log_prob = jnp.where(played, jnp.log(jnp.where(played, policy, 1)), floor)
    gradient = deviation_payoff(payoff, policy) - temperature * log_prob
    return nash_loss_estimate(gradient, gradient, weight)
