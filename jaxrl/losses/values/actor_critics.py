"""Targets and actor losses of off-policy actor-critics: DDPG, TD3, SAC, REDQ.

The last axis of `q_values` is the ensemble of critics (of length 1 for a single one), unless a
function says that it is the actions. The target of DDPG and of MADDPG is `td_target`; MADDPG's
critic sees all agents' observations and actions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import categorical_entropy
from jaxrl.losses.values.errors_and_targets import td_target
from jaxrl.losses.values.q_learning import expected_value

__all__ = [
    "deterministic_policy_gradient",
    "discrete_sac_actor",
    "discrete_sac_target",
    "policy_soft_value",
    "redq_target",
    "sac_actor",
    "sac_target",
    "sac_temperature",
    "sampled_soft_value",
    "smoothed_action",
    "td3_target",
]


@check_arguments
def deterministic_policy_gradient(
    action: Array, action_gradient: Array, highest: float | None = None
) -> Array:
    """Loss of a deterministic actor, from the critic's gradient with respect to its action.

    -sum_d g_d action_d, g = action_gradient, shortened to at most `highest`

    The actor's gradient is that of -Q(s, action) with the critic's parameters held fixed; if you
    can differentiate through the critic, minimize that directly, as DDPG and TD3 do.

    Args:
      action, action_gradient: [..., D]; the latter is grad_a Q(s, a) at `action`.
      highest: the largest length of the gradient; None: unlimited.
    Returns: [...].
    Gradients: none flow into `action_gradient`.
    Source: Silver et al., 2014, "Deterministic policy gradient algorithms", theorem 1; Lillicrap
      et al., 2016, "Continuous control with deep reinforcement learning".
    Example: `losses.deterministic_policy_gradient(action, action_gradient).mean()`
    """
    gradient = jax.lax.stop_gradient(action_gradient)
    if highest is not None:
        # Relative to its largest entry, so that squares neither overflow nor vanish.
        largest = jnp.abs(gradient).max(-1, keepdims=True)
        unit = gradient / jnp.where(largest > 0, largest, 1)
        length = jnp.linalg.norm(unit, axis=-1, keepdims=True)
        allowed = highest / jnp.where(length > 0, length, 1)
        gradient = unit * jnp.minimum(largest, allowed)
    return -(gradient * action).sum(-1)


@check_arguments
def smoothed_action(
    action: Array,
    noise: Array,
    noise_clip: Array | float,
    low: Array | float = -1.0,
    high: Array | float = 1.0,
) -> Array:
    """Target actor's action with clipped noise, so that nearby actions get similar values (TD3).

    clip(action + clip(noise, -noise_clip, noise_clip), low, high)

    Args:
      action, noise: [..., D]; TD3's noise is Gaussian with deviation 0.2, clipped to 0.5.
      noise_clip, low, high: broadcast to [..., D].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Fujimoto et al., 2018, "Addressing function approximation error in actor-critic
      methods", section 5.3.
    Example: `losses.smoothed_action(action, noise, noise_clip=0.5)`
    """
    return jnp.clip(action + jnp.clip(noise, -noise_clip, noise_clip), low, high)


@check_arguments
def td3_target(
    reward: Array, terminated: Array, discount: Array | float, next_q_values: Array
) -> Array:
    """Clipped double Q-learning's target: the smallest critic's value of the next action.

    reward + discount * min_e next_q_values[e], the last term 0 where terminated

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., E], the target critics' values of `smoothed_action`.
    Returns: [...].
    Gradients: none.
    Source: Fujimoto et al., 2018, "Addressing function approximation error in actor-critic
      methods", eq. 10 and algorithm 1.
    Example: `losses.td3_target(reward, terminated, discount, next_q_values)`
    """
    return td_target(reward, terminated, discount, next_q_values.min(-1))


@check_arguments
def sampled_soft_value(q_values: Array, log_prob: Array, temperature: Array | float) -> Array:
    """Soft value of a state, estimated from one sampled action; the target of SAC's original V.

    min_e q_values[e] - temperature * log_prob

    The first version of SAC learns V by `squared_error` toward this, with an action of the current
    policy, and Q by `td_target` with V's target network; later versions use `sac_target`.

    Args:
      q_values: [..., E], of an action sampled from the policy.
      log_prob: [...], its log-probability.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Haarnoja et al., 2018, "Soft actor-critic: off-policy maximum entropy deep
      reinforcement learning with a stochastic actor", eq. 3 and 5.
    Example: `losses.sampled_soft_value(q_values, log_prob, temperature)`
    """
    return q_values.min(-1) - temperature * log_prob


@check_arguments
def sac_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    next_log_prob: Array,
    temperature: Array | float,
) -> Array:
    """SAC's critic target: the smallest critic's value of the next action, plus an entropy bonus.

    reward + discount * (min_e next_q_values[e] - temperature * next_log_prob)

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., E], the target critics' values of an action sampled from the policy in
        the next state. SAC has two critics, SAC-N more.
      next_log_prob: [...], that action's log-probability.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Haarnoja et al., 2018, "Soft actor-critic algorithms and applications", eq. 5 and 6; An
      et al., 2021, "Uncertainty-based offline reinforcement learning with diversified Q-ensemble".
    Example: `losses.sac_target(reward, terminated, discount, next_q_values, next_log_prob,
      temperature)`
    """
    next_value = sampled_soft_value(next_q_values, next_log_prob, temperature)
    return td_target(reward, terminated, discount, next_value)


@check_arguments
def redq_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    members: Array,
    next_log_prob: Array,
    temperature: Array | float,
) -> Array:
    """REDQ's critic target: SAC's with the minimum over a few randomly chosen critics.

    reward + discount * (min_m next_q_values[members[m]] - temperature * next_log_prob)

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., E], the target critics' values of the next action.
      members: [M], distinct integers, the critics that count; sampled anew each time.
      next_log_prob: [...], the next action's log-probability.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Chen et al., 2021, "Randomized ensembled double Q-learning: learning fast without a
      model", algorithm 1.
    Example: `losses.redq_target(reward, terminated, discount, next_q_values, members,
      next_log_prob, temperature)`
    """
    chosen = jnp.take(next_q_values, members, axis=-1)
    return sac_target(reward, terminated, discount, chosen, next_log_prob, temperature)


@check_arguments
def sac_actor(log_prob: Array, q_values: Array, temperature: Array | float) -> Array:
    """SAC's actor loss: pull the policy toward the softmax of the critic's values.

    temperature * log_prob - min_e q_values[e]

    Args:
      log_prob: [...], of an action sampled from the policy as a function of its parameters.
      q_values: [..., E], the critics' values of that action, through which the gradient reaches
        the actor; the critics' own parameters are held fixed. (REDQ uses their mean: pass it as an
        ensemble of one.)
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `temperature`.
    Source: Haarnoja et al., 2018, "Soft actor-critic algorithms and applications", eq. 9.
    Example: `losses.sac_actor(log_prob, q_values, temperature).mean()`
    """
    return -sampled_soft_value(q_values, log_prob, jax.lax.stop_gradient(temperature))


@check_arguments
def sac_temperature(temperature: Array, log_prob: Array, target_entropy: Array | float) -> Array:
    """Loss of SAC's temperature, which rises while the policy's entropy is below a target.

    -temperature * (log_prob + target_entropy)

    Two forms are in use: the paper's, with `temperature` = exp(parameter), and that of much
    published code, which passes the parameter itself, the logarithm, as `temperature`. Their
    gradients with respect to the parameter differ by the factor exp(parameter).

    Args:
      temperature: alpha (or its logarithm), broadcasts to [...].
      log_prob: [...], of actions sampled from the policy; for discrete actions
        `-categorical_entropy(logits)`.
      target_entropy: usually minus the number of action dimensions; for discrete actions a fraction
        of log A.
    Returns: [...].
    Gradients: flow only into `temperature`.
    Source: Haarnoja et al., 2018, "Soft actor-critic algorithms and applications", eq. 18.
    Example: `losses.sac_temperature(temperature, log_prob, target_entropy=-2.0).mean()`
    """
    return -temperature * jax.lax.stop_gradient(log_prob + target_entropy)


@check_arguments
def policy_soft_value(q_values: Array, logits: Array, temperature: Array | float) -> Array:
    """Exact soft value of a state under a policy over discrete actions.

    sum_a pi(a) (q_values[a] - temperature * log pi(a)), pi = softmax(logits)

    Args:
      q_values: [..., A], one per action, e.g. the minimum of two critics.
      logits: [..., A]; -inf where an action cannot be taken.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped.
    Source: Christodoulou, 2019, "Soft actor-critic for discrete action settings", eq. 10.
    Example: `losses.policy_soft_value(q_values, logits, temperature)`
    """
    value = expected_value(q_values, jax.nn.softmax(logits))
    return value + temperature * categorical_entropy(logits)


@check_arguments
def discrete_sac_target(
    reward: Array,
    terminated: Array,
    discount: Array | float,
    next_q_values: Array,
    next_logits: Array,
    temperature: Array | float,
) -> Array:
    """SAC's critic target for discrete actions: a mean over the next actions, not a sample.

    reward + discount * policy_soft_value(next_q_values, next_logits, temperature)

    Args:
      reward, terminated: [...].
      discount: gamma, broadcasts to [...].
      next_q_values: [..., A], one per action, the minimum of two target critics.
      next_logits: [..., A], of the policy in the next state.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Christodoulou, 2019, "Soft actor-critic for discrete action settings", eq. 10.
    Example: `losses.discrete_sac_target(reward, terminated, discount, next_q_values, next_logits,
      temperature)`
    """
    next_value = policy_soft_value(next_q_values, next_logits, temperature)
    return td_target(reward, terminated, discount, next_value)


@check_arguments
def discrete_sac_actor(logits: Array, q_values: Array, temperature: Array | float) -> Array:
    """SAC's actor loss for discrete actions; its minimum is softmax(q_values / temperature).

    sum_a pi(a) (temperature * log pi(a) - q_values[a]), pi = softmax(logits)

    Args:
      logits, q_values: [..., A], one per action.
      temperature: alpha, broadcasts to [...].
    Returns: [...].
    Gradients: flow only into `logits`.
    Source: Christodoulou, 2019, "Soft actor-critic for discrete action settings", eq. 12.
    Example: `losses.discrete_sac_actor(logits, q_values, temperature).mean()`
    """
    q_values, temperature = jax.lax.stop_gradient((q_values, temperature))
    return -policy_soft_value(q_values, logits, temperature)
