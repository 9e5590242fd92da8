"""Rewards and values recovered from an expert's actions: IQ-Learn, margins, shaping distance."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import safe_norm
from jaxrl.losses.reductions import _full_mask, at_action, masked_mean

__all__ = [
    "inverse_bellman_reward",
    "iq_learn",
    "marginal_q",
    "optimality_margin",
    "shaping_distance",
]


@check_arguments
def inverse_bellman_reward(
    q_value: Array, next_value: Array, terminated: Array, discount: Array | float
) -> Array:
    """Recover the reward that a (soft) Q-function implies.

    Q(s, a) - discount * V(s'), V(s') 0 where terminated

    Args:
      q_value, next_value: [...]; for soft values V = temperature * logsumexp(Q / temperature).
      terminated: [...], bool.
      discount: broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Garg et al., 2021, "IQ-Learn: inverse soft-Q learning for imitation" (the inverse
      soft Bellman operator).
    Example: `losses.inverse_bellman_reward(q_value, next_value, terminated, discount=0.99)`
    """
    return q_value - discount * jnp.where(terminated, 0, next_value)


@check_arguments
def iq_learn(
    q_value: Array,
    value: Array,
    next_value: Array,
    expert: Array,
    terminated: Array,
    discount: Array | float,
    alpha: Array | float = 0.5,
    mask: Array | None = None,
) -> Array:
    """IQ-Learn's loss: learn a soft Q-function, hence a policy and a reward, from expert steps.

    -mean_expert(r) + mean_all(V(s) - discount V(s')) + mean_all(r^2) / (4 alpha),
    r = Q(s, a) - discount V(s'), with V(s') 0 where terminated

    Args:
      q_value, value, next_value: [...], of the same learned Q: V is its soft value at s and s'.
      expert: [...], bool, true at the expert's steps. Offline, all are true; online, the policy's
        own steps are false.
      terminated: [...], bool.
      discount: broadcasts to [...].
      alpha: of the chi-squared regularizer; larger values allow larger rewards.
      mask: broadcasts to [...], true where a step counts; None: all.
    Returns: a scalar.
    Gradients: none are stopped, unlike in Q-learning: they flow into `next_value` too.
    Source: Garg et al., 2021, "IQ-Learn: inverse soft-Q learning for imitation", with the
      chi-squared divergence, and its published code.
    Example: `losses.iq_learn(q_value, value, next_value, expert, terminated, discount=0.99)`
    """
    allowed = _full_mask(value, mask)
    q_value, value, next_value = (jnp.where(allowed, x, 0) for x in (q_value, value, next_value))
    reward = inverse_bellman_reward(q_value, next_value, terminated, discount)
    start = inverse_bellman_reward(value, next_value, terminated, discount)
    cost = masked_mean(start + jnp.square(reward) / (4 * alpha), allowed)
    return cost - masked_mean(reward, allowed & (expert != 0))


@check_arguments
def marginal_q(q_values: Array, other_probs: Array) -> Array:
    """Action values of one agent, averaged over the other agents' actions.

    Q_i(s, a_i) = sum_o p(o | s) Q_i(s, a_i, o)

    Args:
      q_values: [..., A, O], of the agent's A actions and the O joint actions of the others.
      other_probs: [..., O], the others' joint policy, a product if they are independent.
    Returns: [..., A]; their softmax is the agent's Boltzmann policy, and `iq_learn` applies as for
      a single agent.
    Gradients: none are stopped.
    Source: Haynam et al., 2025, "Multi-agent inverse Q-learning from demonstrations".
    Example: `losses.marginal_q(q_values, other_probs)`
    """
    return (q_values * other_probs[..., None, :]).sum(-1)


@check_arguments
def optimality_margin(
    q_values: Array, action: Array, margin: Array | float = 1.0, mask: Array | None = None
) -> Array:
    """Loss of a reward under which the expert's action is best by a margin.

    sum_{a != action} max(margin - (Q(s, action) - Q(s, a)), 0)

    Args:
      q_values: [..., A], of the learned reward under the expert's policy: Q(s, action) - Q(s, a)
        are the reduced costs of the Markov decision process as a linear program.
      action: [...], the expert's.
      margin: broadcasts to [...].
      mask: [..., A], true where an action is possible; None: all. The expert's must be.
    Returns: [...]; 0 where all other actions are worse by the margin. Add a regularizer to fix the
      reward's scale.
    Gradients: none are stopped.
    Source: Sun et al., 2023, "Maximum optimality margin: a unified approach for contextual linear
      programming and inverse linear programming"; Ng and Russell, 2000, "Algorithms for inverse
      reinforcement learning".
    Example: `losses.optimality_margin(q_values, action).mean()`
    """
    other = jnp.arange(q_values.shape[-1]) != action[..., None]
    counts = other if mask is None else other & (mask != 0)
    q_values = jnp.where(counts | ~other, q_values, 0)
    reduced_cost = at_action(q_values, action)[..., None] - q_values
    hinge = jnp.maximum(jnp.asarray(margin, q_values.dtype)[..., None] - reduced_cost, 0)
    return jnp.where(counts, hinge, 0).sum(-1)


@check_arguments
def shaping_distance(
    reward: Array, other_reward: Array, transition: Array, discount: Array | float
) -> Array:
    """Distance between two rewards up to potential shaping, which changes no optimal policy.

    min_h |d - (discount P h - h)|, d = reward - other_reward, over potentials h of the states

    Args:
      reward, other_reward: [S, A].
      transition: [S, A, S], probabilities of the next state (last).
      discount: in [0, 1).
    Returns: a scalar, 0 exactly where the rewards are the same up to shaping.
    Gradients: none are stopped; 0 where the distance is 0.
    Source: Ng et al., 1999, "Policy invariance under reward transformations", theorem 1;
      Schlaginhaufen and Kamgarpour, 2023, "Identifiability and generalizability in constrained
      inverse reinforcement learning". The projection is derived here.
    Example: `losses.shaping_distance(reward, other_reward, transition, discount=0.9)`
    """
    wide = jnp.promote_types(reward.dtype, jnp.float32)  # the linear solver needs it
    states = jnp.eye(transition.shape[0], dtype=wide)
    shaping = (discount * transition.astype(wide) - states[:, None, :]).reshape(-1, len(states))
    difference = (reward - other_reward).astype(wide).ravel()
    potential = jnp.linalg.solve(
        precise.matmul(shaping.T, shaping), precise.matmul(shaping.T, difference)
    )
    return safe_norm(difference - precise.matmul(shaping, potential)).astype(reward.dtype)
