"""Losses of values and their targets, one value per element; the caller averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import masked_mean

__all__ = [
    "average_reward_target",
    "clipped_squared_error",
    "expectile_error",
    "explained_variance",
    "huber",
    "hybrid_critic",
    "prediction_error",
    "reward_rate",
    "squared_error",
    "td_target",
]


@check_arguments
def squared_error(value: Array, target: Array) -> Array:
    """Half the squared distance to a target.

    (value - target)^2 / 2

    Args: value, target: [...].
    Returns: [...].
    Gradients: none flow into `target` (the semi-gradient of temporal-difference learning).
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 9.1 and section 9.3.
    Example: `losses.squared_error(value, target).mean()`
    """
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


@check_arguments
def clipped_squared_error(
    value: Array, old_value: Array, target: Array, clip: Array | float
) -> Array:
    """Squared error with no benefit from leaving the neighborhood of an old value (PPO).

    max(squared_error(value, target), squared_error(clip(value, old - clip, old + clip), target))

    Args:
      value, old_value, target: [...].
      clip: radius of the neighborhood of `old_value`; infinite: exactly the plain squared error.
    Returns: [...].
    Gradients: none flow into `old_value` or `target`.
    Source: Engstrom et al., 2020, "Implementation matters in deep policy gradients", section 3,
      following the published code of PPO.
    Example: `losses.clipped_squared_error(value, old_value, target, clip=0.2).mean()`
    """
    old_value = jax.lax.stop_gradient(old_value)
    near = jnp.clip(value, old_value - clip, old_value + clip)
    return jnp.maximum(squared_error(value, target), squared_error(near, target))


@check_arguments
def prediction_error(prediction: Array, target: Array, order: int = 2) -> Array:
    """Error of a predicted vector (latent, observation, noise, ...), averaged over its features.

    mean_d |prediction_d - stop(target_d)|^order

    The target determines the loss: a target encoder's latents give a joint-embedding predictive
    loss (JEPA); the next latent, forward modeling; observations, an autoencoder's reconstruction
    error; noise, a clean sample, `diffusion.v_target` or a flow's velocity, the loss of a denoiser
    (DDPM, which writes the sum); a fixed random network's output, random network distillation
    (RND), whose bonus is the same error with its gradient stopped.

    Args:
      prediction, target: [..., D].
      order: 1 (absolute) or 2 (squared).
    Returns: [...].
    Gradients: none flow into `target`; 0 where it is met.
    Source: Assran et al., 2023, "Self-supervised learning from images with a joint-embedding
      predictive architecture" (order 2); Bardes et al., 2024, "Revisiting feature prediction for
      learning visual representations from video" (order 1); Ho et al., 2020, "Denoising diffusion
      probabilistic models", eq. 14; Burda et al., 2019, "Exploration by random network
      distillation", section 2.2.
    Example: `losses.prediction_error(prediction, target, order=1).mean()`
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, not {order}")
    difference = prediction - jax.lax.stop_gradient(target)
    return (jnp.abs(difference) if order == 1 else jnp.square(difference)).mean(-1)


@check_arguments
def huber(value: Array, target: Array, threshold: Array | float = 1.0) -> Array:
    """Squared error near the target, absolute error away from it.

    d^2 / 2 where |d| <= threshold, else threshold * (|d| - threshold / 2), d = value - target

    Args:
      value, target: [...].
      threshold: where the gradient stops growing, broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `target`.
    Source: Huber, 1964, "Robust estimation of a location parameter"; Mnih et al., 2015,
      "Human-level control through deep reinforcement learning" (clipped errors).
    Example: `losses.huber(value, target).mean()`
    """
    distance = jnp.abs(value - jax.lax.stop_gradient(target))
    near = 0.5 * jnp.square(jnp.minimum(distance, threshold))
    # Select, do not add: in a sum the gradients +threshold and -threshold would cancel, and a large
    # threshold would swamp the distance.
    return jnp.where(distance < threshold, near, threshold * (distance - 0.5 * threshold))


@check_arguments
def expectile_error(value: Array, target: Array, expectile: Array | float) -> Array:
    """Asymmetric squared error, minimized by an expectile of the targets.

    |expectile - 1(target < value)| * (target - value)^2

    Args:
      value, target: [...].
      expectile: in (0, 1), broadcasts to [...]; 0.5 is least squares, toward 1 it approaches the
        maximum.
    Returns: [...].
    Gradients: none flow into `target`.
    Source: Kostrikov et al., 2022, "Offline reinforcement learning with implicit Q-learning",
      eq. 5; Newey and Powell, 1987, "Asymmetric least squares estimation and testing".
    Example: `losses.expectile_error(value, target, expectile=0.7).mean()`
    """
    difference = jax.lax.stop_gradient(target) - value
    weight = jnp.where(difference < 0, 1 - expectile, expectile)
    return weight * jnp.square(difference)


