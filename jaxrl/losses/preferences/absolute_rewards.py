"""Direct preference losses in which implicit rewards count as they are, not their difference alone.

Log-probabilities are of whole sequences, sums over their tokens. Below, a and b are the implicit
rewards of the chosen and of the rejected sequence, beta log(pi(y) / pi_ref(y)).
"""

from __future__ import annotations

import jax

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.pairs import implicit_reward

__all__ = [
    "apo_down",
    "apo_zero",
    "bco",
    "nca",
]


@check_arguments
def nca(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """Noise contrastive alignment (NCA) of pairs: absolute rewards, so that the chosen one rises.

    -log sigmoid(a) - (log sigmoid(-a) + log sigmoid(-b)) / 2

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: Chen et al., 2024, "Noise contrastive alignment of language models with explicit
      rewards" (NCA for preference data).
    Example: `losses.nca(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    noise = jax.nn.log_sigmoid(-chosen) + jax.nn.log_sigmoid(-rejected)
    return -jax.nn.log_sigmoid(chosen) - noise / 2


@check_arguments
def bco(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
    shift: Array | float = 0.0,
) -> Array:
    """Binary classifier optimization (BCO) of pairs: good and bad are told apart one by one.

    -log sigmoid(a - shift) - log sigmoid(-(b - shift))

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
      shift: broadcasts to [...], the mean implicit reward (the paper's delta), which may come from
        a moving average; 0 in pairs.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities or the shift.
    Source: Jung et al., 2024, "Binary classifier optimization for large language model alignment".
    Example: `losses.bco(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    shift = jax.lax.stop_gradient(shift)
    return -jax.nn.log_sigmoid(chosen - shift) - jax.nn.log_sigmoid(shift - rejected)


@check_arguments
def apo_zero(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """Anchored preference optimization (APO-zero): chosen up, rejected down, anchored at 0.

    1 - sigmoid(a) + sigmoid(b): for pairs whose chosen sequence is better than the policy's own

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: D'Oosterlinck et al., 2024, "Anchored preference optimization and contrastive revisions:
      addressing underspecification in alignment", eq. 7.
    Example: `losses.apo_zero(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    return jax.nn.sigmoid(-chosen) + jax.nn.sigmoid(rejected)


@check_arguments
def apo_down(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    beta: Array | float,
) -> Array:
    """Anchored preference optimization (APO-down): both down, the rejected sequence further.

    sigmoid(a) + 1 - sigmoid(a - b): for pairs whose chosen sequence is worse than the policy's own

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      beta: as in `dpo`.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities.
    Source: D'Oosterlinck et al., 2024, "Anchored preference optimization and contrastive revisions:
      addressing underspecification in alignment", eq. 8.
    Example: `losses.apo_down(chosen_log_prob, rejected_log_prob, chosen_reference_log_prob,
      rejected_reference_log_prob, beta=0.1).mean()`
    """
    chosen = implicit_reward(chosen_log_prob, chosen_reference_log_prob, beta)
    rejected = implicit_reward(rejected_log_prob, rejected_reference_log_prob, beta)
    return jax.nn.sigmoid(chosen) + jax.nn.sigmoid(rejected - chosen)
