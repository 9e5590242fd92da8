"""Direct preference losses of the difference of two implicit rewards, besides DPO and IPO.

Log-probabilities are of whole sequences, sums over their tokens. Below, a and b are the implicit
rewards of the chosen and of the rejected sequence, beta log(pi(y) / pi_ref(y)).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.pairs import implicit_reward
from jaxrl.losses.preferences.reward_models import bradley_terry

__all__ = [
    "aot",
    "aot_unpaired",
    "discopop",
    "dpo_hinge",
    "exo",
    "robust_dpo",
]


@check_arguments
def dpo_hinge(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """DPO with a hinge in place of the logistic loss, which stops at a margin of 1.

    max(0, 1 - (a - b))

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`; 1 / beta is the margin of log-ratios (SLiC's, normalized by a reference).
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities; 0 where the margin is met.
    Source: Liu et al., 2024, "Statistical rejection sampling improves preference optimization"
      (RSO), hinge-norm loss.
    Example: `losses.dpo_hinge(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    return jnp.maximum(1 - (chosen - rejected), 0)


@check_arguments
def robust_dpo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    flip: Array | float,
) -> Array:
    """Robust DPO: an unbiased estimate of DPO's loss where a known share of labels is flipped.

    ((1 - flip) dpo(chosen, rejected) - flip dpo(rejected, chosen)) / (1 - 2 flip)

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
      flip: probability that a label is flipped, below 1/2.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Chowdhury et al., 2024, "Provably robust DPO: aligning language models with noisy
      feedback".
    Example: `losses.robust_dpo(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1, flip=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    right, wrong = bradley_terry(chosen, rejected), bradley_terry(rejected, chosen)
    return ((1 - flip) * right - flip * wrong) / (1 - 2 * flip)


@check_arguments
def exo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    label_smoothing: Array | float = 1e-3,
) -> Array:
    """Efficient exact optimization (EXO) of pairs: by the reverse KL divergence, not DPO's.

    KL([q, 1 - q] || [1 - e, e]), q = sigmoid(a - b), e the label smoothing

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo` (the paper's beta_pi, with beta_r in the labels).
      label_smoothing: probability that a label is wrong, between 0 and 1/2, neither included.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Ji et al., 2024, "Towards efficient exact optimization of language model alignment",
      eq. 16.
    Example: `losses.exo(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1, label_smoothing=1e-3).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    first, second = jax.nn.log_sigmoid(chosen - rejected), jax.nn.log_sigmoid(rejected - chosen)
    right, wrong = jnp.log1p(-label_smoothing), jnp.log(label_smoothing)
    return jnp.exp(first) * (first - right) + jnp.exp(second) * (second - wrong)


@check_arguments
def discopop(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    temperature: Array | float = 0.05,
) -> Array:
    """DiscoPOP's loss, found by a language model: logistic where a pair is wrong, else exponential.

    (1 - m) (-log sigmoid(d)) + m exp(-d), d = a - b, m = sigmoid(d / temperature)

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
      temperature: of the modulation (the paper's tau).
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Lu et al., 2024, "Discovering preference optimization algorithms with and for large
      language models", eq. 5 (log-ratio modulated loss).
    Example: `losses.discopop(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    lead = chosen - rejected
    # m exp(-d) by logarithms: where d is far below 0, m is 0 and exp(-d) infinite.
    exponential = jnp.exp(jax.nn.log_sigmoid(lead / temperature) - lead)
    return jax.nn.sigmoid(-lead / temperature) * bradley_terry(chosen, rejected) + exponential


@check_arguments
def aot(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    label_smoothing: Array | float = 0.0,
) -> Array:
    """Alignment by optimal transport (AOT) of pairs: the policy's margins above the reference's.

    bradley_terry(beta h_(i), beta h_ref_(i)), h = log pi(yw) - log pi(yl), both in rising order

    Args:
      chosen_log_prob, rejected_log_prob: [..., N], under the policy, of a minibatch's N pairs.
      chosen_reference_log_prob, rejected_reference_log_prob: [..., N], under the frozen reference.
      beta: as in `dpo`.
      label_smoothing: as in `dpo`.
    Returns: [..., N], of ranks, not of pairs. The loss is of the two distributions of margins
      (first order stochastic dominance), so it depends on which pairs are in a minibatch.
    Gradients: none flow into the reference's log-probabilities.
    Source: Melnyk et al., 2024, "Distributional preference alignment of LLMs via optimal
      transport", paired AOT.
    Example: `losses.aot(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    margin = jnp.sort(chosen_log_prob - rejected_log_prob, -1)
    frozen = jax.lax.stop_gradient(chosen_reference_log_prob - rejected_reference_log_prob)
    frozen = jnp.sort(frozen, -1)
    return bradley_terry(beta * margin, beta * frozen, label_smoothing=label_smoothing)


@check_arguments
def aot_unpaired(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    label_smoothing: Array | float = 0.0,
) -> Array:
    """Alignment by optimal transport (AOT) of single labels: chosen rewards above rejected ones.

    bradley_terry(a_(i), b_(i)), the implicit rewards a of the chosen and b of the rejected, both in
    rising order

    Args:
      chosen_log_prob, rejected_log_prob: [..., N], under the policy; no chosen sequence belongs to
        a rejected one.
      chosen_reference_log_prob, rejected_reference_log_prob: [..., N], under the frozen reference.
      beta: as in `dpo`.
      label_smoothing: as in `dpo`.
    Returns: [..., N], of ranks.
    Gradients: none flow into the reference's log-probabilities.
    Source: Melnyk et al., 2024, "Distributional preference alignment of LLMs via optimal
      transport", unpaired AOT.
    Example: `losses.aot_unpaired(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    order = jnp.sort(chosen, -1), jnp.sort(rejected, -1)
    return bradley_terry(*order, label_smoothing=label_smoothing)
