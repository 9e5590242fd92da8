"""Exact visit frequencies of a policy: discounted occupancies and stationary distributions.

Arguments as in `jaxrl.exact.dynamic_programming`; `initial` [S] is the distribution of first
states. All are pure functions of arrays, for `jit`, `vmap` and `grad`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from jaxrl.core import precise
from jaxrl.core.types import Array
from jaxrl.exact.dynamic_programming import check_shapes, state_transition


def state_occupancy(
    transition: Array,
    policy: Array,
    initial: Array,
    discount: Array | float,
    terminal: Array | None = None,
) -> Array:
    """The discounted expected number of visits [S]: sum_t discount^t Pr(s_t = s), by one linear
    solve of d = initial + discount P^T d (Puterman, 6.9).

    Arriving in a terminal state counts as its only visit. Without terminal states the sum is 1 /
    (1 - discount); multiply by 1 - discount for a distribution. With a discount of 1 the entries
    are expected visits in an episode, and episodes must end.
    """
    check_shapes(transition, initial=initial)
    chain = state_transition(transition, policy, terminal)
    system = jnp.eye(len(chain), dtype=chain.dtype) - discount * chain
    return jnp.linalg.solve(system.T, initial)


def occupancy(
    transition: Array,
    policy: Array,
    initial: Array,
    discount: Array | float,
    terminal: Array | None = None,
) -> Array:
    """The discounted expected number of times [S, A] that each action is taken in each state.

    It is 0 in terminal states. Its inner product with the expected reward is the policy's return.
    """
    visits = state_occupancy(transition, policy, initial, discount, terminal)
    if terminal is not None:
        visits = jnp.where(terminal, 0.0, visits)
    return visits[:, None] * policy


def policy_from_occupancy(occupancy: Array) -> Array:
    """The policy [S, A] with this `occupancy` [S, A]; uniform in states that are never visited."""
    visits = jnp.sum(occupancy, axis=-1, keepdims=True)
    seen = visits > 0
    return jnp.where(seen, occupancy / jnp.where(seen, visits, 1.0), 1 / occupancy.shape[-1])


def finite_horizon_occupancy(
    transition: Array,
    policy: Array,
    initial: Array,
    horizon: int,
    terminal: Array | None = None,
) -> Array:
    """The distribution of the state [horizon + 1, S] at each step 0 .. horizon.

    Rows sum to less than 1 once episodes have ended.

    policy: [S, A], or one for each step, [horizon, S, A].
    """
    check_shapes(transition, initial=initial)
    policies = jnp.broadcast_to(policy, (horizon, *transition.shape[:2]))

    def forward(distribution, policy):
        following = precise.matmul(distribution, state_transition(transition, policy, terminal))
        return following, following

    _, later = lax.scan(forward, initial, policies)
    return jnp.concatenate([initial[None], later])


def restarting_chain(chain: Array, initial: Array) -> Array:
    """The chain [S, S] that restarts from `initial` whenever an episode of `chain` ends.

    Episodes end where rows of `chain` sum to less than 1. A stream of auto-resetting episodes, in
    which a terminal state is one more step, follows this chain (Sutton and Barto, 9.2).
    """
    return chain + (1 - jnp.sum(chain, axis=-1, keepdims=True)) * initial


def stationary_distribution(chain: Array) -> Array:
    """The stationary distribution [S] of `chain` [S, S], rows of which sum to 1.

    It is the solution of (I - P + 1 1^T)^T d = 1, which is unique and finite if the chain has one
    recurrent class (Puterman, A.4).
    """
    states = len(chain)
    system = jnp.eye(states, dtype=chain.dtype) - chain + 1.0
    return jnp.linalg.solve(system.T, jnp.ones(states, chain.dtype))
