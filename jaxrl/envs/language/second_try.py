"""Sums of which a part is hidden, to be tried twice: what is said of the first attempt helps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.arithmetic import to_digits, to_number
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import split_prompts

VOCABULARY = (*"0123456789", "+", "=", "<", ">", "!", "#", ".")
PLUS, EQUALS, LESS, MORE, RIGHT, ERROR = range(10, 16)


@struct
class Params:
    """Choice of the sums, chances of what is added to them, and the reward of an attempt."""

    held_out: bool  # whether to ask for held-out sums instead of those for training
    chances: np.ndarray  # chances, up to a factor, that 0, 1 or 2 is added in secret
    first_reward: float  # reward of a right first attempt; that of a right second one is 1


@struct
class Memory:
    """Sum, what was added to it, and what the feedback has told about that."""

    total: Array  # int32: of the numbers in the prompt
    added: Array  # int32
    low: Array  # int32: least number that may have been added
    high: Array  # int32: number that it is below
    first: Array  # float32: whether the first attempt was right


@functools.cache
def second_try(digits: int = 1) -> Environment:
    """Add two numbers of `digits` (D, 1) digits and a hidden 0, 1 or 2, in two attempts.

    The prompt is `3+4=`, with leading zeros. An attempt is D + 1 digits, with leading zeros; the
    reply says whether the number sought is less, `<`, or more, `>`, or that the attempt was right,
    `!`, or no number, `#`; then a second attempt follows in any case: `3+4=08>09`. Observation: the
    last token, 0 .. 16 (the digits, `+`, `=`, `<`, `>`, `!`, `#`, `.`). Action: the next token.
    Reward: `first_reward` (1) for a right first attempt and 1 for a right second one, each at its
    end. `first` says whether the first attempt was right and `success` whether the second was;
    `repaired` and `spoiled`, whether the second made a wrong one right or a right one wrong. The
    hidden number is drawn by `chances` (0.4, 0.3, 0.3).

    A fifth of the 100^D sums is held out: `held_out` (False) asks for these instead of the others.
    Which attempts are best is known exactly: a first attempt can be right with a probability of
    0.4, after which the second can be right with 0.7; but one that adds 1, right with 0.3, makes
    the second always right. So a policy that only perfects its first attempt corrects itself worse,
    which is what SCoRe's second attempts are about (Kumar et al., 2024, arXiv:2409.12917). The
    expert maximizes the expected sum of both rewards. Raises `UserError` unless 1 <= digits <= 2.
    """
    if not 1 <= digits <= 2:
        raise UserError(f"digits is {digits}; it must be 1 or 2.")
    sums = split_prompts(100**digits)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        key, hidden = jax.random.split(key)
        both = sums.draw(key, params.held_out)
        a, b = both // 10**digits, both % 10**digits
        added = jax.random.categorical(hidden, jnp.log(jnp.asarray(params.chances)))
        signs = (jnp.array([sign]) for sign in (PLUS, EQUALS))
        plus, equals = signs
        prompt = jnp.concatenate([to_digits(a, digits), plus, to_digits(b, digits), equals])
        zero = jnp.zeros((), jnp.int32)
        return prompt, Memory(a + b, added.astype(jnp.int32), zero, zero + 3, jnp.float32(0))

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        valid = (said.tokens <= 9).all()
        guess = (to_number(said.tokens) - memory.total).astype(jnp.int32)
        right, less = valid & (guess == memory.added), valid & (memory.added < guess)
        more = valid & (memory.added > guess)
        low = jnp.where(more, jnp.maximum(memory.low, guess + 1), memory.low)
        high = jnp.where(less, jnp.minimum(memory.high, guess), memory.high)
        low, high = jnp.where(right, guess, low), jnp.where(right, guess + 1, high)
        found = right.astype(jnp.float32)
        begins = said.turn == 0
        first = jnp.where(begins, found, memory.first)
        metrics = {
            "first": first,
            "repaired": found * (1 - first),
            "spoiled": (1 - found) * first,
        }
        reply = jnp.select([right, less, more], [RIGHT, LESS, MORE], ERROR)
        return Reply(
            reply[None],
            Memory(memory.total, memory.added, low, high, first),
            Grade(found * jnp.where(begins, params.first_reward, 1.0), found, metrics=metrics),
            count=1,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        number, chance = jnp.arange(3), jnp.asarray(params.chances)
        possible = (number >= memory.low) & (number < memory.high)
        likeliest = jnp.argmax(jnp.where(possible, chance, -1))
        below, above = jnp.arange(3) < number[:, None], jnp.arange(3) > number[:, None]
        after = [jnp.where(side, chance, 0).max(-1) for side in (below, above)]
        worth = params.first_reward * chance + chance + after[0] + after[1]
        added = jnp.where(turn == 0, jnp.argmax(worth), likeliest)
        return to_digits(memory.total + added, digits + 1)

    return conversing(
        "second_try",
        VOCABULARY,
        (digits + 1,) * 2,
        begin=begin,
        respond=respond,
        solve=solve,
        params=Params(False, np.array([0.4, 0.3, 0.3], np.float32), 1.0),
    )
