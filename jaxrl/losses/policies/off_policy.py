"""Off-policy evaluation: importance sampling and logged bandits.

Time is axis 0; trajectories, over which estimators average, are the last axis.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.advantages.recurrences import reverse_recurrence
from jaxrl.losses.policies.policy_gradients import importance_ratio
from jaxrl.losses.reductions import at_action, boltzmann_weights

__all__ = [
    "cumulative_ratio",
    "doubly_robust",
    "doubly_robust_bandit",
    "effective_sample_size",
    "implicit_exploration",
    "importance_sampling",
    "inverse_gap_weighting",
    "inverse_propensity",
    "pois",
    "truncated_ratio",
    "truncation_schedule",
]


@check_arguments
def truncated_ratio(log_prob: Array, old_log_prob: Array, maximum: Array | float = 1.0) -> Array:
    """Truncated importance ratio: some bias for much less variance.

    min(r, maximum), r = importance_ratio(log_prob, old_log_prob)

    Args:
      log_prob, old_log_prob: [...].
      maximum: broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped; 0 where the ratio is truncated.
    Source: Ionides, 2008, "Truncated importance sampling"; Espeholt et al., 2018, "IMPALA".
    Example: `losses.truncated_ratio(log_prob, old_log_prob, maximum=1.0)`
    """
    return jnp.minimum(importance_ratio(log_prob, old_log_prob), maximum)


def _log_likelihoods(log_prob: Array, old_log_prob: Array, mask: Array | None) -> list[Array]:
    """Return a trajectory's log-likelihood up to each step, under both policies."""
    if mask is not None:
        log_prob, old_log_prob = (jnp.where(mask, x, 0) for x in (log_prob, old_log_prob))
    return [log_prob.cumsum(0), old_log_prob.cumsum(0)]


@check_arguments
def cumulative_ratio(log_prob: Array, old_log_prob: Array, mask: Array | None = None) -> Array:
    """Importance ratio of a trajectory up to each step, a product over its actions.

    w[t] = prod_{u <= t} exp(log_prob[u] - old_log_prob[u]), at most exp(60)

    Args:
      log_prob, old_log_prob: [T, ...].
      mask: [T, ...], false after an episode's end; None: all steps count.
    Returns: [T, ...]; unchanged from the previous step where the mask is false.
    Gradients: none are stopped; 0 beyond the bound.
    Source: Precup et al., 2000, "Eligibility traces for off-policy policy evaluation", section 3.
    Example: `losses.cumulative_ratio(log_prob, old_log_prob)`
    """
    return importance_ratio(*_log_likelihoods(log_prob, old_log_prob, mask))


@check_arguments
def effective_sample_size(log_weight: Array, mask: Array | None = None) -> Array:
    """Effective sample size: how many equally weighted samples are worth the weighted ones.

    (sum_i w_i)^2 / sum_i w_i^2, w = exp(log_weight), over the last axis

    Args:
      log_weight: [..., N], logarithms of importance ratios, in any unit.
      mask: broadcasts to [..., N], true where a sample counts; None: everywhere.
    Returns: [...], between 1 and the number of samples; 0 where no sample counts.
    Gradients: none are stopped; this is a diagnostic, and a quantity to constrain.
    Source: Kong, 1992, "A note on importance sampling using standardized weights"; Owen, 2013,
      "Monte Carlo theory, methods and examples", section 9.3.
    Example: `losses.effective_sample_size(log_weight)`
    """
    squares = jnp.square(boltzmann_weights(log_weight, mask=mask)).sum(-1)
    some = squares > 0
    return jnp.where(some, 1 / jnp.where(some, squares, 1), 0)


