"""Off-policy evaluation: the return of a policy from episodes that another one played.

Episodes are arrays [T, N], time first. `mask` is False after the end of an episode, and whatever
lies there has no influence. Estimates are of the discounted return within the recorded steps, so an
episode that a clock ended counts as ended; `empirical_model` and `fitted_q_evaluation` are of the
return without a clock.

`log_ratio` is log pi(a|s) - log b(a|s) of the evaluated policy pi and the behavior policy b, which
must be those of the recorded actions. Where b never takes an action that pi takes, no estimator
here sees what is missing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array


def importance_sampling(
    log_ratio: Array,
    reward: Array,
    mask: Array,
    discount: Array | float,
    *,
    per_decision: bool = True,
    weighted: bool = False,
) -> Array:
    """Estimate a policy's return by importance sampling.

    mean_i sum_t discount^t w_i,t r_i,t

    per_decision: whether the weight w of a reward is the product of the ratios up to its own step;
        otherwise it is that of the whole episode.
    weighted: whether the weights of each step are divided by their mean over episodes, which is
        biased, consistent, and bounded by the largest reward. Episodes that have ended keep their
        weight.

    log_ratio, reward: float32 [T, N]. mask: bool [T, N]. Returns a scalar.

    Source: Precup, Sutton and Singh, 2000, "Eligibility traces for off-policy policy evaluation".
    """
    check_episodes(mask, log_ratio=log_ratio, reward=reward)
    log_weight = cumulative_log_ratios(log_ratio, mask)
    if not per_decision:
        log_weight = jnp.broadcast_to(log_weight[-1], log_weight.shape)
    weight = _weights(log_weight, weighted)
    return (_discounts(reward, discount) * weight * jnp.where(mask, reward, 0)).sum(0).mean()


def doubly_robust(
    log_ratio: Array,
    reward: Array,
    q_value: Array,
    value: Array,
    mask: Array,
    discount: Array | float,
    *,
    weighted: bool = False,
) -> Array:
    """Estimate a policy's return from values of it, corrected by importance sampling.

    mean_i sum_t discount^t (w_i,t (r_i,t - Q(s_i,t, a_i,t)) + w_i,t-1 V(s_i,t)), w_i,-1 = 1

    Unbiased whatever the values are if the ratios are right, and exact without noise if the values
    are and nothing is random. V must be the mean of Q under the evaluated policy.

    log_ratio, reward, q_value, value: float32 [T, N], values of what remains of the recorded steps.
    mask: bool [T, N]. weighted: as in `importance_sampling`. Returns a scalar.

    Source: Jiang and Li, 2016, "Doubly robust off-policy value evaluation for reinforcement
        learning", arXiv:1511.03722 (there as a recursion); weighted: Thomas and Brunskill, 2016,
        "Data-efficient off-policy policy evaluation for reinforcement learning", arXiv:1604.00923.
    """
    check_episodes(mask, log_ratio=log_ratio, reward=reward, q_value=q_value, value=value)
    log_weight = cumulative_log_ratios(log_ratio, mask)
    before = jnp.concatenate([jnp.zeros_like(log_weight[:1]), log_weight[:-1]])
    weight, earlier = (_weights(x, weighted) for x in (log_weight, before))
    terms = weight * jnp.where(mask, reward - q_value, 0) + earlier * jnp.where(mask, value, 0)
    return (_discounts(reward, discount) * terms).sum(0).mean()


def effective_sample_size(log_ratio: Array, mask: Array) -> Array:
    """Return how many of the N episodes count, from 1 to N: (sum w)^2 / sum w^2 of their weights; 0
    if no episode has a weight.

    Source: Kong, 1992, "A note on importance sampling using standardized weights".
    """
    check_episodes(mask, log_ratio=log_ratio)
    weight = losses.boltzmann_weights(cumulative_log_ratios(log_ratio, mask)[-1])
    squares = jnp.square(weight).sum()
    return jnp.where(squares > 0, 1 / jnp.where(squares > 0, squares, 1), 0)


def cumulative_log_ratios(log_ratio: Array, mask: Array) -> Array:
    """Return the sums [T, N] of log-ratios up to each step; after its end an episode keeps its
    own."""
    return jnp.cumsum(jnp.where(mask, log_ratio, 0), 0)


def fitted_q_evaluation(
    features: Array,
    reward: Array,
    next_features: Array,
    discount: Array | float,
    *,
    iterations: int = 100,
    ridge: float = 1e-6,
) -> Array:
    """Fit the Q function of a policy, linear in features: Q(s, a) = features . weights [D].

    Each iteration is a least-squares regression on r + discount Q(s', a' ~ pi) of the last one.

    features: float32 [M, D], of recorded states and actions. reward: [M].
    next_features: [M, D], the mean of the features of (s', a') over the actions of the evaluated
        policy; zeros where the step terminated. They go on where a clock ended the episode.
    ridge: added to the diagonal of the mean of the features' outer products.

    Features that are one-hot make this the evaluation in the `empirical_model`. Raises `UserError`
    for arrays that do not fit, and for less than one iteration.

    Source: Le, Voloshin and Yue, 2019, "Batch policy learning under constraints", arXiv:1903.08738
        (algorithm FQE).
    """
    if features.ndim != 2 or features.shape != next_features.shape:
        raise UserError(
            f"features and next_features must both be [M, D], got {list(features.shape)} and "
            f"{list(next_features.shape)}."
        )
    if reward.shape != features.shape[:1]:
        raise UserError(f"reward must be [{len(features)}], got {list(reward.shape)}.")
    if iterations < 1:
        raise UserError(f"iterations must be at least 1, got {iterations}.")
    rows, size = features.shape
    system = features.T @ features / rows + ridge * jnp.eye(size)
    factor = jax.scipy.linalg.cho_factor(system)
    solve = lambda y: jax.scipy.linalg.cho_solve(factor, features.T @ y / rows)
    known, following = solve(reward), solve(next_features)

    def body(_, weights: Array) -> Array:
        return known + discount * following @ weights

    return jax.lax.fori_loop(0, iterations, body, jnp.zeros(size))


def empirical_model(
    state: Array,
    action: Array,
    reward: Array,
    next_state: Array,
    terminated: Array,
    states: int,
    actions: int,
) -> tuple[Array, Array]:
    """Return the transition tensor [S, A, S] and the mean reward [S, A] of recorded steps [M]: the
    model with which `exact.dynamic_programming.policy_evaluation` evaluates any policy.

    state, action, next_state: int [M]. terminated: bool [M]; rows of the tensor sum to the share of
    steps that went on. What was never tried ends the episode with a reward of 0.
    """
    at = jnp.zeros((states, actions))
    visits = at.at[state, action].add(1.0)
    shape = jnp.zeros((states, actions, states))
    moves = shape.at[state, action, next_state].add(jnp.where(terminated, 0.0, 1.0))
    count = jnp.maximum(visits, 1.0)
    return moves / count[..., None], at.at[state, action].add(reward) / count


def check_episodes(mask: Array, **arrays: Array) -> None:
    """Raise `UserError` unless there is a step, and all arrays have the mask's shape [T, N]."""
    if mask.ndim != 2 or not mask.size:
        raise UserError(f"Episodes must be [T, N] with a step at least, got {list(mask.shape)}.")
    for name, array in arrays.items():
        if array.shape != mask.shape:
            raise UserError(f"{name} is {list(array.shape)}, but the mask {list(mask.shape)}.")


def _weights(log_weight: Array, weighted: bool) -> Array:
    """Return the weights [T, N] of logarithms, with a mean of 1 at each step if `weighted`, or 0
    where no episode has a weight."""
    if weighted:
        return losses.boltzmann_weights(log_weight) * log_weight.shape[-1]
    return jnp.exp(log_weight)


def _discounts(reward: Array, discount: Array | float) -> Array:
    """Return the powers of the discount of each step, [T, 1]."""
    return jnp.power(discount, jnp.arange(len(reward), dtype=jnp.float32))[:, None]
