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


def discounted_values(payoff: Array, strategies: Array, discount: float) -> Array:
    """Return the values [2] of two strategies: (1 - discount) sum_t discount^t payoff_t.

    payoff: [2, A, A], of both players by both actions.
    strategies: [2, 1 + A * A, A].
    discount: in [0, 1).
    """
    joint = strategies[0][:, :, None] * strategies[1][:, None, :]  # [1 + A A, A, A]
    joint = joint.reshape(len(joint), -1)
    begin, then = joint[0], joint[1:]
    visits = jnp.linalg.solve(jnp.eye(len(then)) - discount * then.T, begin)
    return (1 - discount) * payoff.reshape(2, -1) @ visits


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
