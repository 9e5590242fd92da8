"""Losses and rewards for adversarial imitation and other ways to match an expert's behavior.

A discriminator's logits are log-odds that a step is the expert's: D = sigmoid(logits) is near 1 on
the expert's data and near 0 on the policy's.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import safe_norm
from jaxrl.losses.policies.policy_gradients import importance_ratio
from jaxrl.losses.reductions import _full_mask, masked_mean

__all__ = [
    "adversarial_reward",
    "airl_logits",
    "ball_projection",
    "dagger_mixing",
    "density_ratio",
    "drail_logits",
    "dynamics_reward",
    "feature_gap",
    "gradient_penalty",
    "kernel_reward",
    "lipschitz_preconditioner",
    "occupancy_penalty",
    "random_features",
    "reward_gap",
    "skill_boundaries",
]


@check_arguments
def adversarial_reward(logits: Array, form: str = "positive") -> Array:
    """Imitation reward from a discriminator's logits, high where a step looks like the expert's.

    positive: -log(1 - D); negative: log D; logit: log D - log(1 - D) = logits; D = sigmoid(logits)

    Args:
      logits: [...], log-odds that a step is the expert's.
      form: "positive" favors long episodes, "negative" short ones, "logit" (AIRL, DRAIL) neither.
    Returns: [...].
    Gradients: none: this is a reward.
    Source: Ho and Ermon, 2016, "Generative adversarial imitation learning"; Kostrikov et al., 2019,
      "Discriminator-actor-critic" (the bias of signs); Fu et al., 2018, "Learning robust rewards
      with adversarial inverse reinforcement learning" (logit).
    Example: `losses.adversarial_reward(logits)`
    """
    logits = jax.lax.stop_gradient(logits)
    if form == "positive":
        return jax.nn.softplus(logits)
    if form == "negative":
        return -jax.nn.softplus(-logits)
    if form == "logit":
        return logits
    raise ValueError(f"form must be positive, negative or logit, not {form!r}")


@check_arguments
def airl_logits(
    reward: Array,
    potential: Array,
    next_potential: Array,
    log_prob: Array,
    terminated: Array,
    discount: Array | float,
) -> Array:
    """AIRL's discriminator logits, which separate a learned reward from a shaping term.

    f - log pi(a | s), f = reward + discount * next_potential - potential, next_potential 0 where
    terminated

    Args:
      reward: [...], g(s, a) or g(s), learned.
      potential, next_potential: [...], h(s) and h(s'), learned.
      log_prob: [...], of the action under the current policy, even for the expert's actions.
      terminated: [...], bool.
      discount: broadcasts to [...].
    Returns: [...], for `binary_cross_entropy` and `adversarial_reward`.
    Gradients: none flow into `log_prob`.
    Source: Fu et al., 2018, "Learning robust rewards with adversarial inverse reinforcement
      learning", eq. 4.
    Example: `losses.airl_logits(reward, potential, next_potential, log_prob, terminated,
      discount=0.99)`
    """
    shaping = discount * jnp.where(terminated, 0, next_potential) - potential
    return reward + shaping - jax.lax.stop_gradient(log_prob)


@check_arguments
def drail_logits(expert_error: Array, agent_error: Array) -> Array:
    """DRAIL's discriminator logits, from a diffusion model that denoises under both labels.

    D = exp(-expert_error) / (exp(-expert_error) + exp(-agent_error)): logits = agent - expert error

    Args: expert_error, agent_error: [...], the model's squared error of the noise in (s, a), given
      the label of the expert and of the agent.
    Returns: [...], for `binary_cross_entropy` and `adversarial_reward(logits, "logit")`.
    Gradients: none are stopped.
    Source: Lai et al., 2024, "Diffusion-reward adversarial imitation learning", eq. 4.
    Example: `losses.drail_logits(expert_error, agent_error)`
    """
    return agent_error - expert_error


@check_arguments
def dynamics_reward(logits: Array) -> Array:
    """MOREC's reward of a transition, from discriminators of different times of their training.

    -log(1 - mean_k D_k), D_k = sigmoid(logits_k)

    Args: logits: [..., K], log-odds that the transition is a true one and not a model's.
    Returns: [...], at least 0; that of `adversarial_reward` for one discriminator.
    Gradients: none: this is a reward.
    Source: Luo et al., 2024, "Reward-consistent dynamics models are strongly generalizable for
      offline reinforcement learning", and its published code (without its bounds).
    Example: `losses.dynamics_reward(logits)`
    """
    doubt = jax.nn.log_sigmoid(-jax.lax.stop_gradient(logits))
    return math.log(logits.shape[-1]) - jax.nn.logsumexp(doubt, axis=-1)


@check_arguments
def density_ratio(logits: Array, prior: Array | float = 0.5) -> Array:
    """Density ratio of two distributions, from a classifier of their samples.

    p(x) / q(x) = D / (1 - D) * (1 - prior) / prior, at most exp(60), D = sigmoid(logits)

    Args:
      logits: [...], log-odds that x is from p.
      prior: in (0, 1), the share of p's samples in the classifier's training data; corrects for
        unequal numbers.
    Returns: [...].
    Gradients: none are stopped; 0 beyond the bound.
    Source: Sugiyama et al., 2012, "Density ratio estimation in machine learning".
    Example: `losses.density_ratio(logits, prior=0.5)`
    """
    prior = jnp.asarray(prior, logits.dtype)
    return importance_ratio(logits, jnp.log(prior) - jnp.log1p(-prior))


@check_arguments
def occupancy_penalty(logits: Array, mask: Array | None = None) -> Array:
    """Cost of visiting what a base policy does not, from the chi-squared divergence of occupancies.

    (r - 1) / sqrt(chi2), chi2 = mean(r - 1) over the policy's own steps, r = exp(logits); its mean
    is sqrt(chi2). Where chi2 <= 0: r - 1

    Args:
      logits: [...], log-odds that a step is the policy's and not the base's (trained on equally
        many of both), at steps of the policy.
      mask: broadcasts to [...], true where a step counts; None: all.
    Returns: [...]; 0 where the mask is false. Subtract it from the reward with a weight; clip the
      logits or the result where r can be very large.
    Gradients: none: this is part of a reward.
    Source: Laidlaw et al., 2025, "Correlated proxies: a new definition and improved mitigation for
      reward hacking", and its published code (which trims 1 % at both ends of the mean).
    Example: `losses.occupancy_penalty(logits)`
    """
    allowed = _full_mask(logits, mask)
    excess = density_ratio(jnp.where(allowed, jax.lax.stop_gradient(logits), 0)) - 1
    divergence = masked_mean(excess, allowed)
    positive = divergence > 0
    return excess / jnp.where(positive, jnp.sqrt(jnp.where(positive, divergence, 1)), 1)


@check_arguments
def gradient_penalty(
    gradient: Array, target: Array | float = 1.0, one_sided: bool = False
) -> Array:
    """Regularizer that keeps the slope of a discriminator or critic near a Lipschitz bound.

    (|gradient| - target)^2; one-sided: max(|gradient| - target, 0)^2

    Args:
      gradient: [..., D], of the discriminator's output with respect to its input at one point:
        between the expert's and the policy's data (WGAN-GP, DAC), or at data (R1, target 0).
      target: k, broadcasts to [...].
      one_sided: penalize only slopes above the target.
    Returns: [...].
    Gradients: none are stopped; 0 for a gradient that is 0.
    Source: Gulrajani et al., 2017, "Improved training of Wasserstein GANs", eq. 3; Mescheder et
      al., 2018, "Which training methods for GANs do actually converge?" (R1, with its factor 1/2
      in the weight); Blonde et al., 2022, "Lipschitzness is all you need to tame off-policy
      generative adversarial imitation learning".
    Example: `losses.gradient_penalty(gradient).mean()`
    """
    excess = safe_norm(gradient) - target
    return jnp.square(jnp.maximum(excess, 0) if one_sided else excess)


@check_arguments
def lipschitz_preconditioner(penalty: Array, floor: Array | float = 0.7) -> Array:
    """Factor that shrinks an imitation reward where it or the dynamics is too steep.

    max(exp(-penalty), floor)

    Args:
      penalty: [...], at least 0, such as the one-sided `gradient_penalty` of a learned dynamics
        model, divided by its running standard deviation.
      floor: in [0, 1].
    Returns: [...], in [floor, 1], a factor for a nonnegative reward: smaller is more pessimistic.
    Gradients: none: this is part of a reward.
    Source: Blonde et al., 2022, "Lipschitzness is all you need to tame off-policy generative
      adversarial imitation learning" (reward preconditioning; the form of its published code).
    Example: `losses.lipschitz_preconditioner(penalty)`
    """
    return jnp.maximum(jnp.exp(-jax.lax.stop_gradient(penalty)), floor)


@check_arguments
def random_features(x: Array, frequency: Array, phase: Array) -> Array:
    """Random Fourier features, whose inner products approximate a kernel, for linear rewards.

    sqrt(2 / M) cos(x frequency + phase)

    Args:
      x: [..., D].
      frequency: [D, M], sampled from the kernel's spectrum: N(0, 1 / scale^2) for a Gaussian one.
      phase: [M], sampled uniformly from 0 to 2 pi.
    Returns: [..., M].
    Gradients: none are stopped.
    Source: Rahimi and Recht, 2007, "Random features for large-scale kernel machines", algorithm 1.
    Example: `losses.random_features(x, frequency, phase)`
    """
    angle = (x[..., :, None] * frequency).sum(-2) + phase
    return (2 / phase.shape[-1]) ** 0.5 * jnp.cos(angle)


@check_arguments
def ball_projection(x: Array, radius: Array | float) -> Array:
    """Project onto a ball around 0, e.g. to bound the weights of a linear reward.

    x min(1, radius / |x|)

    Args:
      x: [..., D].
      radius: positive, broadcasts to [...].
    Returns: [..., D].
    Gradients: none are stopped.
    Source: Chen et al., 2020, "On computation and generalization of generative adversarial
      imitation learning" (its kernel reward); a projection as in Boyd and Vandenberghe, 2004.
    Example: `losses.ball_projection(x, radius=1.0)`
    """
    length = safe_norm(x)
    outside = length > radius
    return x * jnp.where(outside, radius / jnp.where(outside, length, 1), 1)[..., None]


@check_arguments
def kernel_reward(features: Array, weight: Array, radius: Array | float) -> Array:
    """Reward that is linear in features, with weights projected onto a ball.

    <features, ball_projection(weight, radius)>

    Args:
      features: [..., M], such as `random_features` of (s, a).
      weight: [M], or broadcasts to [..., M].
      radius: positive, a scalar.
    Returns: [...].
    Gradients: none are stopped.
    Source: Chen et al., 2020, "On computation and generalization of generative adversarial
      imitation learning".
    Example: `losses.kernel_reward(features, weight, radius=1.0)`
    """
    return (features * ball_projection(weight, radius)).sum(-1)


@check_arguments
def reward_gap(
    reward: Array, expert_reward: Array, mask: Array | None = None, expert_mask: Array | None = None
) -> Array:
    """Loss of a learned reward, which should be high on the expert's steps, low on the policy's.

    mean of reward - mean of expert_reward

    Args:
      reward: [...], of steps of the current policy.
      expert_reward: of another shape [...], of steps of the expert.
      mask, expert_mask: the same shapes, true where a step counts; None: all.
    Returns: a scalar; add a regularizer, or the reward grows without bound.
    Gradients: none are stopped. For a reward linear in features, the gradient is the difference of
      the mean features, as in maximum-entropy inverse reinforcement learning.
    Source: Ziebart et al., 2008, "Maximum entropy inverse reinforcement learning"; Abbeel
      and Ng, 2004, "Apprenticeship learning via inverse reinforcement learning".
    Example: `losses.reward_gap(reward, expert_reward)`
    """
    return masked_mean(reward, mask) - masked_mean(expert_reward, expert_mask)


@check_arguments
def feature_gap(
    features: Array,
    expert_features: Array,
    mask: Array | None = None,
    expert_mask: Array | None = None,
) -> Array:
    """Distance between mean features, the largest gap under any linear reward of norm 1.

    |mean_i features_i - mean_j expert_features_j| = max over |w| <= 1 of the difference in reward

    Args:
      features, expert_features: [..., N, M] and [..., N', M]: samples, then features.
      mask, expert_mask: [..., N] and [..., N'], true where a sample counts; None: all.
    Returns: [...].
    Gradients: none are stopped; 0 where the gap is 0.
    Source: Abbeel and Ng, 2004, "Apprenticeship learning via inverse reinforcement learning",
      section 3; Gretton et al., 2012, "A kernel two-sample test", lemma 4.
    Example: `losses.feature_gap(features, expert_features)`
    """

    def mean(x, allowed):
        return masked_mean(x, None if allowed is None else allowed[..., None], -2)

    return safe_norm(mean(features, mask) - mean(expert_features, expert_mask))


@check_arguments
def dagger_mixing(iteration: Array, decay: Array | float) -> Array:
    """Probability that the expert, not the learner, acts in an iteration of DAgger.

    decay^iteration

    Args:
      iteration: [...], from 0.
      decay: in [0, 1], broadcasts to [...]; 0: the expert acts only in the first iteration.
    Returns: [...]; the learner is then trained equally on the data of all iterations.
    Gradients: none are stopped.
    Source: Ross et al., 2011, "A reduction of imitation learning and structured prediction to
      no-regret online learning".
    Example: `losses.dagger_mixing(iteration, decay=0.5)`
    """
    return jnp.power(decay, iteration)


@check_arguments
def skill_boundaries(loss: Array, gap: Array | float) -> Array:
    """Find where new skills begin in a demonstration, by a cloned policy's sudden surprise.

    1 where loss_t - mean(losses since the last boundary, including t) > gap; a boundary's own loss
    does not count toward the skill that begins there

    Args:
      loss: [T, ...], the negative log-likelihood of each action under a policy cloned from all
        demonstrations.
      gap: positive, broadcasts to [...].
    Returns: [T, ...], 1 or 0; its cumulative sum numbers the segments.
    Gradients: none.
    Source: Deng et al., 2025, "Open-world skill discovery from unsegmented demonstrations" (skill
      boundary detection, with gap 18).
    Example: `losses.skill_boundaries(loss, gap=1.0)`
    """

    def step(carry, here):
        total, number = carry
        total, number = total + here, number + 1
        begins = here - total / number > gap
        return (jnp.where(begins, 0, total), jnp.where(begins, 0, number)), begins

    start = jnp.zeros_like(loss, shape=loss.shape[1:])
    _, begins = jax.lax.scan(step, (start, start), jax.lax.stop_gradient(loss))
    return begins.astype(loss.dtype)
