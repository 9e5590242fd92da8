"""Words that several hidden tastes rate, and of which a rule forbids some.

There are so few words that all of them can be enumerated (`jaxrl.exact.answers`), so whatever
learns from several rewards, or under a constraint, can be compared with the exact optimum.
"""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.answering import Grade, answering
from jaxrl.envs.language.judged_words import MOST_WORDS


@struct
class Params:
    """Tastes, [K, V, V, V]: read by taste, prompt, letter before and letter. Weights [K]."""

    tastes: np.ndarray  # what a letter after another adds to a word's rating, for each prompt
    weights: np.ndarray  # of the tastes, in the reward


def prefer(judged: Array, other: Array) -> Array:
    """Return the probability [...] that a word of one reward [...] is preferred to another."""
    return jax.nn.sigmoid(judged - other)


@functools.cache
def ruled_words(letters: int = 3, length: int = 3, tastes: int = 2, seed: int = 0) -> Environment:
    """Write a word of up to `length` (L, 3) of `letters` (V, 3) letters that several tastes like.

    The prompt is one letter, the answer a word, `a` -> `cab.`; the word may be empty. Observation:
    the last token, 0 .. V (the letters, then `.`). Action: the next token. Reward: at the end, the
    weighted sum of the ratings by `tastes` (K, 2) hidden tastes (weights 1 / K), each the sum of
    what a letter is worth after the one before it and this prompt; the prompt is the letter before
    the first. The worths are normal, drawn once from `seed`. The ratings are the reward's
    components `taste_0`, `taste_1`...; the cost is 1 for a word that breaks the rule: no letter
    twice in a row, counting the prompt. Terminates at the `.` or after L letters. Prompts are
    uniform.

    A judge prefers a word to another with the probability sigmoid(r - r') for rewards r and r'.
    Raises `UserError` for sizes below 1, more than 25 letters, and more than 100,000 words.
    """
    if not 1 <= letters <= 25 or min(length, tastes) < 1:
        raise UserError(
            f"letters is {letters}, length {length} and tastes {tastes}; there must be 1 to 25 "
            "letters, words of at least 1, and at least 1 taste."
        )
    if sum(letters**n for n in range(length + 1)) > MOST_WORDS:
        raise UserError(f"{letters} letters make more than {MOST_WORDS} words of up to {length}.")
    vocabulary = (*string.ascii_lowercase[:letters], ".")
    shape = (tastes, letters, letters, letters)
    table = np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def prompt(key: Key, params: Params) -> Array:
        return jax.random.randint(key, (1,), 0, letters)

    def grade(prompt: Array, answer: Array, ended: Array, params: Params) -> Grade:
        before = jnp.append(prompt, answer[:-1])
        written, read = answer < letters, lambda x: jnp.minimum(x, letters - 1)
        worth = jnp.asarray(params.tastes)[:, prompt[0], read(before), read(answer)]
        ratings = jnp.where(written, worth, 0).sum(-1)
        reward = (ratings * jnp.asarray(params.weights)).sum()
        broken = (written & (answer == before)).any()
        components = {f"taste_{k}": ratings[k] for k in range(tastes)}
        cost = broken.astype(jnp.float32)
        return Grade(reward, judged=reward, components=components, cost=cost)

    return answering(
        "ruled_words",
        vocabulary,
        1,
        length,
        prompt=prompt,
        grade=grade,
        params=Params(table, np.full(tastes, 1 / tastes, np.float32)),
        judge=prefer,
    )
