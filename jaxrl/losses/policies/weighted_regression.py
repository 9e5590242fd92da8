"""Policy losses that imitate actions in proportion to how good they were."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.policies.policy_gradients import policy_gradient

__all__ = [
    "advantage_weight",
    "awr",
    "crr",
    "mixture_frequency",
    "sampled_advantage",
    "self_imitation",
    "self_imitation_value",
]


@check_arguments
def advantage_weight(
    advantage: Array,
    temperature: Array | float,
    maximum: Array | float = 20.0,
    kind: Literal["exp", "binary"] = "exp",
) -> Array:
    """Imitation weight of an action, from its advantage, as in AWR, AWAC, CRR, IQL and HIQL.

    "exp": min(exp(A / temperature), maximum); "binary": 1 where A > 0, else 0

    Args:
      advantage: [...]: Q(s, a) - V(s); with goals V(s', g) - V(s, g).
      temperature: positive, broadcasts to [...]; toward 0 only the best actions count, infinity
        is plain cloning. It is AWAC's lambda and IQL's 1 / beta. Unused by "binary".
      maximum: the largest weight, broadcasts to [...]: 20 in the code of AWR and CRR, 100 in that
        of IQL; infinite: exp(80), so that nothing overflows.
      kind: "exp" or "binary" (CRR).
    Returns: [...].
    Gradients: none flow into any argument.
    Source: Peng et al., 2019, "Advantage-weighted regression"; Nair et al., 2020, "AWAC:
      accelerating online reinforcement learning with offline datasets"; Wang et al., 2020, "Critic
      regularized regression"; Kostrikov et al., 2022, "Offline reinforcement learning with implicit
      Q-learning"; Park et al., 2023, "HIQL: offline goal-conditioned RL with latent states as
      actions".
    Example: `losses.advantage_weight(advantage, temperature=1.0)`
    """
    advantage, temperature = jax.lax.stop_gradient((advantage, temperature))
    if kind == "binary":
        return (advantage > 0).astype(advantage.dtype)
    if kind == "exp":
        return jnp.minimum(jnp.exp(jnp.minimum(advantage / temperature, 80.0)), maximum)
    raise ValueError(f"the kind of an advantage weight must be exp or binary, not {kind!r}")


@check_arguments
def awr(
    log_prob: Array, advantage: Array, temperature: Array | float, maximum: Array | float = 20.0
) -> Array:
    """Advantage-weighted regression, the policy loss of AWR, AWAC and IQL.

    -min(exp(A / temperature), maximum) * log_prob

    On data from a policy mu its minimizer is mu exp(A / temperature) / Z, if no weight is clipped.

    Args:
      log_prob, advantage: [...], of actions in the data.
      temperature, maximum: as in `advantage_weight`.
    Returns: [...].
    Gradients: flow only into `log_prob`.
    Source: Peng et al., 2019, "Advantage-weighted regression"; Nair et al., 2020, "AWAC:
      accelerating online reinforcement learning with offline datasets"; Kostrikov et al., 2022,
      "Offline reinforcement learning with implicit Q-learning", eq. 7 (a maximum of 100).
    Example: `losses.awr(log_prob, advantage, temperature=1.0).mean()`
    """
    return policy_gradient(log_prob, advantage_weight(advantage, temperature, maximum))


@check_arguments
def sampled_advantage(
    q_value: Array, sampled_q_values: Array, kind: Literal["mean", "max"] = "mean"
) -> Array:
    """Advantage of an action over actions sampled from the policy.

    "mean": Q(a) - mean_j Q(a_j); "max": Q(a) - max_j Q(a_j), a_j ~ policy

    Args:
      q_value: [...], of the action in the data.
      sampled_q_values: [..., N], of the sampled actions.
      kind: "mean", or "max", which is pessimistic about the action.
    Returns: [...].
    Gradients: none are stopped.
    Source: Wang et al., 2020, "Critic regularized regression", section 3.
    Example: `losses.sampled_advantage(q_value, sampled_q_values)`
    """
    if kind == "mean":
        return q_value - sampled_q_values.mean(-1)
    if kind == "max":
        return q_value - sampled_q_values.max(-1)
    raise ValueError(f"the kind of a sampled advantage must be mean or max, not {kind!r}")


@check_arguments
def crr(
    log_prob: Array,
    q_value: Array,
    sampled_q_values: Array,
    temperature: Array | float = 1.0,
    maximum: Array | float = 20.0,
    kind: Literal["exp", "binary"] = "exp",
    advantage_kind: Literal["mean", "max"] = "mean",
) -> Array:
    """Critic-regularized regression (CRR): imitate actions that a critic prefers to the policy's.

    -w log_prob, w = advantage_weight(sampled_advantage(q_value, sampled_q_values))

    Args:
      log_prob, q_value: [...], of actions in the data.
      sampled_q_values: [..., N], of actions sampled from the policy.
      temperature, maximum, kind: as in `advantage_weight`.
      advantage_kind: as in `sampled_advantage`.
    Returns: [...].
    Gradients: flow only into `log_prob`.
    Source: Wang et al., 2020, "Critic regularized regression", section 3.
    Example: `losses.crr(log_prob, q_value, sampled_q_values, kind="binary").mean()`
    """
    advantage = sampled_advantage(q_value, sampled_q_values, advantage_kind)
    return policy_gradient(log_prob, advantage_weight(advantage, temperature, maximum, kind))


@check_arguments
def self_imitation(log_prob: Array, target: Array, value: Array) -> Array:
    """Policy loss of self-imitation learning (SIL): repeat actions better than expected.

    -log_prob * max(target - value, 0)

    Args:
      log_prob, target, value: [...]; `target` is the return that followed the action.
    Returns: [...].
    Gradients: flow only into `log_prob`.
    Source: Oh et al., 2018, "Self-imitation learning", eq. 2.
    Example: `losses.self_imitation(log_prob, target, value).mean()`
    """
    return policy_gradient(log_prob, jnp.maximum(target - value, 0))


@check_arguments
def self_imitation_value(value: Array, target: Array) -> Array:
    """Value loss of self-imitation learning (SIL): raise values to returns that exceeded them.

    max(target - value, 0)^2 / 2

    Args: value, target: [...]; `target` is the return that followed.
    Returns: [...].
    Gradients: flow only into `value`.
    Source: Oh et al., 2018, "Self-imitation learning", eq. 3.
    Example: `losses.self_imitation_value(value, target).mean()`
    """
    return 0.5 * jnp.square(jnp.maximum(jax.lax.stop_gradient(target) - value, 0))


@check_arguments
def mixture_frequency(mixture: Array, q_values: Array) -> Array:
    """PMOE's gating loss of a mixture policy: choose each component as often as it is best.

    sum_k (mixture_k - 1[k = argmax_j Q_j])^2

    Over many samples its minimizer is the frequency with which a component's action is best.

    Args:
      mixture: [..., K], probabilities of the components.
      q_values: [..., K], values of one action of each component.
    Returns: [...].
    Gradients: flow only into `mixture`.
    Source: Ren et al., 2021, "Probabilistic mixture-of-experts for efficient deep reinforcement
      learning", the frequency loss.
    Example: `losses.mixture_frequency(mixture, q_values).mean()`
    """
    best = jax.nn.one_hot(q_values.argmax(-1), q_values.shape[-1], dtype=mixture.dtype)
    return jnp.square(mixture - best).sum(-1)
