"""Losses of stochastic policies, one value per element; the caller averages."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.reductions import at_action

__all__ = [
    "adaptive_kl_coefficient",
    "clip_drift",
    "clipped_surrogate",
    "counterfactual_advantage",
    "dice",
    "discovered_drift",
    "drift_surrogate",
    "dual_clipped_surrogate",
    "expected_policy_gradient",
    "importance_ratio",
    "kl_penalty_surrogate",
    "magic_box",
    "policy_gradient",
    "surrogate",
]


@check_arguments
def importance_ratio(log_prob: Array, old_log_prob: Array) -> Array:
    """Importance ratio: an action's probability under a policy over that under the one that acted.

    exp(log_prob - old_log_prob), at most exp(60)

    Args: log_prob, old_log_prob: [...].
    Returns: [...].
    Gradients: none are stopped; 0 beyond the bound, which is far outside any clip and keeps an
      overflowing ratio from turning the zero gradient of a clipped side into NaN.
    Source: Sutton and Barto, 2018, "Reinforcement learning", eq. 5.3.
    Example: `losses.importance_ratio(log_prob, old_log_prob)`
    """
    log_ratio = log_prob - old_log_prob
    # A select is faster than a minimum, whose gradient must handle ties.
    return jnp.exp(jnp.where(log_ratio > 60, 60, log_ratio))


@check_arguments
def policy_gradient(log_prob: Array, advantage: Array) -> Array:
    """Policy-gradient loss: REINFORCE, or A2C with a critic's advantage.

    -advantage * log_prob

    Args:
      log_prob, advantage: [...]; ReMax's advantage is an answer's reward minus that of the greedy
        answer.
    Returns: [...].
    Gradients: none flow into `advantage`.
    Source: Williams, 1992, "Simple statistical gradient-following algorithms for connectionist
      reinforcement learning"; Mnih et al., 2016, "Asynchronous methods for deep reinforcement
      learning", algorithm S3; Li et al., 2023, "ReMax: a simple, effective, and efficient
      reinforcement learning method for aligning large language models".
    Example: `losses.policy_gradient(log_prob, advantage).mean()`
    """
    return -jax.lax.stop_gradient(advantage) * log_prob


def _policy_and_advantage(logits: Array, q_values: Array) -> tuple[Array, Array]:
    """Return probabilities and advantages of all actions; illegal ones have advantage 0."""
    policy, legal = jax.nn.softmax(logits), logits > -jnp.inf
    q_values = jnp.where(legal, jax.lax.stop_gradient(q_values), 0)
    value = (policy * q_values).sum(-1, keepdims=True)
    return policy, jnp.where(legal, q_values - value, 0)


@check_arguments
def expected_policy_gradient(logits: Array, q_values: Array) -> Array:
    """All-action policy gradient (QPG, mean actor-critic), without sampling noise.

    -sum_a p(a) (Q(a) - V), V = sum_b p(b) Q(b), p = softmax(logits)

    Args:
      logits: [..., A], unnormalized; -inf where an action cannot be taken.
      q_values: [..., A]; the values of impossible actions, even NaN, have no influence.
    Returns: [...], with value 0 and the negated gradient of the expected value. With values against
      a best response this is exploitability descent.
    Gradients: none flow into `q_values` or the baseline V.
    Source: Sutton et al., 2000, "Policy gradient methods for reinforcement learning with function
      approximation", theorem 1; Allen et al., 2017, "Mean actor critic"; Srinivasan et al., 2018,
      "Actor-critic policy optimization in partially observable multiagent environments" (QPG).
    Example: `losses.expected_policy_gradient(logits, q_values).mean()`
    """
    policy, advantage = _policy_and_advantage(logits, q_values)
    return -(policy * jax.lax.stop_gradient(advantage)).sum(-1)


@check_arguments
def counterfactual_advantage(logits: Array, q_values: Array, action: Array) -> Array:
    """COMA's advantage: the value of an agent's action minus its policy's expected value.

    Q(action) - sum_a p(a) Q(a), p = softmax(logits), the other agents' actions held fixed

    Args:
      logits: [..., A], one agent's policy, unnormalized; -inf where an action cannot be taken.
      q_values: [..., A], the joint action's value for each action of this agent; the values of
        impossible actions have no influence.
      action: [...], integers from 0 to A - 1.
    Returns: [...]; 0 for an impossible action.
    Gradients: none flow into any argument.
    Source: Foerster et al., 2018, "Counterfactual multi-agent policy gradients", eq. 4.
    Example: `losses.counterfactual_advantage(logits, q_values, action)`
    """
    _, advantage = _policy_and_advantage(*jax.lax.stop_gradient((logits, q_values)))
    return at_action(advantage, action)


@check_arguments
def surrogate(log_prob: Array, old_log_prob: Array, advantage: Array) -> Array:
    """TRPO's surrogate loss: the new policy's expected advantage on the old policy's states.

    -r A, r = importance_ratio(log_prob, old_log_prob)

    Args: log_prob, old_log_prob, advantage: [...].
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `advantage`.
    Source: Schulman et al., 2015, "Trust region policy optimization", eq. 14.
    Example: `losses.surrogate(log_prob, old_log_prob, advantage).mean()`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    return -importance_ratio(log_prob, old_log_prob) * advantage