@check_arguments
def importance_sampling(
    log_prob: Array,
    old_log_prob: Array,
    reward: Array,
    discount: Array | float,
    mask: Array | None = None,
    per_decision: bool = True,
    weighted: bool = False,
) -> Array:
    """Importance-sampling estimate of a policy's return from another policy's trajectories.

    mean_i sum_t gamma^t r[t, i] W[t, i], W[t] = w[t] per decision, else w[T - 1],
    w = cumulative_ratio(log_prob, old_log_prob, mask);
    weighted: W[t, i] is divided by mean_j W[t, j]

    Args:
      log_prob, old_log_prob, reward: [T, ..., N], of N trajectories that begin at step 0.
      discount: gamma, a scalar.
      mask: [T, ..., N], false after an episode's end; None: all steps count.
      per_decision: weight a reward only by the actions up to it: less variance, still unbiased.
      weighted: self-normalize the weights: biased but consistent, with much less variance.
    Returns: [...].
    Gradients: none are stopped.
    Source: Precup et al., 2000, "Eligibility traces for off-policy policy evaluation"; Thomas,
      2015, "Safe reinforcement learning", chapter 3 (weighted per-decision).
    Example: `losses.importance_sampling(log_prob, old_log_prob, reward, discount=0.9)`
    """
    likelihoods = _log_likelihoods(log_prob, old_log_prob, mask)
    if not per_decision:
        likelihoods = [jnp.broadcast_to(x[-1:], x.shape) for x in likelihoods]
    if weighted:  # from logarithms, since the ratio of a long trajectory underflows
        weight = boltzmann_weights(likelihoods[0] - likelihoods[1]) * reward.shape[-1]
    else:
        weight = importance_ratio(*likelihoods)
    if mask is not None:
        reward = jnp.where(mask, reward, 0)
    powers = jnp.cumprod(jnp.full(reward.shape, discount, reward.dtype).at[:1].set(1), axis=0)
    return (powers * reward * weight).sum(0).mean(-1)


@check_arguments
def doubly_robust(
    log_prob: Array,
    old_log_prob: Array,
    reward: Array,
    q_value: Array,
    value: Array,
    discount: Array | float,
    mask: Array | None = None,
) -> Array:
    """Doubly robust estimate of a policy's return: a model's, corrected by importance sampling.

    D[t] = V[t] + r[t] (reward[t] + gamma D[t + 1] - Q[t]), D after the end 0; r = importance_ratio

    It is unbiased if the ratios are correct, and also if Q and V are (with little variance then).

    Args:
      log_prob, old_log_prob, reward: [T, ...], of episodes that begin at step 0.
      q_value, value: [T, ...], a model's Q(s[t], a[t]), and V(s[t]) = E_{a ~ policy} Q(s[t], a).
      discount: gamma, broadcasts to [...].
      mask: [T, ...], false after an episode's end; None: all steps count.
    Returns: [...], one estimate per trajectory, to be averaged.
    Gradients: none are stopped.
    Source: Jiang and Li, 2016, "Doubly robust off-policy value evaluation for reinforcement
      learning", eq. 10.
    Example: `losses.doubly_robust(log_prob, old_log_prob, reward, q_value, value, discount=0.9)`
    """
    if mask is not None:
        log_prob, old_log_prob, reward, q_value, value = (
            jnp.where(mask, x, 0) for x in (log_prob, old_log_prob, reward, q_value, value)
        )
    ratio = importance_ratio(log_prob, old_log_prob)
    ended = jnp.zeros(ratio.shape, bool) if mask is None else jnp.logical_not(mask)

    def step(ratio, reward, q_value, value):
        return discount * ratio, value + ratio * (reward - q_value)

    estimates = reverse_recurrence(step, 0.0, ended, ratio, reward, q_value, value)
    return estimates[:1].sum(0)  # the estimate at step 0, or 0 if there are no steps


