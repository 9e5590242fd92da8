"""Rational speech acts in `regex_by_example`, or any table of programs and strings.

The literal listener is uniform over the programs that agree with all strings; the pragmatic
speaker of a program chooses each next string in proportion to the literal listener's probability
of the program (`regex_by_example.speak`); and the pragmatic listener is the posterior given this
speaker and a uniform prior, so no listener does better where users speak so. Vaduguru, Fried and Pu
(2023), "Generating pragmatic examples to train neural program synthesizers" (arXiv:2311.05740),
replace these tables by networks.

In all functions `meanings` is bool [H, X], which strings each program matches; `shown` int32 [K],
the strings in order, NONE after the last; and `labels` bool [K].
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array
from jaxrl.envs.language.regex_by_example import NONE, agree, speak


def literal_listener(meanings: Array, shown: Array, labels: Array) -> Array:
    """Return the literal listener's probability of each program, [H].

    At least one program must agree with the strings.
    """
    possible = agree(meanings, shown, labels)
    return possible / possible.sum()


def utterance_probability(
    meanings: Array, shown: Array, labels: Array, rationality: Array | float = 1.0
) -> Array:
    """Return the probability that a user of each program shows these strings in order, [H]; 0 where
    the program does not agree with them."""
    chance = agree(meanings, shown, labels).astype(float)
    for k in range(len(shown)):
        before = jnp.where(jnp.arange(len(shown)) < k, shown, NONE)
        possible = agree(meanings, before, labels)
        chances = speak(meanings, possible, before, rationality)[:, shown[k]]
        chance = chance * jnp.where(shown[k] == NONE, 1.0, chances)
    return chance


def pragmatic_listener(
    meanings: Array, shown: Array, labels: Array, rationality: Array | float = 1.0
) -> Array:
    """Return the pragmatic listener's probability of each program, [H], for users of the given
    rationality."""
    chance = utterance_probability(meanings, shown, labels, rationality)
    return chance / chance.sum()


def top_1_accuracy(probs: Array, program: Array | int) -> Array:
    """Return the probability that the first of the programs by `probs` [H], ties broken evenly, is
    `program`."""
    best = probs >= probs.max() * (1 - 1e-5)
    return best[program] / best.sum()
