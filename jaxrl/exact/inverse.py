"""Exact inverse reinforcement learning in finite MDPs: maximum causal entropy.

Arguments as in `jaxrl.exact.dynamic_programming`; `initial` [S] is the distribution of first
states, and an episode has `horizon` steps.
"""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jax import lax

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.exact.dynamic_programming import soft_backward_induction
from jaxrl.exact.occupancy import finite_horizon_occupancy


def feature_expectations(
    transition: Array,
    features: Array,
    initial: Array,
    *,
    policy: Array,
    horizon: int,
    discount: Array | float = 1.0,
    terminal: Array | None = None,
) -> Array:
    """Discounted sum [K] of the features that `policy` meets in an episode, in expectation.

    features: [S, A, K].
    policy: [S, A], or one for each step, [horizon, S, A].
    """
    visits = finite_horizon_occupancy(transition, policy, initial, horizon, terminal)[:-1]
    if terminal is not None:
        visits = jnp.where(terminal, 0.0, visits)
    visits = visits * discount ** jnp.arange(horizon)[:, None]
    taken = jnp.sum(visits[..., None] * jnp.broadcast_to(policy, (horizon, *policy.shape[-2:])), 0)
    return jnp.einsum("sa,sak->k", taken, features)


def maximum_causal_entropy(
    transition: Array,
    features: Array,
    initial: Array,
    *,
    expected: Array,
    horizon: int,
    discount: Array | float = 1.0,
    terminal: Array | None = None,
    steps: int = 200,
) -> tuple[Array, Array]:
    """Return the weights [K] of the features, and the policies [horizon, S, A], of which the latter
    have the largest causal entropy of all that meet the features as often as the expert.

    The reward is features @ weights, and the policies are soft-optimal for it at a temperature of
    1. The weights minimize the dual, E V_0(s) - weights @ expected, which is convex, by L-BFGS. In
    directions that `expected` does not determine, weights stay 0.

    features: [S, A, K]; a one-hot code of the state gives a reward of each state.
    expected: [K], the expert's `feature_expectations`, from a policy or from demonstrations.
    steps: number of iterations.

    Raises `UserError` if shapes do not match.
    Sources: Ziebart (2010), "Modeling Purposeful Adaptive Behavior with the Principle of Maximum
    Causal Entropy", theorem 6.8 and section 9.1.
    """
    if features.shape[:2] != transition.shape[:2] or expected.shape != features.shape[2:]:
        raise UserError(
            f"The features have the shape {list(features.shape)} and their expectations "
            f"{list(expected.shape)}; with {transition.shape[0]} states and {transition.shape[1]} "
            "actions they must be [S, A, K] and [K]."
        )

    def solve(weights):
        return soft_backward_induction(
            transition, features @ weights, horizon, 1.0, discount, terminal
        )

    def dual(weights):
        return initial @ solve(weights)[0][0] - weights @ expected

    optimizer = optax.lbfgs()
    slope = optax.value_and_grad_from_state(dual)

    def step(carry, _):
        weights, state = carry
        value, gradient = slope(weights, state=state)
        updates, state = optimizer.update(
            gradient, state, weights, value=value, grad=gradient, value_fn=dual
        )
        return (weights + updates, state), None

    start = jnp.zeros_like(expected)
    (weights, _), _ = lax.scan(step, (start, optimizer.init(start)), length=steps)
    return weights, solve(weights)[1]
