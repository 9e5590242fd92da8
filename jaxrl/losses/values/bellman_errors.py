"""Losses that follow the true gradient of a Bellman error, not a semi-gradient.

The Bellman error of a state is the expectation of `td_error` over its successors. Its gradient
needs that expectation, so a second estimate, `dual`, is learned along with the value: minimize
`squared_error(dual, td_error(...))` for the dual, and one of the losses below for the value.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import masked_mean

__all__ = [
    "absolute_bellman",
    "excess_bellman_error",
    "gradient_correction",
    "residual_gradient",
    "robust_bellman",
    "td_error",
]


@check_arguments
def td_error(
    value: Array, reward: Array, terminated: Array, discount: Array | float, next_value: Array
) -> Array:
    """Temporal-difference error: how much better than estimated a step turned out.

    reward + discount * next_value - value, next_value 0 where terminated

    Args:
      value, reward, next_value: [...].
      terminated: [...], true where the value ends.
      discount: gamma, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped: they also flow into `next_value`.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 6.5.
    Example: `losses.td_error(value, reward, terminated, discount, next_value)`
    """
    return reward + discount * jnp.where(terminated, 0, next_value) - value


@check_arguments
def residual_gradient(
    value: Array, reward: Array, terminated: Array, discount: Array | float, next_value: Array
) -> Array:
    """Residual-gradient loss: the squared TD error with gradients through both of its values.

    td_error^2 / 2. In a stochastic environment its minimum is not the true value, unless the two
    gradients come from two independent successors of the same step.

    Args:
      value, reward, next_value: [...]; both values depend on the learned parameters.
      terminated: [...], true where the value ends.
      discount: gamma, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Baird, 1995, "Residual algorithms: reinforcement learning with function approximation".
    Example: `losses.residual_gradient(value, reward, terminated, discount, next_value).mean()`
    """
    return 0.5 * jnp.square(td_error(value, reward, terminated, discount, next_value))


@check_arguments
def robust_bellman(td_error: Array, dual: Array, threshold: Array | float = float("inf")) -> Array:
    """Huber or squared Bellman error as a saddle point: loss of the value, given its dual.

    h * td_error - h^2 / 2, h = clip(dual, -threshold, threshold): for the best h with
    |h| <= threshold this is the Huber error of E[td_error]. Without a threshold it is the squared
    error, and its update is GTD2's.

    Args:
      td_error: [...], from `td_error`, with its gradient.
      dual: [...], an estimate of E[td_error] given the state, from `squared_error(dual, td_error)`.
      threshold: where the Huber error becomes linear, broadcasts to [...].
    Returns: [...].
    Gradients: flow only into `td_error`: h.
    Source: Patterson et al., 2022, "Robust losses for learning value functions"; Sutton et al.,
      2009, "Fast gradient-descent methods for temporal-difference learning with linear function
      approximation" (GTD2). The optimality of the clipped estimate is derived here: it maximizes a
      parabola on an interval.
    Example: `losses.robust_bellman(td_error, dual, threshold=1.0).mean()`
    """
    dual = jax.lax.stop_gradient(jnp.clip(dual, -threshold, threshold))
    return dual * td_error - 0.5 * jnp.square(dual)


@check_arguments
def absolute_bellman(td_error: Array, dual: Array) -> Array:
    """Absolute Bellman error as a saddle point: loss of the value, given its dual.

    sign(dual) * td_error, which is |E[td_error]| in expectation if the dual's sign is right

    Args:
      td_error: [...], from `td_error`, with its gradient.
      dual: [...], an estimate of E[td_error] given the state, from `squared_error(dual, td_error)`.
    Returns: [...].
    Gradients: flow only into `td_error`.
    Source: Patterson et al., 2022, "Robust losses for learning value functions"; derived here from
      |x| = max of h x over -1 <= h <= 1.
    Example: `losses.absolute_bellman(td_error, dual).mean()`
    """
    return jax.lax.stop_gradient(jnp.sign(dual)) * td_error


@check_arguments
def gradient_correction(value: Array, td_error: Array, dual: Array) -> Array:
    """Gradient correction that turns the saddle-point update into TD learning (TDC).

    -(td_error - dual) * value, to add to `robust_bellman`: their gradients sum to
    -td_error * grad value + discount * dual * grad next_value, the update of TDC. If the dual is
    right this term is 0 in expectation; it makes learning as fast as with a semi-gradient.

    Args: value, td_error, dual: [...].
    Returns: [...]; only its gradient is meaningful.
    Gradients: flow only into `value`.
    Source: Sutton et al., 2009, "Fast gradient-descent methods for temporal-difference learning
      with linear function approximation" (TDC).
    Example: `losses.gradient_correction(value, td_error, dual).mean()`
    """
    return -jax.lax.stop_gradient(td_error - dual) * value


@check_arguments
def excess_bellman_error(
    value: Array, target: Array, candidates: Array, mask: Array | None = None
) -> Array:
    """Excess Bellman error: inconsistency of a function beyond what noise alone explains.

    mean_n (value_n - target_n)^2 - min_k mean_n (candidates_nk - target_n)^2

    The mean squared error of noisy targets includes their variance. So does that of the candidate
    that fits them best, and the difference is 0 for a function that is its own backup.

    Args:
      value: [...], f(s, a) on the data.
      target: [...], the backup of the same f, e.g. by `td_target`, under the evaluated policy.
      candidates: [..., K], values on the data of the K functions of a class; with f among them the
        result is nonnegative. (If the class is a network, K = 1, trained to fit the target.)
      mask: [...], true where an element counts; None: everywhere.
    Returns: a scalar. Bellman-consistent pessimism searches for the f with the lowest initial value
      among those for which it is small (or adds it times a weight).
    Gradients: flow into `value`, `target` and the best candidate, since the target moves with f.
    Source: Xie et al., 2021, "Bellman-consistent pessimism for offline reinforcement learning";
      Antos et al., 2008, "Learning near-optimal policies with Bellman-residual minimization based
      fitted policy iteration and a single sample path" (the idea of the second term).
    Example: `losses.excess_bellman_error(value, target, candidates, mask)`
    """
    if mask is not None:  # before the squares: NaN would come back through them
        value, target = jnp.where(mask, value, 0), jnp.where(mask, target, 0)
        candidates = jnp.where(mask[..., None], candidates, 0)
    own = masked_mean(jnp.square(value - target), mask)
    fits = jnp.square(candidates - target[..., None])
    batch = tuple(range(value.ndim))
    return own - masked_mean(fits, None if mask is None else mask[..., None], batch).min(-1)