@check_arguments
def pois(
    log_prob: Array,
    old_log_prob: Array,
    episode_return: Array,
    renyi: Array,
    penalty: Array | float,
) -> Array:
    """POIS's loss: minus a lower bound on a policy's return, from importance sampling.

    -(mean_i w_i G_i - penalty * sqrt(mean_i exp(renyi_i) / N)), w = importance_ratio

    Args:
      log_prob, old_log_prob: [..., N], of trajectories (or of a hyper-policy's parameters).
      episode_return: [..., N], their returns G.
      renyi: [..., N] or [..., 1], the Renyi divergence of order 2 of the trajectories'
        distributions (new from old), estimated by its sum over each trajectory's steps, or exact.
      penalty: lambda, max |G| sqrt((1 - delta) / delta) for a bound with confidence 1 - delta.
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `episode_return`.
    Source: Metelli et al., 2018, "Policy optimization via importance sampling", section 5.
    Example: `losses.pois(log_prob, old_log_prob, episode_return, renyi, penalty=0.1)`
    """
    old_log_prob, episode_return = jax.lax.stop_gradient((old_log_prob, episode_return))
    weight = importance_ratio(log_prob, old_log_prob)
    second_moment = jnp.exp(jnp.minimum(renyi, 60.0)).mean(-1) / weight.shape[-1]
    return penalty * jnp.sqrt(second_moment) - (weight * episode_return).mean(-1)


@check_arguments
def truncation_schedule(discount: Array, horizon: int, budget: Array | float) -> Array:
    """Number of trajectories to run up to each step for the best estimate of a return.

    n[t] = budget * sqrt(c[t]) / sum_u sqrt(c[u]),
    c[t] = gamma^t (gamma^t + 2 sum_{t < u < T} gamma^u)

    It minimizes sum_t c[t] / n[t], the squared width of Hoeffding's interval for the estimate
    sum_t gamma^t (mean of the n[t] rewards of step t), with sum_t n[t] = budget steps in total.

    Args:
      discount: gamma, in (0, 1], a scalar.
      horizon: T, the full length.
      budget: total number of steps.
    Returns: [T], not rounded, decreasing in t: n[t] - n[t + 1] trajectories end after step t.
    Gradients: none are stopped.
    Source: Poiani et al., 2023, "Truncating trajectories in Monte Carlo reinforcement learning";
      the closed form is derived here from the width and the stationary point of its Lagrangian.
    Example: `losses.truncation_schedule(discount, horizon=5, budget=100.0)`
    """
    powers = jnp.cumprod(jnp.full(horizon, discount, discount.dtype).at[:1].set(1))
    later = jnp.cumsum(powers[::-1])[::-1] - powers
    root = jnp.sqrt(powers * (powers + 2 * later))
    return budget * root / root.sum()


@check_arguments
def inverse_propensity(
    log_prob: Array, old_log_prob: Array, reward: Array, maximum: float = jnp.inf
) -> Array:
    """Inverse propensity scoring (IPS): estimate a policy's value from logged bandit data.

    min(r, maximum) * reward, r = importance_ratio(log_prob, old_log_prob)

    Args:
      log_prob, old_log_prob, reward: [...]; log-probabilities of the logged actions under the
        policy and under the logging policy.
      maximum: the largest ratio, which trades bias for less variance.
    Returns: [...], whose mean is the estimate.
    Gradients: flow only into `log_prob`: minus the mean is a loss.
    Source: Horvitz and Thompson, 1952, "A generalization of sampling without replacement from a
      finite universe"; Bottou et al., 2013, "Counterfactual reasoning and learning systems".
    Example: `losses.inverse_propensity(log_prob, old_log_prob, reward).mean()`
    """
    old_log_prob, reward = jax.lax.stop_gradient((old_log_prob, reward))
    return truncated_ratio(log_prob, old_log_prob, maximum) * reward