@check_arguments
def kl_penalty_surrogate(
    log_prob: Array, old_log_prob: Array, advantage: Array, kl: Array, beta: Array | float
) -> Array:
    """PPO's surrogate loss with a KL penalty toward the old policy, instead of a clip.

    -r A + beta * kl, r = importance_ratio(log_prob, old_log_prob)

    Args:
      log_prob, old_log_prob, advantage: [...].
      kl: [...], KL(old || new) in PPO (`categorical_kl(old_logits, logits)`); with KL(new || old)
        this is the on-policy loss of mirror descent policy optimization with step size 1 / beta,
        and with KL(prior || new) it fine-tunes a pretrained prior.
      beta: the penalty's weight, e.g. from `adaptive_kl_coefficient`.
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `advantage`.
    Source: Schulman et al., 2017, "Proximal policy optimization algorithms", eq. 8; Tomar et al.,
      2022, "Mirror descent policy optimization".
    Example: `losses.kl_penalty_surrogate(log_prob, old_log_prob, advantage, kl, beta=1.0).mean()`
    """
    return surrogate(log_prob, old_log_prob, advantage) + beta * kl


@check_arguments
def adaptive_kl_coefficient(
    beta: Array, kl: Array, target: Array | float, tolerance: float = 1.5, factor: float = 2.0
) -> Array:
    """Update the weight of a KL penalty by PPO's rule, after an update of the policy.

    beta / factor where kl < target / tolerance, beta * factor where kl > target * tolerance

    Args:
      beta: [...], the weight used.
      kl: [...], the mean divergence caused by the update.
      target: the desired divergence.
      tolerance: how many times larger or smaller than the target the divergence may be.
      factor: factor by which the weight changes.
    Returns: [...].
    Gradients: none flow into any argument.
    Source: Schulman et al., 2017, "Proximal policy optimization algorithms", section 4.
    Example: `losses.adaptive_kl_coefficient(beta, kl, target=0.01)`
    """
    beta, kl = jax.lax.stop_gradient((beta, kl))
    low, high = kl < target / tolerance, kl > target * tolerance
    return jnp.where(low, beta / factor, jnp.where(high, beta * factor, beta))


