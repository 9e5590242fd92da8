"""Repeated matrix games of two players who remember the last round: exact values, and learning by
their gradients.

A strategy is a table of probabilities [1 + A * A, A]: of the first round, and after each pair of
actions, player 0's first.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array

Values = Callable[[Array], Array]  # parameters [2, ...] of two players -> their values [2]

# Payoffs of cooperation and defection: years in prison, negated.
PRISONERS_DILEMMA = np.array([[[-1.0, -3.0], [0.0, -2.0]], [[-1.0, 0.0], [-3.0, -2.0]]])
MATCHING_PENNIES = np.array([[[1.0, -1.0], [-1.0, 1.0]], [[-1.0, 1.0], [1.0, -1.0]]])
# Whether the other player defected, by player, in the rows of a strategy.
_DEFECTED = np.array([[0, 0, 1, 0, 1], [0, 0, 0, 1, 1]], bool)


def discounted_values(payoff: Array, strategies: Array, discount: float) -> Array:
    """Return the values [2] of two strategies: (1 - discount) sum_t discount^t payoff_t.

    payoff: [2, A, A], of both players by both actions.
    strategies: [2, 1 + A * A, A].
    discount: in [0, 1).
    """
    strategies = jnp.asarray(strategies)
    joint = strategies[0][:, :, None] * strategies[1][:, None, :]  # [1 + A A, A, A]
    joint = joint.reshape(len(joint), -1)
    begin, then = joint[0], joint[1:]
    visits = begin @ _inverse(jnp.eye(len(then), dtype=then.dtype) - discount * then)
    return (1 - discount) * payoff.reshape(2, -1) @ visits


@jax.custom_jvp
def _inverse(matrix: Array) -> Array:
    """Return the inverse of a matrix whose diagonal dominates its rows.

    Elimination without pivots, which such a matrix needs none of, since `jnp.linalg.inv` takes long
    to compile in derivatives of learning steps.
    """
    inverse = jnp.eye(len(matrix), dtype=matrix.dtype)
    for i in range(len(matrix)):
        unit = jnp.zeros(len(matrix), matrix.dtype).at[i].set(1)
        share = (matrix[:, i] - unit) / matrix[i, i]
        matrix, inverse = (x - share[:, None] * x[i] for x in (matrix, inverse))
    return inverse


@_inverse.defjvp
def _inverse_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    inverse = _inverse(*primals)
    return inverse, -inverse @ tangents[0] @ inverse


def remembering(logits: Array) -> Array:
    """Return strategies [2, 5, 2] of the repeated prisoner's dilemma, of logits [2, 5] of
    cooperation: in the first round, and after each pair of actions."""
    cooperate = jax.nn.sigmoid(logits)
    return jnp.stack([cooperate, 1 - cooperate], -1)


def retaliating(logits: Array, forgive: float = -3.0) -> Array:
    """Return strategies [2, 5, 2] of the small prisoner's dilemma, which has one logit for each
    player.

    logits: [2], of cooperation in the first round and after the other player cooperated.
    forgive: logit of cooperation after the other player defected, for both.

    Source: Lorraine et al., 2022, "Lyapunov exponents for diversity in differentiable games", as
      public code that extends it has the game.
    """
    return remembering(jnp.where(_DEFECTED, forgive, logits[:, None]))


def dilemma_and_pennies(logits: Array, weight: float, discount: float) -> Array:
    """Return the values [2] of logits [2]: the small prisoner's dilemma (`retaliating`) with the
    weight 1 - `weight`, and one round of matching pennies.

    Between its parts, solutions change their stability; with the weight 1 learning turns around
    the equilibrium, at logits of 0.

    Source: as `retaliating`.
    """
    first = remembering(logits[:, None])[:, 0]
    pennies = jnp.einsum("pab,a,b->p", jnp.asarray(MATCHING_PENNIES, first.dtype), *first)
    payoff = jnp.asarray(PRISONERS_DILEMMA, first.dtype)
    dilemma = discounted_values(payoff, retaliating(logits), discount)
    return weight * pennies + (1 - weight) * dilemma


def ascend(values: Values, params: Array, rate: Array | float) -> Array:
    """Return the parameters [2, ...] after each player's gradient step on its own value."""
    return params + rate * own_gradients(values, params)


def lola(values: Values, params: Array, rate: Array | float, look: Array | float) -> Array:
    """Return the parameters [2, ...] after a step of learning with opponent-learning awareness.

    Each player ascends its value after a step of the other's gradient ascent, of the size `look`,
    and through that step.

    Source: Foerster et al., 2018, "Learning with opponent-learning awareness", section 4; not its
    first-order Taylor expansion, but the value itself.
    """

    def value_ahead(own: Array, player: int) -> Array:
        met = params.at[player].set(own)
        other = met[1 - player] + look * own_gradients(values, met)[1 - player]
        return values(met.at[1 - player].set(other))[player]

    gradient = jnp.stack([jax.grad(value_ahead)(params[player], player) for player in (0, 1)])
    return params + rate * gradient


def own_gradients(values: Values, params: Array) -> Array:
    """Return the gradient [2, ...] of each player's value by its own parameters."""
    jacobian = jax.jacrev(values)(params)  # [2, 2, ...]
    return jnp.stack([jacobian[0, 0], jacobian[1, 1]])
