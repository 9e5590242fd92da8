"""Arithmetic, digit by digit, with an exact verifier: adding numbers, also with a hint, and
splitting numbers in two."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.answering import answering, right_or_wrong

VOCABULARY = (*"0123456789", "+", "=", ".")
PLUS, EQUALS, END = 10, 11, 12
HINTED_VOCABULARY = (*"0123456789", "+", "=", "?", ".")


@struct
class Params:
    """Range of the numbers in a prompt, drawn uniformly from `low` up to, not including, `high`."""

    low: int  # least number in a prompt
    high: int  # number that all numbers in a prompt are below


@struct
class HintedParams:
    """Range of the numbers in a prompt, and how often it has a hint."""

    low: int  # least number in a prompt
    high: int  # number that all numbers in a prompt are below
    hinted: float  # probability that a prompt has a hint


def to_digits(number: Array, size: int) -> Array:
    """Return the last `size` decimal digits of `number`, the highest first: int32 [size]."""
    return number // 10 ** jnp.arange(size - 1, -1, -1) % 10


def to_number(digits: Array) -> Array:
    """Return the number that decimal digits [size] stand for."""
    return (digits * 10 ** jnp.arange(digits.shape[0] - 1, -1, -1)).sum()


def write_sum(prompt: Array, digits: int, end: int) -> Array:
    """Return the answer to `12+34=`, numbers of `digits` digits, without leading zeros and filled
    up with the token `end`: int32 [digits + 2]."""
    total = to_number(prompt[:digits]) + to_number(prompt[digits + 1 : -1])
    written = to_digits(total, digits + 1)
    zeros = jnp.argmax(jnp.append(written[:-1] > 0, True))  # leading zeros; a single 0 stays
    place = jnp.arange(digits + 2) + zeros
    return jnp.where(place <= digits, written[jnp.minimum(place, digits)], end)


def _size(digits: int) -> None:
    if not 1 <= digits <= 4:
        raise UserError(f"digits is {digits}; it must be between 1 and 4.")


@functools.cache
def addition(digits: int = 2) -> Environment:
    """Add two numbers of `digits` (D, 2) digits.

    The prompt is `12+34=`, with leading zeros; the answer is `46.`, without leading zeros, the
    highest digit first. Observation: the last token, 0 .. 12 (the digits, `+`, `=`, `.`). Action:
    the next token. Reward: 1 for a right answer at its end, the `.`, else 0; `success` is the same.
    Terminates at the end of the answer, at most D + 2 tokens. Both numbers are drawn uniformly from
    `low` (0) up to, not including, `high` (10^D). Raises `UserError` unless 1 <= digits <= 4.
    """
    _size(digits)
    sizes = digits * 2 + 2, digits + 2

    def prompt(key: Key, params: Params) -> Array:
        numbers = jax.random.randint(key, (2,), params.low, params.high)
        a, b = (to_digits(number, digits) for number in numbers)
        return jnp.concatenate([a, jnp.array([PLUS]), b, jnp.array([EQUALS])])

    def solve(prompt: Array) -> Array:
        return write_sum(prompt, digits, END)

    def verify(prompt: Array, answer: Array) -> Array:
        return (answer == solve(prompt)).all()

    more = {"prompt": prompt, "grade": right_or_wrong(verify), "solve": solve}
    return answering("addition", VOCABULARY, *sizes, params=Params(0, 10**digits), **more)


@functools.cache
def hinted_addition(digits: int = 2, hint: int = 1) -> Environment:
    """Add two numbers of `digits` (D, 2) digits, of whose sum a prompt may tell the beginning.

    The prompt is `?12+34=`, or with a hint `412+34=`, which begins with the first `hint` (H, 1)
    tokens of the answer; there is a hint with the probability `hinted` (0). Numbers, answers and
    rewards are those of `addition`, whether or not there is a hint. Observation: the last token,
    0 .. 13 (the digits, `+`, `=`, `?`, `.`). Action: the next token. Raises `UserError` unless
    1 <= digits <= 4 and 1 <= hint <= D + 2.
    """
    _size(digits)
    if not 1 <= hint <= digits + 2:
        raise UserError(f"hint is {hint}; it must be between 1 and {digits + 2}, an answer's size.")
    hidden, end = HINTED_VOCABULARY.index("?"), len(HINTED_VOCABULARY) - 1
    solve = lambda prompt: write_sum(prompt[hint:], digits, end)

    def prompt(key: Key, params: HintedParams) -> Array:
        key, told = jax.random.split(key)
        numbers = jax.random.randint(key, (2,), params.low, params.high)
        a, b = (to_digits(number, digits) for number in numbers)
        text = jnp.concatenate([a, jnp.array([PLUS]), b, jnp.array([EQUALS])])
        shown = jax.random.bernoulli(told, params.hinted)
        begins = jnp.where(shown, write_sum(text, digits, end)[:hint], hidden)
        return jnp.concatenate([begins, text])

    def verify(prompt: Array, answer: Array) -> Array:
        return (answer == solve(prompt)).all()

    return answering(
        "hinted_addition",
        HINTED_VOCABULARY,
        hint + 2 * digits + 2,
        digits + 2,
        prompt=prompt,
        grade=right_or_wrong(verify),
        solve=solve,
        params=HintedParams(0, 10**digits, 0.0),
    )


@functools.cache
def splitting(digits: int = 2) -> Environment:
    """Split a number of `digits` (D, 2) digits into two positive numbers of as many digits; many
    answers are right.

    The prompt is `46=`, the answer `12+34.` or any other two numbers, both above 0, that add up to
    it, with leading zeros. Observation: the last token, 0 .. 12 (the digits, `+`, `=`, `.`).
    Action: the next token. Reward: 1 for a right answer at its end, the `.`, else 0; `success` is
    the same. Terminates at the end of the answer, at most 2 D + 2 tokens. The number is drawn
    uniformly from `low` (2) up to, not including, `high` (10^D). The expert splits the number in
    half. Raises `UserError` unless 1 <= digits <= 4.
    """
    _size(digits)
    sizes = digits + 1, 2 * digits + 2

    def prompt(key: Key, params: Params) -> Array:
        number = jax.random.randint(key, (), params.low, params.high)
        return jnp.append(to_digits(number, digits), EQUALS)

    def solve(prompt: Array) -> Array:
        number = to_number(prompt[:-1])
        a, b = (to_digits(x, digits) for x in (number // 2, number - number // 2))
        return jnp.concatenate([a, jnp.array([PLUS]), b, jnp.array([END])])

    def verify(prompt: Array, answer: Array) -> Array:
        a, b = answer[:digits], answer[digits + 1 : -1]
        written = (a <= 9).all() & (b <= 9).all() & (answer[digits] == PLUS) & (answer[-1] == END)
        a, b = to_number(a), to_number(b)
        return written & (a > 0) & (b > 0) & (a + b == to_number(prompt[:-1]))

    more = {"prompt": prompt, "grade": right_or_wrong(verify), "solve": solve}
    return answering("splitting", VOCABULARY, *sizes, params=Params(2, 10**digits), **more)
