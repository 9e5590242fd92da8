"""Performative MDPs: rewards and transitions that depend on the policy that is deployed.

The occupancy d [S, A] of a policy decides the MDP that answers it. Retraining solves that MDP as it
is, deploys the solution, and so on, until the occupancy is stable: optimal in the MDP that answers
it. A quadratic regularizer makes retraining a contraction where the answers are smooth enough:

    maximize  <d, r> - regularizer / 2 |d|^2   over d >= 0
    with      sum_a d(s, a) = initial(s) + discount sum_(s', a) d(s', a) P(s | s', a)

Source: Mandal, Triantafyllou and Radanovic, 2023, "Performative reinforcement learning"
(arXiv:2207.00046); objective and constraints as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.types import Array
from jaxrl.exact.dynamic_programming import soft_value_iteration
from jaxrl.exact.occupancy import policy_from_occupancy

NEWTON_STEPS = 60
HALVINGS = 30  # of a step of Newton's method; the best of all is taken
RIDGE = 1e-9


class Answer(NamedTuple):
    """The MDP that answers a deployed policy."""

    transition: Array  # [S, A, S]
    reward: Array  # [S, A]


class FollowerGame(NamedTuple):
    """A game between a leader with actions A and a follower with actions B."""

    transition: Array  # [S, A, B, S]
    reward: Array  # [S, A, B], of the leader
    other_reward: Array  # [S, A, B], of the follower
    initial: Array  # [S]


Respond = Callable[[Array], Answer]  # an occupancy [S, A] -> the MDP that answers it


def soft_follower(
    game: FollowerGame, discount: float, temperature: Array | float, tolerance: float = 1e-6
) -> Respond:
    """Return the answers of a follower who responds softly to the leader's policy.

    The follower plays the optimal policy with entropy regularization at `temperature`, in the MDP
    that the leader's policy makes for it, up to a `tolerance` of its values.
    """

    def respond(occupancy: Array) -> Answer:
        policy = policy_from_occupancy(occupancy)
        transition = precise.einsum("sa,sabt->sbt", policy, game.transition)
        reward = precise.einsum("sa,sab->sb", policy, game.other_reward)
        _, follower = soft_value_iteration(
            transition, reward, discount, temperature, tolerance=tolerance
        )
        return Answer(
            precise.einsum("sb,sabt->sat", follower, game.transition),
            precise.einsum("sb,sab->sa", follower, game.reward),
        )

    return respond


def flow(answer: Answer, discount: Array | float) -> Array:
    """Return the matrix [S, A, S] of the flow constraints: E'd = initial."""
    states = len(answer.transition)
    return jnp.eye(states)[:, None, :] - discount * answer.transition


def regularized_occupancy(
    answer: Answer, initial: Array, discount: Array | float, regularizer: Array | float
) -> Array:
    """Return the occupancy [S, A] that is best in an MDP, with the quadratic regularizer.

    It is max(0, r - E h) / regularizer, where h [S] minimizes the dual function
    <initial, h> + |max(0, r - E h)|^2 / (2 regularizer), which is convex and piecewise quadratic;
    Newton's method finds it. `regularizer` must be positive.
    """
    matrix = flow(answer, discount)

    def primal(h):
        return jnp.maximum(answer.reward - precise.matmul(matrix, h), 0) / regularizer

    def dual(h):
        return (initial * h).sum() + regularizer / 2 * jnp.square(primal(h)).sum()

    def newton(h, _):
        d = primal(h)
        gradient = initial - precise.einsum("sat,sa->t", matrix, d)
        active = (d > 0).astype(d.dtype)
        hessian = precise.einsum("sat,sa,sau->tu", matrix, active, matrix) / regularizer
        step = jnp.linalg.solve(hessian + RIDGE * jnp.eye(len(h), dtype=h.dtype), gradient)
        tries = h - 0.5 ** jnp.arange(HALVINGS + 1, dtype=h.dtype)[:, None] * step
        tries = jnp.concatenate([tries, h[None]])
        return tries[jax.vmap(dual)(tries).argmin()], None

    # All occupancies are positive at the start, so that the first curvature has full rank.
    low = (answer.reward.min() - 1) / (1 - discount)
    begin = jnp.full(initial.shape, low, answer.reward.dtype)
    h, _ = jax.lax.scan(newton, begin, None, NEWTON_STEPS)
    return primal(h)


def retrain(
    respond: Respond,
    initial: Array,
    discount: Array | float,
    regularizer: Array | float,
    begin: Array,
    steps: int,
) -> Array:
    """Return the occupancies [steps, S, A] of repeated optimization from the occupancy `begin`."""

    def step(d, _):
        d = regularized_occupancy(respond(d), initial, discount, regularizer)
        return d, d

    return jax.lax.scan(step, begin, None, steps)[1]


def retrain_by_gradient(
    respond: Respond,
    initial: Array,
    discount: Array | float,
    regularizer: Array | float,
    begin: Array,
    steps: int,
    rate: Array | float,
) -> Array:
    """Return the occupancies [steps, S, A] of repeated gradient ascent.

    Each step moves d by rate (r - regularizer d), and projects it onto the occupancies of the MDP
    that answers it. The projection of x is the best occupancy for the reward x with a regularizer
    of 1.
    """

    def step(d, _):
        answer = respond(d)
        moved = (1 - rate * regularizer) * d + rate * answer.reward
        d = regularized_occupancy(Answer(answer.transition, moved), initial, discount, 1.0)
        return d, d

    return jax.lax.scan(step, begin, None, steps)[1]
