"""Exact values and optimal policies of finite MDPs.

Shapes: `S` states, `A` actions.

    transition [S, A, S]  probability of each successor
    reward     [S, A], or [S, A, S] if it depends on the successor
    policy     [S, A]     probability of each action
    terminal   bool [S], or None if there are no terminal states. An episode ends on arrival there,
               so that the value of such a state is 0, whatever its entries in the tensors
    discount   scalar in [0, 1]; 1 only if every evaluated policy reaches a terminal state

`jaxrl.envs.tables.mdp.tensors(env.params)` provides them. Rows of `transition` may sum to less than
1; the rest is the probability that the episode ends. All are pure functions of arrays, for `jit`,
`vmap` and `grad`, in the precision of their arguments. Shapes that do not match raise `UserError`.
Sources: Puterman (1994), "Markov Decision Processes"; Sutton and Barto (2018), chapters 3 and 4.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array


def expected_reward(transition: Array, reward: Array, terminal: Array | None = None) -> Array:
    """The expected reward [S, A] of each state and action; 0 in terminal states."""
    check_shapes(transition, reward=reward, terminal=terminal)
    if reward.ndim == 3:
        reward = jnp.sum(transition * reward, axis=-1)
    return reward if terminal is None else jnp.where(terminal[:, None], 0.0, reward)


def live_transition(transition: Array, terminal: Array | None = None) -> Array:
    """The transition tensor [S, A, S] with no successors of terminal states."""
    check_shapes(transition, terminal=terminal)
    if terminal is None:
        return transition
    return jnp.where(terminal[:, None, None], 0.0, transition)


def action_values(
    transition: Array,
    reward: Array,
    values: Array,
    discount: Array | float,
    terminal: Array | None = None,
) -> Array:
    """Q [S, A]: reward plus discounted `values` [S] of the successors (Sutton and Barto, 4.6)."""
    following = precise.matmul(live_transition(transition, terminal), values)
    return expected_reward(transition, reward, terminal) + discount * following


def policy_evaluation(
    transition: Array,
    reward: Array,
    policy: Array,
    discount: Array | float,
    terminal: Array | None = None,
    temperature: Array | float = 0.0,
) -> Array:
    """The values [S] of `policy`, by one linear solve: V = (I - discount P)^-1 r (Puterman, 6.1.1).

    temperature: weight of the policy's entropy, which is added to the reward of each live state
        (soft values).

    If the solution is not unique (a discount of 1 and a policy that never ends), the values are not
    finite.
    """
    check_shapes(transition, policy=policy)
    mean_reward = jnp.sum(policy * expected_reward(transition, reward, terminal), axis=-1)
    # 0 log 0 = 0; the inner `where` keeps its gradient finite.
    entropy = -jnp.sum(policy * jnp.log(jnp.where(policy > 0, policy, 1.0)), axis=-1)
    if terminal is not None:
        entropy = jnp.where(terminal, 0.0, entropy)
    chain = state_transition(transition, policy, terminal)
    system = jnp.eye(len(chain), dtype=chain.dtype) - discount * chain
    return jnp.linalg.solve(system, mean_reward + temperature * entropy)


def state_transition(transition: Array, policy: Array, terminal: Array | None = None) -> Array:
    """The Markov chain [S, S] of states under `policy`; terminal states have no successors."""
    check_shapes(transition, policy=policy)
    return precise.einsum("sa,sat->st", policy, live_transition(transition, terminal))


def greedy_policy(q: Array) -> Array:
    """The policy [S, A] that takes the best action of `q` [S, A], the first one if several tie."""
    return jax.nn.one_hot(jnp.argmax(q, axis=-1), q.shape[-1], dtype=q.dtype)


def policy_iteration(
    transition: Array,
    reward: Array,
    discount: Array | float,
    terminal: Array | None = None,
    max_iterations: int = 1000,
) -> tuple[Array, Array]:
    """The optimal values [S] and an optimal policy [S, A], by Howard's policy iteration.

    Exact: each iteration solves a linear system, and the last one finds no action that is better
    by more than rounding. The discount must be below 1, or every deterministic policy must end.
    Gradients are those of the optimal policy's values (the policy itself is a constant).
    """
    q = action_values(transition, reward, jnp.zeros(len(transition)), discount, terminal)
    fixed = jax.tree.map(lax.stop_gradient, (transition, reward, jnp.asarray(discount)))
    slack = 64 * jnp.finfo(q.dtype).eps

    def improve(carry):
        policy, _, count = carry
        values = policy_evaluation(fixed[0], fixed[1], policy, fixed[2], terminal)
        q = action_values(fixed[0], fixed[1], values, fixed[2], terminal)
        # Change the policy only where it improves: ties broken by rounding would cycle forever.
        current = jnp.sum(policy * q, axis=-1, keepdims=True)
        scale = jnp.maximum(jnp.max(jnp.abs(q)), jnp.finfo(q.dtype).tiny)
        better = jnp.max(q, axis=-1, keepdims=True) > current + slack * scale
        return jnp.where(better, greedy_policy(q), policy), jnp.any(better), count + 1

    start = (greedy_policy(lax.stop_gradient(q)), jnp.array(True), jnp.int32(0))
    policy, *_ = lax.while_loop(lambda x: x[1] & (x[2] < max_iterations), improve, start)
    return policy_evaluation(transition, reward, policy, discount, terminal), policy


def value_iteration(
    transition: Array,
    reward: Array,
    discount: Array | float,
    terminal: Array | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
) -> tuple[Array, Array]:
    """The optimal values [S] and the greedy policy [S, A], by value iteration (Sutton and Barto,
    4.10).

    Ends when no value changes by more than `tolerance`. The values are then within tolerance *
    discount / (1 - discount) of the optimum. Gradients are those of the greedy policy's values (the
    policy itself is a constant).
    """

    def backup(fixed, values):
        return jnp.max(action_values(*fixed(values)), axis=-1)

    values, q = _iterate(backup, transition, reward, discount, terminal, tolerance, max_iterations)
    policy = greedy_policy(q)
    return _attach_gradient(policy, values, transition, reward, discount, terminal), policy


def soft_value_iteration(
    transition: Array,
    reward: Array,
    discount: Array | float,
    temperature: Array | float,
    terminal: Array | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
) -> tuple[Array, Array]:
    """The soft-optimal values [S] and policy [S, A], by soft value iteration.

    V = t log sum_a exp(Q / t), pi = exp((Q - V) / t). The policy maximizes the discounted sum of
    rewards plus `temperature` t > 0 times its entropy; a terminal state has no entropy. Otherwise
    as `value_iteration`. First derivatives of both results are exact, higher ones are not.
    Sources: Ziebart (2010), "Modeling Purposeful Adaptive Behavior", section 6.2; Haarnoja et al.
    (2017), "Reinforcement Learning with Deep Energy-Based Policies", equations 4 to 6.
    """
    fixed_temperature = lax.stop_gradient(jnp.asarray(temperature))

    def backup(fixed, values):
        q = action_values(*fixed(values))
        soft = fixed_temperature * jax.nn.logsumexp(q / fixed_temperature, axis=-1)
        return soft if terminal is None else jnp.where(terminal, 0.0, soft)

    values, q = _iterate(backup, transition, reward, discount, terminal, tolerance, max_iterations)
    policy = jax.nn.softmax(q / fixed_temperature, axis=-1)
    # By the envelope theorem, changes of the policy do not matter at the optimum.
    values = _attach_gradient(policy, values, transition, reward, discount, terminal, temperature)
    q = action_values(transition, reward, values, discount, terminal)
    return values, jax.nn.softmax(q / temperature, axis=-1)


def backward_induction(
    transition: Array,
    reward: Array,
    horizon: int,
    discount: Array | float = 1.0,
    terminal: Array | None = None,
) -> tuple[Array, Array]:
    """Optimal values [horizon + 1, S] and policies [horizon, S, A] for each step of a finite
    horizon: row t is optimal with horizon - t steps to go (Puterman, 4.5)."""

    def back(values, _):
        q = action_values(transition, reward, values, discount, terminal)
        best = jnp.max(q, axis=-1)
        return best, (best, greedy_policy(q))

    return _scan_backward(back, expected_reward(transition, reward, terminal), horizon)


def soft_backward_induction(
    transition: Array,
    reward: Array,
    horizon: int,
    temperature: Array | float = 1.0,
    discount: Array | float = 1.0,
    terminal: Array | None = None,
) -> tuple[Array, Array]:
    """Soft-optimal values [horizon + 1, S] and policies [horizon, S, A] of a finite horizon, as
    `soft_value_iteration` has them without one (Ziebart, 2010, equations 9.1 to 9.3)."""

    def back(values, _):
        q = action_values(transition, reward, values, discount, terminal)
        soft = temperature * jax.nn.logsumexp(q / temperature, axis=-1)
        soft = soft if terminal is None else jnp.where(terminal, 0.0, soft)
        return soft, (soft, jax.nn.softmax(q / temperature, axis=-1))

    return _scan_backward(back, expected_reward(transition, reward, terminal), horizon)


def finite_horizon_evaluation(
    transition: Array,
    reward: Array,
    policy: Array,
    horizon: int,
    discount: Array | float = 1.0,
    terminal: Array | None = None,
) -> tuple[Array, Array]:
    """Values [horizon + 1, S] and action values [horizon, S, A] of `policy` over a finite horizon
    (Puterman, 4.2).

    policy: [S, A], or one for each step, [horizon, S, A].
    """
    policies = jnp.broadcast_to(policy, (horizon, *transition.shape[:2]))

    def back(values, policy):
        q = action_values(transition, reward, values, discount, terminal)
        mean = jnp.sum(policy * q, axis=-1)
        return mean, (mean, q)

    return _scan_backward(back, expected_reward(transition, reward, terminal), horizon, policies)


def _scan_backward(back, reward, horizon, steps=None) -> tuple[Array, Array]:
    """Scan `back` over the steps from last to first, starting with values of 0."""
    last = jnp.zeros_like(reward[:, 0])
    _, (values, rest) = lax.scan(back, last, steps, length=horizon, reverse=True)
    return jnp.concatenate([values, last[None]]), rest


def _iterate(backup, transition, reward, discount, terminal, tolerance, max_iterations):
    """Iterate `backup` to its fixed point; return that and its action values, without gradients.

    `backup(fixed, values)` returns new values. `fixed` maps values to the arguments of
    `action_values`.
    """
    constants = jax.tree.map(lax.stop_gradient, (transition, reward, jnp.asarray(discount)))

    def fixed(values):
        return constants[0], constants[1], values, constants[2], terminal

    def sweep(carry):
        values, _, count = carry
        new = backup(fixed, values)
        return new, jnp.max(jnp.abs(new - values)), count + 1

    start = jnp.zeros_like(expected_reward(transition, constants[1], terminal)[:, 0])
    carry = (start, jnp.array(jnp.inf, start.dtype), jnp.int32(0))
    values, *_ = lax.while_loop(
        lambda x: (x[1] > tolerance) & (x[2] < max_iterations), sweep, carry
    )
    return values, action_values(*fixed(values))


def _attach_gradient(
    policy: Array,
    values: Array,
    transition: Array,
    reward: Array,
    discount: Array | float,
    terminal: Array | None,
    temperature: Array | float = 0.0,
) -> Array:
    """Return `values` with the gradient of the values of `policy`."""
    evaluated = policy_evaluation(transition, reward, policy, discount, terminal, temperature)
    return values + evaluated - lax.stop_gradient(evaluated)


def check_shapes(transition: Array, **others: Array | None) -> None:
    """Raise `UserError`, naming the array, if a shape does not match the transition tensor's."""
    if transition.ndim != 3 or transition.shape[0] != transition.shape[2]:
        raise UserError(
            f"The transition tensor has the shape {list(transition.shape)}; it must be [S, A, S]."
        )
    states, actions, _ = transition.shape
    right = {
        "reward": [(states, actions), (states, actions, states)],
        "policy": [(states, actions)],
        "terminal": [(states,)],
        "initial": [(states,)],
    }
    for name, array in others.items():
        if array is not None and tuple(array.shape) not in right[name]:
            raise UserError(
                f"The array '{name}' has the shape {list(array.shape)}; with {states} states and "
                f"{actions} actions it must be {' or '.join(str(list(x)) for x in right[name])}."
            )
