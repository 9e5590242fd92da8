"""Exact return, advantages and policy gradient of a tabular softmax policy.

Arguments as in `jaxrl.exact.dynamic_programming` and `jaxrl.exact.occupancy`; `logits` [S, A]. All
are pure functions of arrays, for `jit`, `vmap` and `grad`.
"""

from __future__ import annotations

import jax

from jaxrl.core import precise
from jaxrl.core.types import Array
from jaxrl.exact.dynamic_programming import action_values, check_shapes, policy_evaluation
from jaxrl.exact.occupancy import occupancy


def advantages(
    transition: Array,
    reward: Array,
    policy: Array,
    discount: Array | float,
    terminal: Array | None = None,
) -> Array:
    """The advantages A [S, A] = Q - V of `policy`; 0 in terminal states."""
    values = policy_evaluation(transition, reward, policy, discount, terminal)
    q = action_values(transition, reward, values, discount, terminal)
    return q - values[:, None]


def expected_return(
    logits: Array,
    transition: Array,
    reward: Array,
    initial: Array,
    discount: Array | float,
    terminal: Array | None = None,
    temperature: Array | float = 0.0,
) -> Array:
    """The discounted return (a scalar) of softmax(`logits`), differentiable in every array.

    temperature: weight of the entropy of each step's action, which is added (maximum-entropy
        objective).
    """
    check_shapes(transition, policy=logits, initial=initial)
    policy = jax.nn.softmax(logits, axis=-1)
    values = policy_evaluation(transition, reward, policy, discount, terminal, temperature)
    return precise.matmul(initial, values)


def policy_gradient(
    logits: Array,
    transition: Array,
    reward: Array,
    initial: Array,
    discount: Array | float,
    terminal: Array | None = None,
) -> Array:
    """The gradient [S, A] of `expected_return`, by the policy gradient theorem.

    It is occupancy times advantage, since d log pi(b | s) / d logits(s, a) = 1[a = b] - pi(a | s)
    (Sutton et al. 2000, theorem 1; Agarwal et al. 2021, "On the Theory of Policy Gradient Methods",
    lemma C.1).
    """
    check_shapes(transition, policy=logits)
    policy = jax.nn.softmax(logits, axis=-1)
    visits = occupancy(transition, policy, initial, discount, terminal)
    return visits * advantages(transition, reward, policy, discount, terminal)
