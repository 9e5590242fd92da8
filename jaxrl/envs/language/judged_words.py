"""Words that a hidden taste rates, or that a judge prefers to one another in circles.

There are so few words that all of them can be enumerated (`jaxrl.exact.answers`), so whatever
learns from rewards or preferences of answers can be compared with the exact optimum.
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

MOST_WORDS = 100_000  # for each prompt


@struct
class Params:
    """Taste of the judge. The tables are read by prompt, letter before and letter."""

    taste: np.ndarray  # what a letter after another adds to a word's reward, for each prompt
    plane: np.ndarray  # what it adds to the two coordinates in which preferences go round
    cycle: float  # weight of the cycles in preferences; 0 for those that the reward explains


def prefer(judged: Array, other: Array) -> Array:
    """Return the probability [...] that a word is preferred to another.

    judged, other: [..., 3], reward and two coordinates (r, u, v) of each:
    sigmoid(r - r' + u v' - v u').
    """
    (r, u, v), (other_r, other_u, other_v) = jnp.moveaxis(jnp.stack([judged, other]), -1, 1)
    return jax.nn.sigmoid(r - other_r + u * other_v - v * other_u)


@functools.cache
def judged_words(letters: int = 3, length: int = 3, seed: int = 0) -> Environment:
    """Write a word of up to `length` (L, 3) of `letters` (V, 3) letters that a hidden taste likes.

    The prompt is one letter, the answer a word, `a` -> `cab.`; the word may be empty. Observation:
    the last token, 0 .. V (the letters, then `.`). Action: the next token. Reward: at the end, the
    sum of what each letter of the word is worth after the one before it and this prompt; the prompt
    is the letter before the first. The worths are normal, drawn once from `seed`. Terminates at
    the `.` or after L letters. Prompts are uniform.

    A judge prefers one word to another with the probability sigmoid(r - r' + cycle (u v' - v u')),
    where r is the reward, and u and v are further such sums: with a `cycle` (0) above 0 preferences
    may go round, so that no reward explains them (the general preference model of Zhang et al.,
    2024, arXiv:2410.02197, as in `losses.general_preference`). Raises `UserError` for sizes below
    1, more than 25 letters, and more than 100,000 words.
    """
    if not 1 <= letters <= 25 or length < 1:
        raise UserError(
            f"letters is {letters} and length {length}; there must be 1 to 25 letters, and words "
            "of at least 1."
        )
    if sum(letters**n for n in range(length + 1)) > MOST_WORDS:
        raise UserError(f"{letters} letters make more than {MOST_WORDS} words of up to {length}.")
    vocabulary = (*string.ascii_lowercase[:letters], ".")
    rng, shape = np.random.default_rng(seed), (letters, letters, letters)
    taste = rng.normal(size=shape).astype(np.float32)
    plane = rng.normal(size=(2, *shape)).astype(np.float32)

    def prompt(key: Key, params: Params) -> Array:
        return jax.random.randint(key, (1,), 0, letters)

    def grade(prompt: Array, answer: Array, ended: Array, params: Params) -> Grade:
        before = jnp.minimum(jnp.append(prompt, answer[:-1]), letters - 1)
        written, letter = answer < letters, jnp.minimum(answer, letters - 1)

        def total(table: Array | np.ndarray) -> Array:
            return jnp.where(written, jnp.asarray(table)[prompt[0], before, letter], 0).sum()

        reward, (u, v) = total(params.taste), (total(table) for table in params.plane)
        scale = jnp.sqrt(params.cycle)
        judged = jnp.stack([reward, scale * u, scale * v])
        return Grade(reward, judged=judged.astype(jnp.float32))

    return answering(
        "judged_words",
        vocabulary,
        1,
        length,
        prompt=prompt,
        grade=grade,
        params=Params(taste, plane, 0.0),
        judge=prefer,
    )
