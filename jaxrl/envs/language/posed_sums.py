"""Sums of digits that one role poses with their answers and another one solves."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

SIGNS = (*"+-=?@", ".")
PLUS, MINUS, EQUALS, POSE, SOLVE, END = range(len(SIGNS))  # after the digits


@struct
class Params:
    """Origin of the sums."""

    given: int  # number of terms of given sums; 0: the proposer poses them


@struct
class Memory:
    """Sum that is posed."""

    digit: Array  # int32: its first term
    line: Array  # int32 [U]: how it goes on, with its answer: the expert's, or what was said
    given: Array  # bool: whether nothing else can be said


@struct
class Problem:
    """Meaning of a line.

    equals: int32 [], the place of `=`. answer: int32 [], the digit after it. value: int32 [], the
    sum modulo the base. valid: bool [], whether the line is `+` or `-` and a digit, at least once,
    then `=` and a digit.
    """

    equals: Array
    answer: Array
    value: Array
    valid: Array


def read_line(digit: Array, line: Array, base: int) -> Problem:
    """Return what is posed by a first term and a line, int32 [U], filled up with END; there are
    `base` digits."""
    place, sign = jnp.arange(len(line)), line - base
    found = sign == EQUALS
    equals = jnp.argmax(found)
    before, odd, joins = place < equals, place % 2 == 1, (sign == PLUS) | (sign == MINUS)
    terms_valid = jnp.where(before, jnp.where(odd, sign < 0, joins), True).all()
    after_valid = jnp.where(place > equals + 1, sign == END, True).all()
    answer = line[jnp.minimum(equals + 1, len(line) - 1)]
    ends = (equals >= 2) & (equals % 2 == 0) & (equals + 1 < len(line)) & (answer < base)
    factor = jnp.where(jnp.roll(sign, 1) == MINUS, -1, 1)
    value = (digit + jnp.where(before & odd, factor * line, 0).sum()) % base
    return Problem(equals, answer, value, found.any() & ends & terms_valid & after_valid)


@functools.cache
def posed_sums(terms: int = 3, base: int = 5) -> Environment:
    """Pose a sum with its answer, then solve it without having seen the answer.

    The prompt is `?3`. In turn 0, the proposer's, a sum that begins with 3 is posed and answered,
    `+4-1=1.`, of 2 to `terms` (M, 3) digits below `base` (N, 5), and modulo N. Then another reader
    goes on, the solver, who sees `@3+4-1=` alone and says one digit. A text that poses no sum ends
    there. Observation: the last token, 0 .. N + 5 (the digits, `+`, `-`, `=`, `?`, `@`, `.`).
    Action: the next token.

    Reward: 1 at the end if the solver's answer is the proposer's; `success` says whether it is
    right, `keyed` whether the proposer's is, `terms` how many digits the sum has (0: none was
    posed). With the parameter `given`, 2 .. M (0), the proposer can only say a drawn sum of so many
    digits with its right answer. The expert poses drawn sums, and always answers right. In the
    manner of problems that models pose each other with answers of their own, as in Zhang et al.,
    2025, "Better LLM reasoning via dual-play", arXiv:2511.11881. Raises `UserError` unless
    2 <= terms <= 8 and 2 <= base <= 10.
    """
    if not 2 <= terms <= 8 or not 2 <= base <= 10:
        raise UserError(
            f"terms is {terms} and base {base}; a sum can have 2 to 8 terms, in a base of 2 to 10."
        )
    longest, vocabulary = 2 * terms, (*string.digits[:base], *SIGNS)
    equals_sign, pose_sign, solve_sign, end = (base + sign for sign in (EQUALS, POSE, SOLVE, END))

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        digit_key, count_key, sign_key, term_key = jax.random.split(key, 4)
        digit = jax.random.randint(digit_key, (), 0, base)
        count = jax.random.randint(count_key, (), 2, terms + 1)
        count = jnp.where(params.given > 0, params.given, count)
        signs = base + jax.random.randint(sign_key, (longest,), PLUS, MINUS + 1)
        numbers = jax.random.randint(term_key, (longest,), 0, base)
        place = jnp.arange(longest)
        line = jnp.where(place % 2 == 1, numbers, signs)
        equals = 2 * (count - 1)
        line = jnp.where(place < equals, line, jnp.where(place == equals, equals_sign, end))
        value = read_line(digit, line, base).value
        line = jnp.where(place == equals + 1, value, line)
        return jnp.stack([pose_sign, digit]), Memory(digit, line, jnp.asarray(params.given > 0))

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        poses = said.turn == 0
        line = jnp.where(poses, said.tokens, memory.line)
        posed = read_line(memory.digit, line, base)
        agrees, right = (said.tokens[0] == x for x in (posed.answer, posed.value))
        as_number = lambda x: (x & posed.valid).astype(jnp.float32)
        reward = as_number(agrees & ~poses)
        terms_posed = as_number(posed.valid) * (posed.equals // 2 + 1)
        metrics = {"keyed": as_number(posed.answer == posed.value), "terms": terms_posed}
        return Reply(
            jnp.concatenate([jnp.stack([solve_sign, memory.digit]), line[:-1]]),
            Memory(memory.digit, line, memory.given),
            Grade(reward, as_number(right & ~poses), metrics=metrics),
            done=~posed.valid,
            count=posed.equals + 3,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        token = memory.line[jnp.minimum(place, longest - 1)]
        only = jnp.arange(len(vocabulary)) == token
        return jnp.where((turn == 0) & memory.given, only, True)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        value = read_line(memory.digit, memory.line, base).value
        answer = jnp.where(jnp.arange(longest) == 0, value, end)
        return jnp.where(turn == 0, memory.line, answer)

    return conversing(
        "posed_sums",
        vocabulary,
        (longest, 1),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(given=0),
    )
