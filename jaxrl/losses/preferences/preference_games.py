"""Losses of preference games, in which a policy is judged by how often it beats another."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.preferences.pairs import implicit_reward, ipo

__all__ = [
    "general_preference",
    "inpo",
    "online_ipo",
    "preference_score",
    "sppo",
]


@check_arguments
def preference_score(embedding: Array, other_embedding: Array) -> Array:
    """Score of one sequence against another in a general preference model (GPM), a log-odds.

    sum_k a_k b'_k - b_k a'_k, (a_k, b_k) the k-th pair of an embedding's entries: with one pair
    (r, 1) that is the difference r - r'. In the other order it is the negative

    Args: embedding, other_embedding: [..., 2 K], of two sequences.
    Returns: [...].
    Gradients: none are stopped.
    Source: Zhang et al., 2024, "General preference modeling with preference representations for
      aligning language models" (without its scale beta, which embeddings absorb).
    Example: `losses.preference_score(embedding, other_embedding)`
    """
    split = lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], -1, 2), -1, 0)
    (a, b), (other_a, other_b) = split(embedding), split(other_embedding)
    return (a * other_b - b * other_a).sum(-1)


@check_arguments
def general_preference(embedding: Array, other_embedding: Array) -> Array:
    """Probability of a general preference model (GPM), which can express cycles of preferences.

    sigmoid(preference_score(embedding, other_embedding)): with one pair of entries (r, 1) that is
    Bradley and Terry's sigmoid(r - r')

    Args: embedding, other_embedding: [..., 2 K], of two sequences.
    Returns: [...], that the first is preferred to the other.
    Gradients: none are stopped.
    Source: Zhang et al., 2024, "General preference modeling with preference representations for
      aligning language models" (without its scale beta, which embeddings absorb).
    Example: `losses.general_preference(embedding, other_embedding)`
    """
    return jax.nn.sigmoid(preference_score(embedding, other_embedding))


@check_arguments
def sppo(log_prob: Array, old_log_prob: Array, win_rate: Array, eta: Array | float) -> Array:
    """Self-play preference optimization (SPPO): regress a policy's log-ratio on its win rate.

    (log(pi(y) / pi_old(y)) - eta (win_rate - 1/2))^2

    Args:
      log_prob, old_log_prob: [...], of sequences sampled from the previous iteration's policy.
      win_rate: [...], how often the sequence beats other samples of that policy.
      eta: step size of the multiplicative-weights update that the minimizer performs.
    Returns: [...].
    Gradients: none flow into `old_log_prob` or `win_rate`.
    Source: Wu et al., 2024, "Self-play preference optimization for language model alignment".
    Example: `losses.sppo(log_prob, old_log_prob, win_rate, eta=1.0).mean()`
    """
    target = eta * (jax.lax.stop_gradient(win_rate) - 0.5)
    return jnp.square(implicit_reward(log_prob, old_log_prob, 1) - target)


@check_arguments
def inpo(
    chosen_log_prob: Array,
    rejected_log_prob: Array,
    chosen_old_log_prob: Array,
    rejected_old_log_prob: Array,
    chosen_reference_log_prob: Array,
    rejected_reference_log_prob: Array,
    eta: Array | float,
    beta: Array | float,
) -> Array:
    """Iterative Nash policy optimization (INPO): one self-play step, from preference pairs only.

    (h(pi) - (beta / eta) h(pi_ref) - (1 - beta / eta) h(pi_old) - 1 / (2 eta))^2,
    h(p) = log p(yw) - log p(yl)

    Args:
      chosen_log_prob, rejected_log_prob: [...], under the policy.
      chosen_old_log_prob, rejected_old_log_prob: [...], under the previous iteration's policy,
        which generated both sequences.
      chosen_reference_log_prob, rejected_reference_log_prob: [...], under the frozen reference.
      eta: inverse step size of the mirror descent, at least beta. With eta = beta this is `ipo`.
      beta: strength of the pull toward the reference (the paper's tau).
    Returns: [...].
    Gradients: none flow into the old or the reference's log-probabilities.
    Source: Zhang et al., 2025, "Iterative Nash policy optimization: aligning LLMs with general
      preferences via no-regret learning".
    Example: `losses.inpo(chosen_log_prob, rejected_log_prob, chosen_old_log_prob,
      rejected_old_log_prob, chosen_reference_log_prob, rejected_reference_log_prob, eta=0.2,
      beta=0.1).mean()`
    """
    share = beta / eta
    chosen = share * chosen_reference_log_prob + (1 - share) * chosen_old_log_prob
    rejected = share * rejected_reference_log_prob + (1 - share) * rejected_old_log_prob
    return ipo(chosen_log_prob, rejected_log_prob, chosen, rejected, eta)


@check_arguments
def online_ipo(
    log_prob: Array,
    other_log_prob: Array,
    reference_log_prob: Array,
    other_reference_log_prob: Array,
    win_rate: Array,
    other_win_rate: Array | float,
    beta: Array | float,
) -> Array:
    """IPO as regression on preferences against an opponent, a gradient step of a preference game.

    (log(pi(y) / pi_ref(y)) - log(pi(y') / pi_ref(y')) - (P(y > y'') - P(y' > y'')) / beta)^2

    Args:
      log_prob, other_log_prob: [...], of two sequences y, y'.
      reference_log_prob, other_reference_log_prob: [...], under the frozen reference.
      win_rate, other_win_rate: [...], how often y and y' beat the opponent's samples y''; or
        P(y > y') and 1/2 for pairs sampled from the policy itself.
      beta: strength of the pull toward the reference.
    Returns: [...].
    Gradients: none flow into the reference's log-probabilities or the win rates.
    Source: Calandriello et al., 2024, "Human alignment of large language models through online
      preference optimization"; in this form Zhou et al., 2025, "Extragradient preference
      optimization (EGPO)", and its published code.
    Example: `losses.online_ipo(log_prob, other_log_prob, reference_log_prob,
      other_reference_log_prob, win_rate, other_win_rate, beta=0.1).mean()`
    """
    ratio = implicit_reward(log_prob, reference_log_prob, 1)
    other = implicit_reward(other_log_prob, other_reference_log_prob, 1)
    target = jax.lax.stop_gradient(win_rate - other_win_rate) / beta
    return jnp.square(ratio - other - target)
