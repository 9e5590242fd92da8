"""All-action policy gradients for self-play in games, from the values of each action.

QPG, the fourth loss of this family, is `expected_policy_gradient`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.policies.policy_gradients import _policy_and_advantage

__all__ = [
    "neurd",
    "regret_matching_policy_gradient",
    "regret_policy_gradient",
]


@check_arguments
def regret_policy_gradient(logits: Array, q_values: Array) -> Array:
    """Actor loss that directly minimizes the sum of positive regrets.

    sum_a max(q(a) - sum_b policy(b) q(b), 0)

    Args: logits, q_values: [..., A]; -inf where an action cannot be taken.
    Returns: [...].
    Gradients: none flow into `q_values`.
    Source: Srinivasan et al., 2018, "Actor-critic policy optimization in partially observable
      multiagent environments" (RPG).
    Example: `losses.regret_policy_gradient(logits, q_values).mean()`
    """
    return jnp.maximum(_policy_and_advantage(logits, q_values)[1], 0).sum(-1)


@check_arguments
def regret_matching_policy_gradient(logits: Array, q_values: Array) -> Array:
    """All-action actor loss that only strengthens actions better than average.

    -sum_a policy(a) max(q(a) - sum_b policy(b) q(b), 0), the regrets constant

    Args: logits, q_values: [..., A]; -inf where an action cannot be taken.
    Returns: [...].
    Gradients: none flow into `q_values` or through the regrets.
    Source: Srinivasan et al., 2018, "Actor-critic policy optimization in partially observable
      multiagent environments" (RMPG).
    Example: `losses.regret_matching_policy_gradient(logits, q_values).mean()`
    """
    policy, advantage = _policy_and_advantage(logits, q_values)
    return -(policy * jax.lax.stop_gradient(jnp.maximum(advantage, 0))).sum(-1)


@check_arguments
def neurd(logits: Array, q_values: Array, threshold: Array | float = jnp.inf) -> Array:
    """Neural replicator dynamics: logits follow advantages, however unlikely an action has become.

    -sum_a logit(a) A(a), A(a) = q(a) - sum_b policy(b) q(b), without the actions whose logit is
    beyond the threshold and would move further out

    Args:
      logits, q_values: [..., A]; -inf where an action cannot be taken.
      threshold: bound on the magnitude of logits, broadcasts to [..., A].
    Returns: [...].
    Gradients: none flow into `q_values` or through the advantages.
    Source: Hennes et al., 2020, "Neural replicator dynamics: multiagent learning via hedging
      policy gradients".
    Example: `losses.neurd(logits, q_values, threshold=2.0).mean()`
    """
    _, advantage = _policy_and_advantage(logits, q_values)
    force = jax.lax.stop_gradient(advantage)
    inside = jnp.where(force > 0, logits < threshold, logits > -threshold)
    kept = inside & (logits > -jnp.inf)
    return -jnp.where(kept, jnp.where(kept, logits, 0) * force, 0).sum(-1)
