"""Transformed rewards: shaping, combinations, constraints, and utilities of occupancies."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array

__all__ = [
    "gain_violation",
    "intervention_reward",
    "krc",
    "lagrangian_dual",
    "lagrangian_penalty",
    "occupancy_constraint",
    "occupancy_distance",
    "occupancy_entropy",
    "occupancy_regularized_reward",
    "potential_shaping",
    "tracking_reward",
    "utility_reward",
]


@check_arguments
def potential_shaping(
    reward: Array,
    potential: Array,
    next_potential: Array,
    terminated: Array,
    discount: Array | float,
) -> Array:
    """Potential-based reward shaping, which leaves the optimal policy unchanged.

    reward + gamma * next_potential - potential, next_potential 0 where terminated

    With `exploitation_value` of state and belief as the potential, this is predictive reward
    cashing.

    Args:
      reward, potential, next_potential, terminated: [...]; potentials of the state and of its
        successor (the true one, even where the episode was truncated).
      discount: gamma, the agent's own.
    Returns: [...].
    Gradients: none are stopped: stop them where potentials come from a network being trained.
    Source: Ng et al., 1999, "Policy invariance under reward transformations", theorem 1; Grzes,
      2017, "Reward shaping in episodic reinforcement learning" (terminal states have potential 0).
    Example: `losses.potential_shaping(reward, potential, next_potential, terminated, discount=0.9)`
    """
    return reward + discount * jnp.where(terminated, 0, next_potential) - potential


@check_arguments
def tracking_reward(error: Array, scale: Array, weight: Array) -> Array:
    """DeepMimic's reward for tracking a reference motion, near 1 while every error is small.

    sum_k weight_k exp(-scale_k |e_k|^2)

    Args:
      error: [..., K], the length |e_k| of each error (pose, velocity, end effectors, ...).
      scale: broadcasts to [..., K], sharpness of each term, nonnegative.
      weight: broadcasts to [..., K]; sums to 1 for a reward of at most 1.
    Returns: [...].
    Gradients: none are stopped.
    Source: Peng et al., 2018, "DeepMimic: example-guided deep reinforcement learning of
      physics-based character skills", section 5 (the imitation objective).
    Example: `losses.tracking_reward(error, scale, weight)`
    """
    return (weight * jnp.exp(-scale * jnp.square(error))).sum(-1)


@check_arguments
def krc(rewards: Array) -> Array:
    """Kinesthetic reward combination (KRC): a reward for doing well in all components at once.

    s (prod_i |r_i|)^(1 / n), s = 1 if all r_i > 0, else -1

    Args: rewards: [..., n], components of similar size.
    Returns: [...], the signed geometric mean; 0 where a component is 0.
    Gradients: none are stopped; 0 where a component is 0.
    Source: Moschopoulos et al., 2023, "Lucy-SKG: learning to play Rocket League efficiently using
      deep reinforcement learning".
    Example: `losses.krc(rewards)`
    """
    size = jnp.abs(rewards)
    full = (size > 0).all(-1)
    mean = jnp.exp(jnp.log(jnp.where(full[..., None], size, 1)).mean(-1))
    return jnp.where(full, jnp.where((rewards > 0).all(-1), mean, -mean), 0)


@check_arguments
def intervention_reward(intervened: Array, next_intervened: Array, penalty: Array) -> Array:
    """Reward of an agent corrected by an expert: a penalty for actions that made it step in.

    -penalty where the agent acted and the expert takes over at the next step, else 0

    Args:
      intervened: [...], true where the expert acted.
      next_intervened: [...], the same for the next step; false after an episode's last step.
      penalty: broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Luo et al., 2024, "RLIF: interactive imitation learning as reinforcement learning"; of
      the two steps, its published code too penalizes the one that led to the intervention.
    Example: `losses.intervention_reward(intervened, next_intervened, penalty)`
    """
    begins = jnp.logical_not(intervened) & next_intervened
    return jnp.where(begins, -penalty, 0)


@check_arguments
def occupancy_regularized_reward(
    reward: Array, log_ratio: Array, divergence: Array, strength: Array | float
) -> Array:
    """Proxy reward regularized against reward hacking: less where a base policy rarely goes.

    reward - strength * exp(log_ratio) / sqrt(divergence)

    It is the gradient, with respect to the policy's occupancy, of the objective to maximize: the
    return minus strength * sqrt(chi^2(occupancy || base occupancy)).

    Args:
      reward: [...], the proxy.
      log_ratio: [...], log of the policy's over the base's occupancy: a discriminator's logit. It
        is kept below 60 so that nothing overflows.
      divergence: a scalar, or broadcasts to [...]: chi^2, e.g. mean(exp(log_ratio)) - 1 over the
        policy's own steps.
      strength: lambda.
    Returns: [...]; the unchanged reward where `divergence` is not positive.
    Gradients: none flow into any argument, since this is a reward.
    Source: Laidlaw et al., 2025, "Correlated proxies: a new definition and improved mitigation for
      reward hacking" (occupancy-regularized policy optimization).
    Example: `losses.occupancy_regularized_reward(reward, log_ratio, divergence, strength=0.1)`
    """
    reward, log_ratio, divergence = jax.lax.stop_gradient((reward, log_ratio, divergence))
    far = divergence > 0
    root = jnp.sqrt(jnp.where(far, divergence, 1))
    return reward - jnp.where(far, strength * jnp.exp(jnp.minimum(log_ratio, 60.0)) / root, 0)


@check_arguments
def gain_violation(cost: Array, intensity: Array, bound: Array | float) -> Array:
    """Violation of an H-infinity constraint: an adversary's damage beyond what its effort allows.

    cost - bound * intensity

    Its mean is at most 0 where mean cost / mean intensity is at most the bound.

    Args:
      cost: [...], reduction of the best reward by a disturbance, at least 0.
      intensity: [...], the disturbance's size, at least 0: its (squared) norm.
      bound: eta, the maximum gain allowed.
    Returns: [...], the violation for `lagrangian_dual` and `lagrangian_penalty`.
    Gradients: none are stopped.
    Source: Long et al., 2024, "Learning H-infinity locomotion control" (the constraint); this
      linear form is derived here from the ratio.
    Example: `losses.gain_violation(cost, intensity, bound=2.0)`
    """
    return cost - bound * intensity


@check_arguments
def lagrangian_penalty(violation: Array, multiplier: Array) -> Array:
    """Lagrangian penalty in a policy's loss: a constraint's violation times its multiplier.

    multiplier * violation

    Args:
      violation: [...], at most 0 where the constraint holds: a cost minus its limit.
      multiplier: at least 0, broadcasts to [...]; learned with `lagrangian_dual`.
    Returns: [...].
    Gradients: flow only into `violation`.
    Source: Altman, 1999, "Constrained Markov decision processes"; Tessler et al., 2019, "Reward
      constrained policy optimization".
    Example: `losses.lagrangian_penalty(violation, multiplier).mean()`
    """
    return jax.lax.stop_gradient(multiplier) * violation


@check_arguments
def lagrangian_dual(violation: Array, multiplier: Array) -> Array:
    """Loss of a constraint's multiplier, which grows while the constraint is violated.

    -multiplier * violation

    Args:
      violation: [...], at most 0 where the constraint holds: a cost minus its limit, `cql` minus a
        threshold.
      multiplier: at least 0, broadcasts to [...], e.g. a softplus of a parameter.
    Returns: [...].
    Gradients: flow only into `multiplier`.
    Source: Altman, 1999, "Constrained Markov decision processes"; Tessler et al., 2019, "Reward
      constrained policy optimization"; for conservative Q-learning's weight Kumar et al., 2020,
      appendix F.
    Example: `losses.lagrangian_dual(violation, multiplier).mean()`
    """
    return -multiplier * jax.lax.stop_gradient(violation)


@check_arguments
def utility_reward(utility: Callable[[Array], Array], occupancy: Array) -> Array:
    """Reward whose policy gradient is that of a general utility of a policy's occupancy.

    dF / d occupancy, at the policy's occupancy

    Args:
      utility: F, a function from [..., K] to [...], to be maximized, e.g. `occupancy_entropy`.
      occupancy: [..., K], estimated discounted visits of states (or state-action pairs).
    Returns: [..., K], the reward of each state.
    Gradients: none flow through the reward.
    Source: Zhang et al., 2020, "Variational policy gradient method for reinforcement learning with
      general utilities"; Barakat et al., 2023, "Reinforcement learning with general utilities".
    Example: `losses.utility_reward(losses.occupancy_entropy, occupancy)`
    """
    occupancy = jax.lax.stop_gradient(occupancy)
    return jax.lax.stop_gradient(jax.grad(lambda x: utility(x).sum())(occupancy))


@check_arguments
def occupancy_entropy(occupancy: Array, least: float = 1e-6) -> Array:
    """Entropy of a policy's occupancy, a utility for exploration without rewards.

    -sum_k x_k log(max(x_k, least))

    Args:
      occupancy: [..., K], visits, at least 0.
      least: occupancies below it count as unvisited states, whose reward would be infinite.
    Returns: [...].
    Gradients: none are stopped.
    Source: Hazan et al., 2019, "Provably efficient maximum entropy exploration".
    Example: `losses.occupancy_entropy(occupancy)`
    """
    return -(occupancy * jnp.log(jnp.maximum(occupancy, least))).sum(-1)


@check_arguments
def occupancy_distance(occupancy: Array, expert_occupancy: Array) -> Array:
    """Negative squared distance between a policy's and an expert's occupancy, for imitation.

    -sum_k (x_k - e_k)^2 / 2

    Args: occupancy, expert_occupancy: [..., K].
    Returns: [...].
    Gradients: none flow into `expert_occupancy`.
    Source: Zhang et al., 2020, "Variational policy gradient method for reinforcement learning with
      general utilities" (imitation as a utility, here with the squared distance).
    Example: `losses.occupancy_distance(occupancy, expert_occupancy)`
    """
    return -0.5 * jnp.square(occupancy - jax.lax.stop_gradient(expert_occupancy)).sum(-1)


@check_arguments
def occupancy_constraint(
    occupancy: Array, reward: Array, cost: Array, limit: Array | float, weight: Array | float
) -> Array:
    """Return of a policy's occupancy minus a penalty for cost above a limit, a safe utility.

    sum_k x_k r_k - weight / 2 * max(sum_k x_k c_k - limit, 0)^2

    Args:
      occupancy: [..., K].
      reward, cost: [..., K], of each state.
      limit: the limit on the cost.
      weight: the weight of the penalty.
    Returns: [...].
    Gradients: flow only into `occupancy`.
    Source: Zhang et al., 2020, "Variational policy gradient method for reinforcement learning with
      general utilities" (constraints as a penalty, here quadratic).
    Example: `losses.occupancy_constraint(occupancy, reward, cost, limit=0.5, weight=1.0)`
    """
    reward, cost = jax.lax.stop_gradient((reward, cost))
    excess = jnp.maximum((occupancy * cost).sum(-1) - limit, 0)
    return (occupancy * reward).sum(-1) - 0.5 * weight * jnp.square(excess)
