"""Policy losses from preferences between whole sequences, without a reward model.

Log-probabilities are of whole sequences, sums over their tokens, unless a function says otherwise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.reward_models import bradley_terry
from jaxrl.losses.reductions import _full_mask, at_action

__all__ = [
    "aco",
    "dpo",
    "implicit_reward",
    "ipo",
    "kto",
    "orpo",
    "rrhf",
    "seppo",
    "slic",
    "step_apo",
]


@check_arguments
def implicit_reward(log_prob: Array, reference_log_prob: Array, beta: Array | float) -> Array:
    """Implicit reward, for which a policy is optimal, up to a constant for each prompt.

    beta * log(pi(y) / pi_ref(y)): pi = pi_ref exp(r / beta) / Z is optimal for E[r] - beta KL

    Args: log_prob, reference_log_prob: [...], of sequences or tokens; beta: broadcasts to [...].
    Returns: [...].
    Gradients: none flow into `reference_log_prob`.
    Source: Rafailov et al., 2023, "Direct preference optimization: your language model is secretly
      a reward model", eq. 5.
    Example: `losses.implicit_reward(log_prob, reference_log_prob, beta=0.1)`
    """
    return beta * (log_prob - jax.lax.stop_gradient(reference_log_prob))


@check_arguments
def dpo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    label_smoothing: Array | float = 0.0,
) -> Array:
    """Direct preference optimization (DPO): train a policy as its own reward model on pairs.

    bradley_terry(implicit_reward(chosen), implicit_reward(rejected))

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: strength of the pull toward the reference.
      label_smoothing: probability that a label is wrong (conservative DPO).
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Rafailov et al., 2023, "Direct preference optimization", eq. 7; smoothing: Mitchell,
      2023, "A note on DPO with noisy preferences and relationship to IPO".
    Example: `losses.dpo(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    return bradley_terry(chosen, rejected, label_smoothing=label_smoothing)


@check_arguments
def ipo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """Identity preference optimization (IPO): DPO with a bounded target, safe with certain labels.

    (h - 1 / (2 beta))^2, h = log(pi(yw) / pi_ref(yw)) - log(pi(yl) / pi_ref(yl))

    In the paper pi(y) is a whole sequence's probability, so its logarithm is a sum over tokens. Its
    authors recommend the mean for text, which TRL then adopted (`sequence_log_prob` with
    normalize=True): sums demand the same margin 1 / (2 beta) of long and short answers.

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy: all four log-probabilities are
        sums, or all are means over tokens, which need another beta.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: strength of the pull toward the reference (the paper's tau).
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Azar et al., 2024, "A general theoretical paradigm to understand learning from human
      preferences", eq. 17.
    Example: `losses.ipo(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, 1)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, 1)
    return jnp.square(chosen - rejected - 1 / (2 * beta))


