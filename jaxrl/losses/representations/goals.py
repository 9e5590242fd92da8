"""Goal-conditioned values as negative distances, direction rewards, and the choice of goals."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import unit_vector
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "action_free_expectile",
    "direction_reward",
    "goal_difficulty",
    "goal_direction",
    "goal_target",
    "goal_value",
    "vip",
]


@check_arguments
def goal_value(distance: Array, discount: Array | float) -> Array:
    """Value of a goal at a distance in steps, each of which costs 1.

    -(1 - discount^distance) / (1 - discount), or -distance where the discount is 1

    Args:
      distance: [...], steps to the goal, nonnegative: a quasimetric or a latent distance.
      discount: in (0, 1], broadcasts to [...].
    Returns: [...].
    Gradients: flow into `distance`.
    Source: derived here as the sum of `distance` discounted rewards of -1; undiscounted, this is
      the goal-reaching value of Wang et al., 2023, "Optimal goal-reaching reinforcement learning
      via quasimetric learning".
    Example: `losses.goal_value(distance, discount=0.99)`
    """
    discount = jax.lax.stop_gradient(jnp.asarray(discount, distance.dtype))
    discounted = discount < 1
    rate = jnp.where(discounted, discount, 0.5)
    shrunk = jnp.expm1(distance * jnp.log(rate)) / (1 - rate)
    return jnp.where(discounted, shrunk, -distance)


@check_arguments
def goal_target(reached: Array, next_value: Array, discount: Array | float) -> Array:
    """Temporal-difference target of a goal's value, where each step costs 1 until it is reached.

    0 where reached, else -1 + discount * next_value

    With options of n steps as the steps, this is option-aware (OTA): `reached` within the n steps,
    else `next_value` n steps later; the discount counts options, which brings far goals near.

    Args:
      reached: [...], true where the goal is reached here (or during the option).
      next_value: [...], the target network's V(s', g).
      discount: per step (or per option), broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Park et al., 2024, "Foundation policies with Hilbert representations" (the published
      code's one-step target); Ahn et al., 2025, "Option-aware temporally abstracted value for
      offline goal-conditioned reinforcement learning" (options; their reward is derived here).
    Example: `losses.goal_target(reached, next_value, discount=0.99)`
    """
    return jax.lax.stop_gradient(jnp.where(reached, 0, discount * next_value - 1))


@check_arguments
def action_free_expectile(
    value: Array, target: Array, advantage: Array, expectile: Array | float
) -> Array:
    """HIQL's action-free expectile loss, whose side is chosen by a separate advantage.

    |expectile - 1(advantage < 0)| (target - value)^2

    With advantage = target - value it is `expectile_error`.

    Args:
      value, target: [...], of one member of an ensemble.
      advantage: [...], estimated by the target networks (target - V of the ensemble).
      expectile: in (0, 1), broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `target` or `advantage`.
    Source: Park et al., 2023, "HIQL: Offline goal-conditioned RL with latent states as actions";
      Park et al., 2024, "Foundation policies with Hilbert representations" (published code).
    Example: `losses.action_free_expectile(value, target, advantage, expectile=0.95).mean()`
    """
    weight = jnp.where(advantage < 0, 1 - expectile, expectile).astype(value.dtype)
    return weight * jnp.square(jax.lax.stop_gradient(target) - value)


@check_arguments
def direction_reward(latent: Array, next_latent: Array, direction: Array) -> Array:
    """HILP's reward for moving through latent space in a given direction.

    <phi(s') - phi(s), z>

    Args: latent, next_latent, direction: [..., D], phi(s), phi(s') and z, of length 1.
    Returns: [...]; the sum along a path depends only on its ends.
    Gradients: none.
    Source: Park et al., 2024, "Foundation policies with Hilbert representations".
    Example: `losses.direction_reward(latent, next_latent, direction)`
    """
    return jax.lax.stop_gradient(((next_latent - latent) * direction).sum(-1))


@check_arguments
def goal_direction(latent: Array, goal_latent: Array) -> Array:
    """HILP's prompt for a goal: the direction toward it in latent space.

    (phi(g) - phi(s)) / |phi(g) - phi(s)|

    Args: latent, goal_latent: [..., D].
    Returns: [..., D]; 0 at the goal.
    Gradients: none.
    Source: Park et al., 2024, "Foundation policies with Hilbert representations".
    Example: `losses.goal_direction(latent, goal_latent)`
    """
    return jax.lax.stop_gradient(unit_vector(goal_latent - latent))


@check_arguments
def vip(
    first_value: Array,
    value: Array,
    next_value: Array,
    reward: Array,
    discount: float,
    mask: Array | None = None,
) -> Array:
    """Value-implicit pre-training (VIP): latents in which videos smoothly approach their goal.

    -(1 - discount) mean_b V(o_0, g) + log mean_b exp(-(r + discount V(o', g) - V(o, g)))

    Args:
      first_value, value, next_value: [..., B], minus the latent distance to the goal frame, for
        the first frame, a frame and the next one.
      reward: [..., B], 0 where the frame is the goal, else -1.
      discount: gamma.
      mask: [..., B], true where a sample counts; None: everywhere.
    Returns: [...]; 0 where no sample counts.
    Gradients: none flow into `reward`.
    Source: Ma et al., 2023,
      "VIP: Towards universal visual reward and representation via value-implicit pre-training" (as
      in the published code).
    Example: `losses.vip(first_value, value, next_value, reward, discount=0.98)`
    """
    surprise = value - discount * next_value - jax.lax.stop_gradient(reward)
    allowed = _full_mask(value, mask)
    number = allowed.sum(-1)
    counted = jnp.maximum(number, 1).astype(value.dtype)
    # If no sample counts, a zero stands in to avoid the logarithm of 0.
    empty = (number == 0)[..., None]
    surprise = jnp.where(allowed, surprise, jnp.where(empty, 0, -jnp.inf))
    excess = jax.nn.logsumexp(surprise, axis=-1) - jnp.log(counted)
    attraction = masked_mean(first_value, allowed, axis=-1)
    return jnp.where(number > 0, excess - (1 - discount) * attraction, 0)


@check_arguments
def goal_difficulty(
    success: Array,
    alpha: Array | float = 2.0,
    beta: Array | float = 2.0,
    *,
    sharpness: Array | float = 10.0,
) -> Array:
    """SVGG's log-density of goals up to a constant, which favors intermediate difficulty.

    sharpness Beta(p; alpha, beta), p the predicted probability of reaching the goal

    Its gradient with respect to the goal, through the success predictor, is the score for `svgd`.

    Args:
      success: [...], in [0, 1]; clipped to (0, 1) by the machine epsilon.
      alpha, beta: broadcast to [...]; if equal and above 1, goals of medium difficulty are favored.
      sharpness: broadcast to [...], >= 0; inverse of a temperature.
    Returns: [...].
    Gradients: none are stopped; 0 where the predictor is saturated.
    Source: Castanet et al., 2023, "Stein variational goal generation for adaptive exploration in
      multi-goal reinforcement learning"; the density itself, with a sharpness of 10, is the energy
      in the authors' code.
    Example: `losses.goal_difficulty(success)`
    """
    epsilon = float(jnp.finfo(success.dtype).eps)
    p = jnp.clip(success, epsilon, 1 - epsilon)
    alpha, beta = jnp.asarray(alpha, p.dtype), jnp.asarray(beta, p.dtype)
    normalizer = jax.scipy.special.betaln(alpha, beta)
    log_density = (alpha - 1) * jnp.log(p) + (beta - 1) * jnp.log1p(-p) - normalizer
    return sharpness * jnp.exp(log_density)
