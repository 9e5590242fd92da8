"""Retraining of a generative model on its own samples, of which people keep what they like best.

policies = retrain(log_prob, reward, n=4, rounds=50, real=log_data, weight=0.2)  # [51, A]

A round writes n samples, keeps one by a softmax of their rewards, and fits the model to what was
kept, and to real data if there are any; with unlimited samples and a table the fit is exact. Every
expectation is a sum over all ways to write the n samples, so supports are small.

Source: Ferbach et al., 2024, "Self-consuming generative models with curated data provably optimize
human preferences", arXiv:2407.09499, section 2.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array

MOST_WAYS = 100_000  # to write the other n - 1 samples


def choice_of_n(log_prob: Array, reward: Array, n: int) -> Array:
    """Return the log-probabilities [A] of one of n samples, chosen by a softmax of their rewards.

    P(y) = n p(y) E[exp r(y) / (exp r(y) + sum of exp r of n - 1 other samples)]

    It is p itself for n = 1, and nears p(y) exp r(y) / E[exp r] for large n.

    log_prob: [A], of the model. reward: [A]. n: at least 1.

    Raises:
        UserError: if n is below 1, or there are more than 100,000 ways to write n - 1 samples.
    """
    counts, ways = _ways(len(reward), n - 1)
    log_prob = jax.nn.log_softmax(log_prob)  # an error of its sum would grow n-fold in each round
    value = jnp.exp(reward - reward.max())
    others = jnp.asarray(ways, log_prob.dtype) + _times(counts, log_prob)
    total = _times(counts, value)  # [C]
    won = value / (value + total[:, None])  # [C, A]
    return log_prob + jnp.log(n * (jnp.exp(others)[:, None] * won).sum(0))


def retrain(
    log_prob: Array,
    reward: Array,
    n: int,
    rounds: int,
    *,
    real: Array | None = None,
    weight: float | Array = 1.0,
) -> Array:
    """Return the models of `rounds` rounds of retraining on curated samples, [rounds + 1, A].

    A round maximizes E_real[log p] + weight E_kept[log p], so that

    p' = (p_real + weight choice_of_n(p)) / (1 + weight).

    log_prob: [A], of the first model. reward: [A]. n: samples of which one is kept.
    real: log-probabilities [A] of real data; None for samples alone.
    weight: of what was kept beside real data, at least 0.

    Raises:
        UserError: as `choice_of_n`.
    """

    def one(now: Array, _: None) -> tuple[Array, Array]:
        kept = choice_of_n(now, reward, n)
        if real is not None:
            kept = jnp.logaddexp(real, kept + jnp.log(weight)) - jnp.log1p(weight)
        return kept, kept

    _, after = jax.lax.scan(one, log_prob, None, rounds)
    return jnp.concatenate([log_prob[None], after])


def _ways(size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each of `size` values is among n samples, in all ways, [C, size], and the
    logarithms of the numbers of their orders, [C]."""
    number = math.comb(size + n - 1, n) if n >= 0 else 0
    if not 0 < number <= MOST_WAYS:
        raise UserError(
            f"n is {n + 1} and there are {size} values; n must be at least 1, and small enough "
            f"that n - 1 samples have at most {MOST_WAYS:,} sets of values."
        )
    chosen = itertools.combinations_with_replacement(range(size), n)
    counts = np.array([np.bincount(np.array(x, int), minlength=size) for x in chosen])
    factorial = np.array([math.lgamma(k + 1) for k in range(n + 1)])
    return counts, factorial[n] - factorial[counts].sum(-1)


def _times(counts: np.ndarray, x: Array) -> Array:
    """Return sums [C] of x [A], each as often as counted; none of a value that is not there."""
    return jnp.where(counts > 0, counts * x, 0).sum(-1)
