"""Policy losses from pairs of sequences that need no reference policy, besides ORPO and SLiC."""

from __future__ import annotations

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.reward_models import bradley_terry

__all__ = [
    "cpo",
    "simpo",
]


@check_arguments
def cpo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    beta: Array | float,
    label_smoothing: Array | float = 0.0,
) -> Array:
    """Preference term of contrastive preference optimization (CPO): DPO with a uniform reference.

    bradley_terry(beta log pi(yw), beta log pi(yl)); CPO adds the negative log-likelihood of yw

    Args:
      chosen_log_prob, rejected_log_prob: [...], sums over tokens.
      beta: scale of log-probabilities.
      label_smoothing: as in `dpo`.
    Returns: [...].
    Gradients: none are stopped.
    Source: Xu et al., 2024, "Contrastive preference optimization: pushing the boundaries of LLM
      performance in machine translation", eq. 3.
    Example: `losses.cpo(chosen_log_prob, rejected_log_prob, beta=0.1).mean()`
    """
    chosen, rejected = beta * chosen_log_prob, beta * rejected_log_prob
    return bradley_terry(chosen, rejected, label_smoothing=label_smoothing)


@check_arguments
def simpo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    beta: Array | float,
    margin: Array | float,
) -> Array:
    """Simple preference optimization (SimPO): the mean log-probability of a token as the reward.

    bradley_terry(beta p_w, beta p_l, margin), p = log pi(y) / length

    Args:
      chosen_log_prob, rejected_log_prob: [...], the mean, not the sum, over tokens.
      beta: scale of the reward.
      margin: by how much the chosen reward should lead, broadcasts to [...] (the paper's gamma).
    Returns: [...].
    Gradients: none are stopped.
    Source: Meng et al., 2024, "SimPO: simple preference optimization with a reference-free reward",
      eq. 6.
    Example: `losses.simpo(chosen_log_prob, rejected_log_prob, beta=2.0, margin=1.0).mean()`
    """
    return bradley_terry(beta * chosen_log_prob, beta * rejected_log_prob, margin)