@check_arguments
def clipped_surrogate(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip: Array | float,
    clip_high: Array | float | None = None,
) -> Array:
    """PPO's clipped surrogate loss: no gain from moving the ratio beyond the clip.

    -min(r A, clip(r, 1 - clip, 1 + clip_high) A), r = importance_ratio(log_prob, old_log_prob)

    DAPO's token loss has a larger upper clip (clip_high), so that unlikely tokens can become
    likely. Tokens beyond their clip have no gradient; `cispo` keeps it with a bounded weight.

    Args:
      log_prob, old_log_prob, advantage: [...].
      clip: epsilon, broadcasts to [...].
      clip_high: the upper epsilon, if different; None: `clip`.
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `advantage`.
    Source: Schulman et al., 2017, "Proximal policy optimization algorithms", eq. 7; Yu et al.,
      2025, "DAPO: an open-source LLM reinforcement learning system at scale", section 3.1.
    Example: `losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip=0.2).mean()`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    ratio = importance_ratio(log_prob, old_log_prob)
    high = 1 + (clip if clip_high is None else clip_high)
    # Where the clipped side is the smaller one, the clip is active, so it is a constant.
    clipped = jnp.clip(jax.lax.stop_gradient(ratio), 1 - clip, high) * advantage
    gain = ratio * advantage
    return -jnp.where(clipped < gain, clipped, gain)


@check_arguments
def dual_clipped_surrogate(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    clip: Array | float,
    dual_clip: Array | float = 3.0,
    clip_high: Array | float | None = None,
) -> Array:
    """PPO's loss, also bounded for bad actions, whose ratio may be huge in off-policy data.

    where A < 0: min(clipped_surrogate, -dual_clip * A), elsewhere clipped_surrogate

    Args:
      log_prob, old_log_prob, advantage: [...].
      clip, clip_high: as in `clipped_surrogate`.
      dual_clip: c, above 1 + clip_high: the ratio beyond which a bad action has no gradient.
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `advantage`; 0 where A < 0 and the ratio is
      above `dual_clip`.
    Source: Ye et al., 2020, "Mastering complex control in MOBA games with deep reinforcement
      learning".
    Example: `losses.dual_clipped_surrogate(log_prob, old_log_prob, advantage, clip=0.2).mean()`
    """
    loss = clipped_surrogate(log_prob, old_log_prob, advantage, clip, clip_high)
    advantage = jax.lax.stop_gradient(advantage)
    return jnp.where(advantage < 0, jnp.minimum(loss, -dual_clip * advantage), loss)


@check_arguments
def drift_surrogate(log_prob: Array, old_log_prob: Array, advantage: Array, drift: Array) -> Array:
    """Surrogate loss with a drift: mirror learning's general form, which includes PPO.

    -(r A - drift), r = importance_ratio(log_prob, old_log_prob)

    Args:
      log_prob, old_log_prob, advantage: [...].
      drift: [...], at least 0, and 0 with gradient 0 at ratio 1: `clip_drift`, `discovered_drift`,
        or a network's function of ratio, advantage and training progress (learned policy
        optimization, LPO, and its temporally aware form).
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `advantage`.
    Source: Kuba et al., 2022, "Mirror learning: a unifying framework of policy optimization"; Lu et
      al., 2022, "Discovered policy optimization".
    Example: `losses.drift_surrogate(log_prob, old_log_prob, advantage, drift).mean()`
    """
    return surrogate(log_prob, old_log_prob, advantage) + drift


@check_arguments
def clip_drift(ratio: Array, advantage: Array, clip: Array | float) -> Array:
    """PPO's clip as a drift: the reduction of the gain of a ratio beyond the clip.

    max((r - clip(r, 1 - clip, 1 + clip)) A, 0)

    Args:
      ratio, advantage: [...].
      clip: epsilon, broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `advantage`.
    Source: Lu et al., 2022, "Discovered policy optimization".
    Example: `losses.clip_drift(ratio, advantage, clip=0.2)`
    """
    advantage = jax.lax.stop_gradient(advantage)
    return jnp.maximum((ratio - jnp.clip(ratio, 1 - clip, 1 + clip)) * advantage, 0)


@check_arguments
def discovered_drift(
    log_prob: Array,
    old_log_prob: Array,
    advantage: Array,
    alpha: float = 2.0,
    beta: float = 0.6,
) -> Array:
    """Drift of discovered policy optimization (DPO), the closed form of a meta-learned drift.

    max(x - alpha tanh(x / alpha), 0), x = (r - 1) A, where A >= 0
    max(x - beta tanh(x / beta), 0), x = A log r, where A < 0

    Args:
      log_prob, old_log_prob, advantage: [...]; standardize advantages.
      alpha, beta: how far the ratio moves freely.
    Returns: [...], the drift of `drift_surrogate`.
    Gradients: none flow into `old_log_prob` or `advantage`.
    Source: Lu et al., 2022, "Discovered policy optimization".
    Example: `losses.discovered_drift(log_prob, old_log_prob, advantage)`
    """
    old_log_prob, advantage = jax.lax.stop_gradient((old_log_prob, advantage))
    log_ratio = log_prob - old_log_prob
    gain = (importance_ratio(log_prob, old_log_prob) - 1) * advantage
    x, scale = (
        jnp.where(advantage >= 0, gain, log_ratio * advantage),
        jnp.where(advantage >= 0, alpha, beta).astype(log_prob.dtype),
    )
    return jnp.maximum(x - scale * jnp.tanh(x / scale), 0)


@check_arguments
def magic_box(log_prob: Array) -> Array:
    """DiCE's magic box: 1, with the derivatives of a probability ratio to every order.

    exp(log_prob - stop_gradient(log_prob))

    Args: log_prob: [...], the sum of the log-probabilities that the sample depends on.
    Returns: [...], ones.
    Gradients: flow into `log_prob`, at any order; the first is grad p / p.
    Source: Foerster et al., 2018, "DiCE: the infinitely differentiable Monte Carlo estimator".
    Example: `losses.magic_box(log_prob)`
    """
    return jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))


@check_arguments
def dice(
    log_prob: Array,
    reward: Array,
    discount: Array | float,
    value: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """DiCE's loss: its derivatives of every order are unbiased estimates of the negated return's.

    -(gamma^t r[t] B(sum_{u <= t} l[u]) + (1 - B(l[t])) B(sum_{u < t} l[u]) gamma^t value[t]),
    B = magic_box, l = log_prob

    Args:
      log_prob, reward: [T, ...], of whole episodes that begin at step 0.
      discount: gamma, broadcasts to [...].
      value: [T, ...], a baseline: an estimate of the return from the state of step t; None: 0.
      mask: [T, ...], false after an episode's end; None: all steps count.
    Returns: [T, ...]; the loss is the sum over time. Its value is minus the discounted reward.
    Gradients: none flow into `value`. Differentiate repeatedly for higher orders.
    Source: Foerster et al., 2018, "DiCE: the infinitely differentiable Monte Carlo estimator";
      Mao et al., 2019, "A baseline for any order gradient estimation in stochastic computation
      graphs" (the second term).
    Example: `losses.dice(log_prob, reward, discount=0.9, value=value).sum(0).mean()`
    """
    if mask is not None:
        log_prob, reward = jnp.where(mask, log_prob, 0), jnp.where(mask, reward, 0)
    # gamma^t as a product, whose gradient with respect to gamma is finite at t = 0 and gamma = 0.
    steps = jnp.full(reward.shape, discount, reward.dtype).at[:1].set(1)
    weight = jnp.cumprod(steps, axis=0)
    until = jnp.cumsum(log_prob, axis=0)
    loss = -weight * reward * magic_box(until)
    if value is None:
        return loss
    value = jax.lax.stop_gradient(value if mask is None else jnp.where(mask, value, 0))
    return loss - weight * value * (1 - magic_box(log_prob)) * magic_box(until - log_prob)