@check_arguments
def explained_variance(value: Array, target: Array) -> Array:
    """Fraction of the targets' variance that values explain: 1 is perfect, 0 explains nothing.

    1 - Var(target - value) / Var(target), over all axes

    Args: value, target: [...], the same shape.
    Returns: a scalar; 0 if `target` is constant up to rounding.
    Gradients: none are stopped; this is a diagnostic, not a loss.
    Source: common usage, the coefficient of determination without its bias term.
    Example: `losses.explained_variance(value, target)`
    """
    variance = jnp.var(target)
    varies = variance > 1e-10 * jnp.square(target).mean()
    return jnp.where(varies, 1 - jnp.var(target - value) / jnp.where(varies, variance, 1), 0)


@check_arguments
def td_target(
    reward: Array, terminated: Array, discount: Array | float, next_value: Array
) -> Array:
    """Temporal-difference target: the reward plus the discounted value of the successor.

    reward + discount * next_value, next_value 0 where terminated. If `next_value` is the Q-value of
    the next action taken, this is Sarsa's target; of a target actor's action, DDPG's; if it is an
    implicit value (`expectile_error`), the target of implicit Q-learning's critic.

    Args:
      reward: [...].
      terminated: [...], true where the value ends, but not where an episode was truncated.
      discount: gamma, broadcasts to [...].
      next_value: [...], of the true successor; it has no influence where terminated.
    Returns: [...].
    Gradients: none.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 6.2 and 6.7 (Sarsa).
    Example: `losses.td_target(reward, terminated, discount, next_value)`
    """
    return jax.lax.stop_gradient(reward + discount * jnp.where(terminated, 0, next_value))


@check_arguments
def average_reward_target(reward: Array, average_reward: Array, next_value: Array) -> Array:
    """Target of a differential value, the excess over the average reward from here on.

    reward - average_reward + next_value

    Args:
      reward, next_value: [...]; the latter is the successor's differential value.
      average_reward: rho, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 10.10; Saxena et al., 2023,
      "Off-policy average reward actor-critic with deterministic policy search", eq. 24 (with the
      smaller of two target critics as `next_value`).
    Example: `losses.average_reward_target(reward, average_reward, next_value)`
    """
    return jax.lax.stop_gradient(reward - average_reward + next_value)


@check_arguments
def reward_rate(average_reward: Array, reward: Array, value: Array, next_value: Array) -> Array:
    """Loss of a learned average reward; its descent is the update of differential TD learning.

    (reward - average_reward + next_value - value)^2 / 2

    Args:
      average_reward: rho, broadcasts to [...].
      reward, value, next_value: [...]; values are differential.
    Returns: [...].
    Gradients: flow only into `average_reward`: minus the differential error.
    Source: Wan et al., 2021, "Learning and planning in average-reward Markov decision
      processes"; Saxena et al., 2023, "Off-policy average reward actor-critic with deterministic
      policy search", eq. 25.
    Example: `losses.reward_rate(average_reward, reward, value, next_value).mean()`
    """
    return squared_error(average_reward, reward + next_value - value)


@check_arguments
def hybrid_critic(
    value: Array,
    returns: Array,
    offline_value: Array,
    offline_target: Array,
    weight: Array | float = 1.0,
    mask: Array | None = None,
    offline_mask: Array | None = None,
) -> Array:
    """Critic loss that combines on-policy returns with Bellman errors on an offline dataset.

    weight * mean((value - returns)^2 / 2) + mean((offline_value - offline_target)^2 / 2)

    Args:
      value, returns: [...], on-policy: the critic and Monte Carlo returns.
      offline_value, offline_target: offline, of another shape [...]: the critic and e.g.
        `td_target`.
      weight: lambda, weight of the on-policy part.
      mask, offline_mask: true where an element counts; None: everywhere.
    Returns: a scalar.
    Gradients: flow into `value` and `offline_value`.
    Source: Zhou et al., 2024, "Offline data enhanced on-policy policy gradient with provable
      guarantees", algorithm 2 (without the factors 1/2).
    Example: `losses.hybrid_critic(value, returns, offline_value, offline_target, weight)`
    """

    def error(value, target, mask):
        # Mask before the square as well: NaN times the gradient 0 would be NaN.
        counts = True if mask is None else mask
        value, target = jnp.where(counts, value, 0), jnp.where(counts, target, 0)
        return masked_mean(squared_error(value, target), mask)

    return weight * error(value, returns, mask) + error(offline_value, offline_target, offline_mask)
