"""Risk measures and losses for risk-averse learning.

All measures apply to costs, where large is bad; for returns, pass their negative. `tail` is the
share of worst outcomes that count: 0.05 where others write a level of 0.95.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "cost_sensitive_reward",
    "cvar",
    "cvar_advantage",
    "ecrm_cost",
    "entropic_risk",
    "evar_score",
    "expected_shortfall_score",
    "itakura_saito",
    "risk_averse_utility",
    "value_at_risk",
    "variance_score",
]

# Beyond this an exponential continues as its tangent: nothing overflows and no gradient is lost.
LINEAR_FROM = 30.0


def _expm1(x: Array) -> Array:
    """Return exp(x) - 1, continued as its tangent beyond LINEAR_FROM (still convex)."""
    beyond = jnp.maximum(x - LINEAR_FROM, 0)
    return jnp.expm1(jnp.minimum(x, LINEAR_FROM)) + math.exp(LINEAR_FROM) * beyond


@check_arguments
def value_at_risk(cost: Array, tail: Array | float, mask: Array | None = None) -> Array:
    """Value at risk: the cost that only the worst share of outcomes exceeds, a quantile.

    min {v: mean(cost > v) <= tail}

    Args:
      cost: [..., N], samples of one distribution.
      tail: the share of worst outcomes, in (0, 1].
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...]; 0 where no sample counts.
    Gradients: flow into the sample that is the quantile.
    Source: Rockafellar and Uryasev, 2000, "Optimization of conditional value-at-risk", eq. 2.
    Example: `losses.value_at_risk(cost, tail=0.3, mask=mask)`
    """
    allowed = _full_mask(cost, mask)
    number = allowed.sum(-1, keepdims=True)
    ordered = -jnp.sort(jnp.where(allowed, -cost, jnp.inf))  # worst first, the masked last
    # Number of costs that may exceed it, rounded up a little so that floor(0.3 * 10) is 3.
    above = jnp.floor(number * tail * (1 + 1e-6)).astype(int)
    chosen = jnp.clip(above, 0, jnp.maximum(number - 1, 0))
    found = jnp.take_along_axis(ordered, chosen, -1)
    return jnp.where(number > 0, found, 0)[..., 0]


@check_arguments
def cvar(cost: Array, tail: Array | float, mask: Array | None = None) -> Array:
    """Conditional value at risk (expected shortfall): the mean of the worst share of outcomes.

    min_v v + mean(max(cost - v, 0)) / tail, attained at v = value_at_risk(cost, tail)

    Args:
      cost: [..., N], samples of one distribution.
      tail: the share of worst outcomes, in (0, 1]; 1: the mean.
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...]; 0 where no sample counts.
    Gradients: none are stopped; they are spread over the worst samples.
    Source: Rockafellar and Uryasev, 2000, "Optimization of conditional value-at-risk", theorem 1.
    Example: `losses.cvar(cost, tail=0.3, mask=mask)`
    """
    threshold = value_at_risk(cost, tail, mask)
    excess = jnp.maximum(cost - threshold[..., None], 0)
    return threshold + masked_mean(excess, mask, -1) / tail


@check_arguments
def cvar_advantage(cost: Array, tail: Array | float, mask: Array | None = None) -> Array:
    """Advantages for a policy gradient that lowers the CVaR of whole trajectories' costs.

    -max(cost - value_at_risk(cost, tail), 0) / tail

    Args:
      cost: [..., N], of N trajectories of one policy.
      tail: the share of worst outcomes, in (0, 1].
      mask: [..., N], true where a trajectory counts; None: everywhere.
    Returns: [..., N], for `policy_gradient` with the trajectories' log-probabilities; 0 for all
      but the worst trajectories, and where the mask is false.
    Gradients: none.
    Source: Tamar et al., 2015, "Optimizing the CVaR via sampling", algorithm 1 (for returns
      there).
    Example: `losses.cvar_advantage(cost, tail=0.3, mask=mask)`
    """
    cost = jax.lax.stop_gradient(cost)
    excess = jnp.maximum(cost - value_at_risk(cost, tail, mask)[..., None], 0)
    return -(excess if mask is None else jnp.where(mask, excess, 0)) / tail


@check_arguments
def variance_score(threshold: Array, cost: Array) -> Array:
    """Score whose expectation, minimized over a threshold, is the variance of the cost.

    f(v, y) = (y - v)^2, with the minimizer v = E y

    Args: threshold, cost: [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Han, Liu and Yu, 2025, "Risk-sensitive reinforcement learning based on convex scoring
      functions" (which names the measure; the score is derived here).
    Example: `losses.variance_score(threshold, cost).mean()`
    """
    return jnp.square(cost - threshold)


@check_arguments
def expected_shortfall_score(
    threshold: Array, cost: Array, tail: Array | float, weight: Array | float = 1.0
) -> Array:
    """Score whose expectation, minimized over a threshold, is the CVaR of the cost.

    f(v, y) = (1 - weight) y + weight (v + max(y - v, 0) / tail), with the minimizer v the value
    at risk and the minimum (1 - weight) E y + weight CVaR y

    Args:
      threshold, cost: [...], broadcast to each other (a grid of thresholds beside all costs).
      tail: the share of worst outcomes, in (0, 1].
      weight: weight of the CVaR against the mean, in [0, 1]; below 1 this is a mean-risk utility.
    Returns: [...].
    Gradients: none are stopped: `threshold` learns the value at risk, `cost` trains the policy.
    Source: Rockafellar and Uryasev, 2000, "Optimization of conditional value-at-risk", eq. 4;
      Han, Liu and Yu, 2025, "Risk-sensitive reinforcement learning based on convex scoring
      functions".
    Example: `losses.expected_shortfall_score(threshold, cost, tail=0.1).mean()`
    """
    shortfall = threshold + jnp.maximum(cost - threshold, 0) / tail
    return (1 - weight) * cost + weight * shortfall


@check_arguments
def evar_score(threshold: Array, scale: Array, cost: Array, tail: Array | float) -> Array:
    """Score whose expectation, minimized over two variables, is the entropic value at risk.

    f(v, t, y) = v + t (exp((y - v) / t) - 1 - log tail), jointly convex; its minimum over v is
    t log(E exp(y / t) / tail), whose minimum over t is the measure, an upper bound on the CVaR

    Args:
      threshold, cost: [...], v and y.
      scale: [...], t, positive.
      tail: the share of worst outcomes, in (0, 1].
    Returns: [...]; beyond exp(30) the exponential continues linearly, so that nothing overflows.
    Gradients: none are stopped.
    Source: Ahmadi-Javid, 2012, "Entropic value-at-risk: a new coherent risk measure", definition
      3.1; the score is derived here, from log E exp = min_v over v + E exp(. - v) - 1.
    Example: `losses.evar_score(threshold, scale, cost, tail=0.1).mean()`
    """
    return threshold + scale * (_expm1((cost - threshold) / scale) - jnp.log(tail))


@check_arguments
def entropic_risk(cost: Array, aversion: Array | float, mask: Array | None = None) -> Array:
    """Risk under exponential utility: a soft maximum of a cost's samples.

    (1 / a) log mean(exp(a cost)); approximately the mean + a variance / 2. For values, the
    risk-averse certainty equivalent is -entropic_risk(-value, a), also the backup over successors.

    Args:
      cost: [..., N], samples of one distribution.
      aversion: a, positive for risk-averse, negative for risk-seeking, not 0.
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [...]; 0 where no sample counts.
    Gradients: none are stopped; they are spread over the samples by their softmax.
    Source: Howard and Matheson, 1972, "Risk-sensitive Markov decision processes".
    Example: `losses.entropic_risk(cost, aversion=0.5, mask=mask)`
    """
    allowed = _full_mask(cost, mask)
    cost, number = jnp.where(allowed, cost, 0), allowed.sum(-1)
    # If no sample counts, all count as 0: the logarithm of an empty sum has no gradient.
    allowed = allowed | (number == 0)[..., None]
    scaled = jnp.where(allowed, aversion * cost, -jnp.inf)
    mean = jax.nn.logsumexp(scaled, axis=-1) - jnp.log(allowed.sum(-1).astype(cost.dtype))
    return jnp.where(number > 0, mean / aversion, 0)


@check_arguments
def itakura_saito(value: Array, target: Array, aversion: Array | float) -> Array:
    """Numerically stable loss of a critic for the risk-averse value under exponential utility.

    exp(d) - d - 1, d = a (value - target); its minimizer is -(1 / a) log E exp(-a target)

    Args:
      value: [...], of a state or an action.
      target: [...], such as reward + discount * next value.
      aversion: a, positive for risk-averse, negative for risk-seeking; near 0 the loss is
        a^2 (value - target)^2 / 2.
    Returns: [...]; beyond exp(30) the exponential continues linearly, so that nothing overflows.
    Gradients: none flow into `target`.
    Source: Udovichenko et al., 2025, "Risk-averse reinforcement learning with Itakura-Saito loss":
      the divergence of exp(-a target) from exp(-a value); the minimizer is derived here by setting
      the gradient to 0.
    Example: `losses.itakura_saito(value, target, aversion=0.5).mean()`
    """
    difference = aversion * (value - jax.lax.stop_gradient(target))
    return _expm1(difference) - difference


@check_arguments
def ecrm_cost(
    cost: Array,
    threshold: Array,
    next_threshold: Array,
    first: Array,
    done: Array,
    discount: Array | float,
    tail: Array | float,
    weight: Array | float,
) -> Array:
    """Costs whose ordinary discounted sum is an expected conditional risk measure of each step.

    (1 - w) c_t + w max(c_t - v_t, 0) / tail + discount * w v_(t+1), with c_t replacing the first
    two terms at an episode's first step. Their discounted sum is c_1 + sum_(t > 1) discount^(t-1)
    expected_shortfall_score(v_t, c_t, tail, w). Its minimum over the policy and the thresholds is
    a mix of the mean and the CVaR of each step's cost given the previous step.

    Args:
      cost: [...].
      threshold: [...], v_t, chosen at the previous step, along with its action.
      next_threshold: [...], v_(t+1), chosen with this step's action; not used where `done`.
      first, done: [...], true at an episode's first and last step.
      discount: broadcasts to [...].
      tail: the share of worst outcomes, in (0, 1].
      weight: w, weight of the CVaR against the mean, in [0, 1].
    Returns: [...].
    Gradients: none are stopped.
    Source: Yu and Ying, 2023, "On the global convergence of risk-averse policy gradient methods
      with expected conditional risk measures"; the transform is derived here from the
      definition of the measure and Rockafellar and Uryasev's form of the CVaR.
    Example: `losses.ecrm_cost(cost, threshold, next_threshold, first, done, discount, tail=0.1,
      weight=0.5)`
    """
    risky = expected_shortfall_score(threshold, cost, tail, weight) - weight * threshold
    later = jnp.where(done, 0, discount * weight * next_threshold)
    return jnp.where(first, cost, risky) + later


@check_arguments
def risk_averse_utility(
    strategy: Array, opponent: Array, payoff: Array, aversion: Array | float
) -> Array:
    """Expected payoff of a mixed strategy minus its variance over the opponent's actions.

    s' M o - aversion s' Sigma s, Sigma = M diag(o) M' - (M o)(M o)': the variance of the payoff
    (s' M)_j under the opponent's j ~ o

    Args:
      strategy: [..., A], s, probabilities.
      opponent: [..., B], o, probabilities.
      payoff: [..., A, B], M, of the player who plays `strategy`.
      aversion: nonnegative; 0: the original game.
    Returns: [...], to be maximized; concave in `strategy`.
    Gradients: none are stopped.
    Source: Slumbers et al., 2023, "A game-theoretic framework for managing risk in multi-agent
      systems"; the covariance is derived here from the payoff's distribution.
    Example: `losses.risk_averse_utility(strategy, opponent, payoff, aversion=0.5)`
    """
    against = (strategy[..., None] * payoff).sum(-2)
    mean = (against * opponent).sum(-1)
    variance = (opponent * jnp.square(against - mean[..., None])).sum(-1)
    return mean - aversion * variance


@check_arguments
def cost_sensitive_reward(
    log_return: Array,
    weights: Array,
    held_weights: Array,
    risk_aversion: Array | float,
    cost_aversion: Array | float,
    mask: Array | None = None,
) -> Array:
    """Growth of a portfolio minus penalties for risk and trading.

    mean_t r_t - risk_aversion * var_t r_t - cost_aversion * mean_t |w_t - held_t|_1

    Args:
      log_return: [T, ...], r, of each step, net of costs.
      weights: [T, ..., N], the policy's chosen holdings.
      held_weights: [T, ..., N], the holdings just before (the last weights after prices moved;
        `weights` itself at the first step, whose purchase the paper does not count).
      risk_aversion, cost_aversion: nonnegative.
      mask: [T, ...], true where a step counts; None: everywhere.
    Returns: [...], to be maximized by gradient ascent through `weights`.
    Gradients: none are stopped.
    Source: Zhang et al., 2020, "Cost-sensitive portfolio selection via deep reinforcement
      learning" (the three terms; the means over all steps are our choice).
    Example: `losses.cost_sensitive_reward(log_return, weights, held_weights, risk_aversion,
      cost_aversion, mask)`
    """
    traded = weights - held_weights
    if mask is not None:  # mask here: NaN would come back through the square and the absolute value
        log_return = jnp.where(mask, log_return, 0)
        traded = jnp.where(mask[..., None], traded, 0)
    growth = masked_mean(log_return, mask, 0)
    variance = masked_mean(jnp.square(log_return - growth), mask, 0)
    turnover = masked_mean(jnp.abs(traded).sum(-1), mask, 0)
    return growth - risk_aversion * variance - cost_aversion * turnover
