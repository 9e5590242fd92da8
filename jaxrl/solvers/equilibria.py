"""Games in normal form: distances of strategies from equilibria.

payoff[..., k, a_1, ..., a_N] is the payoff of player k of N; all players have A actions (for a
player with fewer, repeat one). The players' axis comes before the axes of their actions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.types import Array
from jaxrl.losses.games.equilibria import _axis_names, _player_payoff, deviation_payoff

__all__ = [
    "cce_gap",
    "ce_gap",
    "duality_gap",
    "nash_conv",
    "quantal_response_residual",
    "stackelberg_value",
]


def nash_conv(payoff: Array, policy: Array) -> Array:
    """NashConv: the players' total gain from unilateral deviations, 0 at a Nash equilibrium.

    sum_k max_a u_k(a) - <policy_k, u_k>, u = deviation_payoff

    Args:
      payoff: [..., N, A, ..., A].
      policy: [..., N, A], probabilities; if from a network, the loss of amortized equilibrium
        search.
    Returns: [...].
    Gradients: none are stopped; those of the maximum flow into the best responses.
    Source: Lanctot et al., 2017, "A unified game-theoretic approach to multiagent reinforcement
      learning".
    Example: `solvers.nash_conv(payoff, policy)`
    """
    values = deviation_payoff(payoff, policy)
    return (values.max(-1) - (policy * values).sum(-1)).sum(-1)


def duality_gap(payoff: Array, policy: Array, other_policy: Array) -> Array:
    """Duality gap of two strategies in a zero-sum matrix game, 0 at an equilibrium.

    max_a (payoff other_policy)_a - min_b (policy' payoff)_b

    Args:
      payoff: [..., A, B], of the row player, who maximizes.
      policy, other_policy: [..., A] and [..., B], probabilities.
    Returns: [...]; for a symmetric preference matrix minus 1/2, twice a policy's exploitability.
    Gradients: none are stopped; they are those of exploitability descent, where each player
      improves against the other's best response.
    Source: von Neumann, 1928, "Zur Theorie der Gesellschaftsspiele"; Lockhart et al., 2019,
      "Computing approximate equilibria in sequential adversarial games by exploitability descent".
    Example: `solvers.duality_gap(payoff, policy, other_policy)`
    """
    best = precise.einsum("...ab,...b->...a", payoff, other_policy).max(-1)
    return best - precise.einsum("...ab,...a->...b", payoff, policy).min(-1)


def cce_gap(payoff: Array, joint: Array, players: int) -> Array:
    """Players' gain from leaving a plan beforehand, 0 at a coarse correlated equilibrium.

    sum_k max(0, max_a E_{joint}[payoff_k(a, a_-k) - payoff_k(a_k, a_-k)])

    Args:
      payoff: [..., N, A, ..., A].
      joint: [..., A, ..., A], probabilities of joint actions.
      players: N.
    Returns: [...].
    Gradients: none are stopped.
    Source: Moulin and Vial, 1978, "Strategically zero-sum games"; Marris et al., 2021,
      "Multi-agent training beyond zero-sum with correlated equilibrium meta-solvers".
    Example: `solvers.cce_gap(payoff, joint, players=2)`
    """
    every, actions = _axis_names(players), tuple(range(-players, 0))

    def gain(player):
        mine = _player_payoff(payoff, players, player)
        rest = every.replace(every[player], "")
        others = joint.sum(joint.ndim - players + player)
        best = precise.einsum(f"...{every},...{rest}->...{every[player]}", mine, others).max(-1)
        return jnp.maximum(best - (mine * joint).sum(actions), 0)

    return jnp.stack([gain(player) for player in range(players)], -1).sum(-1)


def ce_gap(payoff: Array, joint: Array, players: int) -> Array:
    """Players' gain from not following a mediator's advice, 0 at a correlated equilibrium.

    sum_k sum_{a_k} max_{a'} sum_{a_-k} joint(a_k, a_-k) (payoff_k(a', a_-k) - payoff_k(a_k, a_-k))

    Args:
      payoff: [..., N, A, ..., A].
      joint: [..., A, ..., A], probabilities of joint actions.
      players: N.
    Returns: [...].
    Gradients: none are stopped.
    Source: Aumann, 1974, "Subjectivity and correlation in randomized strategies"; Marris et al.,
      2021, "Multi-agent training beyond zero-sum with correlated equilibrium meta-solvers".
    Example: `solvers.ce_gap(payoff, joint, players=2)`
    """
    every = _axis_names(players)

    def gain(player):
        mine = _player_payoff(payoff, players, player)
        advised = every.replace(every[player], "z")
        value = precise.einsum(f"...{advised},...{every}->...z{every[player]}", joint, mine)
        follow = jnp.diagonal(value, axis1=-2, axis2=-1)
        return (value.max(-1) - follow).sum(-1)

    return jnp.stack([gain(player) for player in range(players)], -1).sum(-1)


def quantal_response_residual(payoff: Array, policy: Array, temperature: Array | float) -> Array:
    """Residual of a quantal response (logit) equilibrium, where better actions are more likely.

    policy_k - softmax(u_k / temperature), u = deviation_payoff; 0 at a logit equilibrium

    Args:
      payoff: [..., N, A, ..., A].
      policy: [..., N, A], probabilities.
      temperature: positive; toward 0 players become rational.
    Returns: [..., N, A].
    Gradients: none are stopped.
    Source: McKelvey and Palfrey, 1995, "Quantal response equilibria for normal form games";
      as a curriculum: Reddi et al., 2024, "Robust adversarial reinforcement learning via bounded
      rationality curricula".
    Example: `solvers.quantal_response_residual(payoff, policy, temperature=0.5)`
    """
    return policy - jax.nn.softmax(deviation_payoff(payoff, policy) / temperature)


def stackelberg_value(payoff: Array, other_payoff: Array) -> Array:
    """Payoff of a leader who commits to the best action, given a follower's best responses.

    max_a payoff(a, b*(a)), b*(a) the follower's best response that is best for the leader

    Args: payoff, other_payoff: [..., A, B], of the leader (rows) and the follower (columns).
    Returns: [...].
    Gradients: none flow into `other_payoff`; those into `payoff` flow into the chosen pair.
    Source: von Stackelberg, 1934, "Marktform und Gleichgewicht"; Conitzer and Sandholm, 2006,
      "Computing the optimal strategy to commit to" (pure commitment).
    Example: `solvers.stackelberg_value(payoff, other_payoff)`
    """
    responses = other_payoff >= other_payoff.max(-1, keepdims=True)
    return jnp.where(responses, payoff, -jnp.inf).max((-2, -1))
