"""Q-learning with an entropy bonus: soft values, Munchausen rewards, and their Tsallis forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.tsallis import exp_q, log_q
from jaxrl.losses.reductions import at_action
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.q_learning import expected_value

__all__ = [
    "munchausen_target",
    "soft_q_target",
    "soft_value",
    "tsallis_munchausen_target",
    "tsallis_policy",
    "tsallis_value",
]


@check_arguments
def soft_value(q_values: Array, temperature: Array | float) -> Array:
    """Soft maximum of Q-values: the largest mean plus entropy that a policy can attain.

    temperature * log sum_a exp(q_values[a] / temperature), attained by softmax(q_values /
    temperature)

    Args:
      q_values: [..., A]; -inf where an action cannot be taken.
      temperature: a positive scalar; toward 0 it is the maximum.
    Returns: [...].
    Gradients: none are stopped.
    Source: Haarnoja et al., 2017, "Reinforcement learning with deep energy-based policies";
      Ziebart, 2010, "Modeling purposeful adaptive behavior with the principle of maximum causal
      entropy".
    Example: `losses.soft_value(q_values, temperature)`
    """
    return temperature * jax.nn.logsumexp(q_values / temperature, axis=-1)


@check_arguments
def soft_q_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    temperature: Array | float,
) -> Array:
    """Soft Q-learning's target: the next state's soft value.

    reward + discount * soft_value(next_q_values, temperature), the last term 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., A].
      temperature: a positive scalar.
    Returns: [...].
    Gradients: none.
    Source: Haarnoja et al., 2017, "Reinforcement learning with deep energy-based policies".
    Example: `losses.soft_q_target(reward, terminated, discount, next_q_values, temperature)`
    """
    return td_target(reward, terminated, discount, soft_value(next_q_values, temperature))


@check_arguments
def munchausen_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    q_values: Array,
    action: Array,
    next_q_values: Array,
    temperature: Array | float,
    scale: Array | float = 0.9,
    lowest: Array | float = -1.0,
) -> Array:
    """Munchausen target: soft Q-learning's with a reward for actions that are already likely.

    soft_q_target(reward + scale * max(temperature * log pi(action), lowest), ...),
    pi = softmax(q_values / temperature)

    Args:
      reward, terminated, action: [...].
      discount, scale: gamma and alpha, broadcast to [...].
      q_values, next_q_values: [..., A], of the state and of its successor, both from the target
        network.
      temperature: a positive scalar.
      lowest: lower bound on the scaled log-probability.
    Returns: [...].
    Gradients: none.
    Source: Vieillard et al., 2020, "Munchausen reinforcement learning", eq. 1; the bound is that of
      its M-DQN.
    Example: `losses.munchausen_target(reward, terminated, discount, q_values, action,
      next_q_values, temperature)`
    """
    log_prob = at_action(jax.nn.log_softmax(q_values / temperature), action)
    reward = reward + scale * jnp.maximum(temperature * log_prob, lowest)
    return soft_q_target(reward, terminated, discount, next_q_values, temperature)


@check_arguments
def tsallis_policy(q_values: Array, temperature: Array | float, index: float = 2.0) -> Array:
    """Policy that trades off Q-values against Tsallis entropy, which can exclude actions.

    pi(a) = [1 + (index - 1) (q_values[a] / temperature - psi)]_+^(1 / (index - 1)), where psi makes
    it sum to 1: the softmax at index 1, the sparsemax at index 2. It maximizes
    sum_a pi(a) q_values[a] + temperature / (index (index - 1)) * (1 - sum_a pi(a)^index).

    Args:
      q_values: [..., A]; -inf where an action cannot be taken.
      temperature: a positive scalar.
      index: the entropic index, a Python number of at least 1; larger values exclude more actions.
    Returns: [..., A], probabilities.
    Gradients: none.
    Source: Lee et al., 2018, "Sparse Markov decision processes with causal sparse Tsallis entropy
      regularization for reinforcement learning" (index 2); Zhu et al., 2023, "General Munchausen
      reinforcement learning with Tsallis Kullback-Leibler divergence", theorem 1. psi is found by
      bisection, not by the latter's approximation.
    Example: `losses.tsallis_policy(q_values, temperature)`
    """
    scores = jax.lax.stop_gradient(q_values / temperature)
    scores = scores - scores.max(-1, keepdims=True)
    if index == 1:
        return jax.nn.softmax(scores)
    # The best action's probability, exp_q(-psi), lies between 1 / A and 1.
    least = jnp.full_like(scores[..., :1], 1 / scores.shape[-1])
    low, high = jnp.zeros_like(least), -log_q(least, 2 - index)

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        too_much = exp_q(scores - middle, 2 - index).sum(-1, keepdims=True) > 1
        return jnp.where(too_much, middle, low), jnp.where(too_much, high, middle)

    low, high = jax.lax.fori_loop(0, 50, halve, (low, high))
    policy = exp_q(scores - 0.5 * (low + high), 2 - index)
    return policy / policy.sum(-1, keepdims=True)


@check_arguments
def tsallis_value(q_values: Array, temperature: Array | float, index: float = 2.0) -> Array:
    """Value of a state under its Tsallis policy: the mean of Q-values plus Tsallis entropy.

    sum_a pi(a) q_values[a] + temperature * S, S = (1 - sum_a pi(a)^index) / (index - 1),
    pi = tsallis_policy(q_values, temperature, index); the soft value at index 1

    Args:
      q_values: [..., A]; -inf where an action cannot be taken.
      temperature: a positive scalar.
      index: the entropic index, a Python number of at least 1.
    Returns: [...].
    Gradients: none.
    Source: Zhu et al., 2023, "General Munchausen reinforcement learning with Tsallis
      Kullback-Leibler divergence"; Tsallis, 1988, "Possible generalization of
      Boltzmann-Gibbs statistics".
    Example: `losses.tsallis_value(q_values, temperature)`
    """
    policy = tsallis_policy(q_values, temperature, index)
    surprise = -log_q(jnp.where(policy > 0, policy, 1), 2 - index)
    value = expected_value(jax.lax.stop_gradient(q_values), policy)
    return value + temperature * (policy * surprise).sum(-1)


@check_arguments
def tsallis_munchausen_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    q_values: Array,
    action: Array,
    next_q_values: Array,
    temperature: Array | float,
    scale: Array | float = 0.9,
    lowest: Array | float = -1.0,
    index: float = 2.0,
) -> Array:
    """Munchausen target with Tsallis entropy instead of Shannon's, MVI(q).

    td_target(reward + scale * max(temperature * log_q pi(action), lowest), ..., tsallis_value),
    log_q x = (x^(index - 1) - 1) / (index - 1), pi = tsallis_policy(q_values, ...)

    At index 1 it is `munchausen_target`. The paper's experiments use
    `q_advantage(q_values, action, pi)` as temperature * log_q pi(action): where pi is positive the
    two differ by a constant per state.

    Args:
      reward, terminated, action: [...].
      discount, scale: gamma and alpha, broadcast to [...].
      q_values, next_q_values: [..., A], of the state and of its successor, both from the target
        network.
      temperature: a positive scalar.
      lowest: lower bound on the scaled logarithm.
      index: the entropic index, a Python number of at least 1.
    Returns: [...].
    Gradients: none.
    Source: Zhu et al., 2023, "General Munchausen reinforcement learning with Tsallis
      Kullback-Leibler divergence".
    Example: `losses.tsallis_munchausen_target(reward, terminated, discount, q_values, action,
      next_q_values, temperature)`
    """
    prob = at_action(tsallis_policy(q_values, temperature, index), action)
    reward = reward + scale * jnp.maximum(temperature * log_q(prob, 2 - index), lowest)
    next_value = tsallis_value(next_q_values, temperature, index)
    return td_target(reward, terminated, discount, next_value)