@check_arguments
def kto(
    log_prob: Array,
    reference_log_prob: Array,
    desirable: Array,
    kl: Array,
    beta: Array | float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Array:
    """Kahneman-Tversky optimization (KTO): learn from single good or bad sequences, without pairs.

    w (1 - sigmoid(s * beta * (log(pi(y) / pi_ref(y)) - z))), z = max(kl, 0), s = +1 for desirable
    and -1 for undesirable sequences

    Args:
      log_prob, reference_log_prob: [...].
      desirable: bool [...].
      kl: estimate of KL(pi || pi_ref), broadcasts to [...]: e.g. the batch's mean log-ratio of
        sequences paired with other prompts.
      beta: risk aversion.
      desirable_weight, undesirable_weight: w of the two kinds.
    Returns: [...].
    Gradients: none flow into `reference_log_prob` or `kl`.
    Source: Ethayarajh et al., 2024, "KTO: model alignment as prospect theoretic optimization".
    Example: `losses.kto(log_prob, reference_log_prob, desirable, kl, beta=0.1).mean()`
    """
    point = jax.lax.stop_gradient(jnp.maximum(kl, 0))
    gain = beta * (implicit_reward(log_prob, reference_log_prob, 1) - point)
    good = desirable_weight * jax.nn.sigmoid(-gain)  # 1 - sigmoid(x) = sigmoid(-x)
    return jnp.where(desirable, good, undesirable_weight * jax.nn.sigmoid(gain))


@check_arguments
def orpo(chosen_log_prob: Array, rejected_log_prob: Array, beta: Array | float) -> Array:
    """Odds ratio preference optimization (ORPO): cloning plus a penalty on the rejected odds.

    -log P(yw) - beta log sigmoid(log odds(yw) - log odds(yl)), odds(y) = P(y) / (1 - P(y))

    Args:
      chosen_log_prob, rejected_log_prob: [...], log P: the mean, not the sum, over tokens.
      beta: weight of the odds ratio (the paper's lambda).
    Returns: [...].
    Gradients: none are stopped; P is kept below 1 - 1e-6, where the odds would be infinite.
    Source: Hong et al., 2024, "ORPO: monolithic preference optimization without reference model",
      eq. 6 and 7.
    Example: `losses.orpo(chosen_log_prob, rejected_log_prob, beta=0.1).mean()`
    """

    def log_odds(log_prob):
        log_prob = jnp.minimum(log_prob, -1e-6)
        return log_prob - jnp.log(-jnp.expm1(log_prob))

    ratio = bradley_terry(log_odds(chosen_log_prob), log_odds(rejected_log_prob))
    return beta * ratio - chosen_log_prob


@check_arguments
def slic(chosen_log_prob: Array, rejected_log_prob: Array, margin: Array | float = 1.0) -> Array:
    """Sequence likelihood calibration (SLiC): a hinge loss on two sequences' log-likelihoods.

    max(0, margin - log pi(yw) + log pi(yl))

    Args: chosen_log_prob, rejected_log_prob: [...]; margin: broadcasts to [...].
    Returns: [...]; the paper adds the negative log-likelihood of a supervised target.
    Gradients: none are stopped; 0 where the margin is met.
    Source: Zhao et al., 2023, "SLiC-HF: sequence likelihood calibration with human feedback".
    Example: `losses.slic(chosen_log_prob, rejected_log_prob, margin=1.0).mean()`
    """
    return jnp.maximum(margin - chosen_log_prob + rejected_log_prob, 0)


@check_arguments
def rrhf(log_prob: Array, length: Array, reward: Array, mask: Array | None = None) -> Array:
    """RRHF's loss: rank likelihoods in the order of rewards, and imitate the best response.

    sum_{i, j: r_i < r_j} max(0, p_i - p_j) - log pi(y_best), p_i = log pi(y_i) / length_i

    Args:
      log_prob, reward: [..., K], of K responses to one prompt.
      length: [..., K], numbers of tokens.
      mask: [..., K], true where a response exists (at least one); None: all.
    Returns: [...]; 0 if no response exists.
    Gradients: none flow into `reward`.
    Source: Yuan et al., 2023, "RRHF: rank responses to align language models with human feedback
      without tears".
    Example: `losses.rrhf(log_prob, length, reward, mask).mean()`
    """
    allowed = _full_mask(log_prob, mask)
    log_prob = jnp.where(allowed, log_prob, 0)
    score = log_prob / jnp.maximum(length, 1).astype(log_prob.dtype)
    pairs = allowed[..., :, None] & allowed[..., None, :]
    wrong = pairs & (reward[..., :, None] < reward[..., None, :])
    excess = jnp.maximum(score[..., :, None] - score[..., None, :], 0)
    best = jnp.argmax(jnp.where(allowed, reward, -jnp.inf), -1)
    return jnp.where(wrong, excess, 0).sum((-2, -1)) - at_action(log_prob, best)


@check_arguments
def step_apo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    chosen_value: Array,
    rejected_value: Array,
    beta: Array | float,
) -> Array:
    """DPO between two next steps of a plan, with the difference of a search's values as margin.

    bradley_terry(implicit_reward(chosen), implicit_reward(rejected), margin=V(s_w) - V(s_l))

    Args:
      chosen_log_prob, rejected_log_prob: [...], of the two steps after the same prefix.
      chosen_reference_log_prob, rejected_reference_log_prob: [...].
      chosen_value, rejected_value: [...], of the states after the steps; their difference is the
        difference of the steps' advantages.
      beta: as in `dpo`.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities or the values.
    Source: Wang et al., 2024, "CPL: critical plan step learning boosts LLM generalization in
      reasoning tasks" (Step-APO).
    Example: `losses.step_apo(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, chosen_value, rejected_value, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    margin = jax.lax.stop_gradient(chosen_value - rejected_value)
    return bradley_terry(chosen, rejected, margin)


@check_arguments
def aco(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    chosen_advantage: Array,
    rejected_advantage: Array,
    beta: Array | float,
    temperature: Array | float = 1.0,
) -> Array:
    """DPO that penalizes the rejected sequence less where its advantage is the higher one.

    bradley_terry(implicit_reward(chosen), w implicit_reward(rejected)),
    w = min(1, exp(-(A_l - A_w) / temperature))

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...].
      chosen_advantage, rejected_advantage: [...], A_w and A_l, noisy estimates.
      beta: as in `dpo`.
      temperature: alpha, how slowly the weight decays.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities or the advantages.
    Source: Xu et al., 2025, "Genius: a generalizable and purely unsupervised self-training
      framework for advanced reasoning", eq. 11 and 12 (its published code has max instead of min).
    Example: `losses.aco(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, chosen_advantage, rejected_advantage, beta=0.1).mean()`
    """
    excess = jnp.maximum(rejected_advantage - chosen_advantage, 0)
    weight = jax.lax.stop_gradient(jnp.exp(-excess / temperature))
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    return bradley_terry(chosen, weight * rejected)


@check_arguments
def seppo(
    chosen_log_prob: Array,
    sample_log_prob: Array,
    chosen_reference_log_prob: Array,
    sample_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """Semi-policy preference optimization (SePPO): a good sequence against the reference's sample.

    -log sigmoid(a - s b), a and b the implicit rewards of the good sequence and of the sample,
    s = 1 where a >= 0, else -1: where the reference is nearer to the good sequence than the policy,
    its sample also counts as good

    Args:
      chosen_log_prob, sample_log_prob: [...], under the policy.
      chosen_reference_log_prob, sample_reference_log_prob: [...], under an earlier checkpoint,
        which also generated the sample; for diffusion models use negated denoising errors.
      beta: as in `dpo`.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities; s is a constant.
    Source: Zhang et al., 2024, "SePPO: semi-policy preference optimization for diffusion
      alignment" (anchor-based adaptive flipper).
    Example: `losses.seppo(chosen_log_prob, sample_log_prob, chosen_reference_log_prob,
      sample_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    sample = implicit_reward(sample_log_prob, sample_reference_log_prob, beta)
    return bradley_terry(chosen, jnp.where(chosen >= 0, sample, -sample))