@check_arguments
def doubly_robust_bandit(
    logits: Array, old_log_prob: Array, action: Array, reward: Array, q_values: Array
) -> Array:
    """Doubly robust estimate of a policy's value from logged bandit data and a reward model.

    sum_a p(a) Q(a) + p(action) / exp(old_log_prob) (reward - Q(action)), p = softmax(logits)

    Args:
      logits: [..., A], the policy's, unnormalized; -inf where an action cannot be taken.
      old_log_prob, reward: [...], of the logged actions; probabilities of the logging policy.
      action: [...], integers from 0 to A - 1.
      q_values: [..., A], modeled rewards, finite.
    Returns: [...], whose mean is the estimate.
    Gradients: flow only into `logits`: minus the mean is a loss.
    Source: Dudik et al., 2011, "Doubly robust policy evaluation and learning".
    Example: `losses.doubly_robust_bandit(logits, old_log_prob, action, reward, q_values).mean()`
    """
    q_values, reward = jax.lax.stop_gradient((q_values, reward))
    log_prob = at_action(jax.nn.log_softmax(logits), action)
    residual = reward - at_action(q_values, action)
    modeled = (jax.nn.softmax(logits) * q_values).sum(-1)
    return modeled + inverse_propensity(log_prob, old_log_prob, residual)


@check_arguments
def inverse_gap_weighting(
    q_values: Array, exploration: Array | float, mask: Array | None = None
) -> Array:
    """Inverse-gap-weighted exploration: the lower an action's predicted reward, the rarer it is.

    p(a) = 1 / (A + exploration * (Q(b) - Q(a))) for all actions but the best, b, which has the rest

    Args:
      q_values: [..., A], predicted rewards.
      exploration: gamma, at least 0: 0 is uniform, larger is greedier.
      mask: broadcasts to [..., A], true where an action is available (A counts these); None: all.
    Returns: [..., A], probabilities; all 0 where no action is available.
    Gradients: none flow into any argument.
    Source: Foster and Rakhlin, 2020, "Beyond UCB: optimal and efficient contextual bandits with
      regression oracles", algorithm 1 (SquareCB, stated for losses); Abe and Long, 1999,
      "Associative reinforcement learning using linear probabilistic concepts".
    Example: `losses.inverse_gap_weighting(q_values, exploration=10.0)`
    """
    mask = jnp.broadcast_to(True if mask is None else mask, q_values.shape) != 0
    q_values = jnp.where(mask, jax.lax.stop_gradient(q_values), -jnp.inf)
    best = q_values.argmax(-1)
    gap = jnp.where(mask, at_action(q_values, best)[..., None] - q_values, 0)
    number = jnp.maximum(mask.sum(-1, keepdims=True), 1).astype(q_values.dtype)
    is_best = mask & (jnp.arange(q_values.shape[-1]) == best[..., None])
    others = jnp.where(mask & ~is_best, 1 / (number + exploration * gap), 0)
    return jnp.where(is_best, 1 - others.sum(-1, keepdims=True), others)


@check_arguments
def implicit_exploration(
    prob: Array, action: Array, loss: Array, exploration: Array | float = 0.0
) -> Array:
    """Estimate every action's loss from that of the taken one, for exponential weights and FTRL.

    1[a = action] loss / (p(a) + exploration)

    Args:
      prob: [..., A], the probabilities from which the action was sampled.
      action: [...], integers from 0 to A - 1.
      loss: [...], of the taken action, at least 0.
      exploration: gamma, at least 0: 0 is unbiased importance weighting (Exp3); above 0 the
        estimate is biased low with bounded variance (Exp3-IX).
    Returns: [..., A].
    Gradients: none flow into any argument.
    Source: Kocak et al., 2014, "Efficient learning by implicit exploration in bandit problems with
      side observations"; Neu, 2015, "Explore no more".
    Example: `losses.implicit_exploration(prob, action, loss, exploration=0.1)`
    """
    prob, loss = jax.lax.stop_gradient((prob, loss))
    taken = jnp.arange(prob.shape[-1]) == action[..., None]
    bounded = jnp.where(taken, prob, 1) + exploration
    return jnp.where(taken, loss[..., None] / bounded, 0)
