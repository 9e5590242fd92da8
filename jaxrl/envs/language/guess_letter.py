"""A letter to be found by questions with the answers yes and no, in up to eight turns."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing


@struct
class Params:
    """Chances of the hidden letters."""

    chances: np.ndarray  # chances, up to a factor, of each letter to be the hidden one


@struct
class Memory:
    """Hidden letter, and those that the replies leave possible."""

    hidden: Array  # int32
    possible: Array  # bool [N]


def plan_questions(letters: int, turns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what is best with n of N equally likely letters left and t turns to go.

    Returns the expected number of utterances that do not find the letter, float64 [N + 1, t + 1],
    and what to say, int32 [N + 1, t + 1]: 0 to guess the first letter that is left, k to ask
    whether the hidden one is among the first k.
    """
    missed, say = np.zeros((2, letters + 1, turns + 1))
    for t in range(1, turns + 1):
        for n in range(1, letters + 1):
            wrong = (n - 1) / n
            costs = [wrong * (1 + missed[n - 1, t - 1])]
            for k in range(1, n):
                after = k * missed[k, t - 1] + (n - k) * missed[n - k, t - 1]
                costs.append(1 + after / n)
            say[n, t] = np.argmin(costs)
            missed[n, t] = costs[int(say[n, t])]
    return missed, say.astype(np.int32)


@functools.cache
def guess_letter(letters: int = 10, turns: int = 8) -> Environment:
    """Find a hidden letter by questions with the answers yes and no, in up to `turns` (8) turns.

    The prompt is `?`. An utterance is two tokens: `<d` asks whether the hidden one of the first
    `letters` (N, 10) letters comes before `d`, and the reply is `y` or `n`; `=d` guesses, which
    ends the text if it is right, and else the reply is `n`. Observation: the last token, 0 .. N + 5
    (the letters, `<`, `=`, `y`, `n`, `?`, `.`). Action: the next token; only those that make such
    an utterance are legal. Reward: -1 / `turns` for each utterance, but 0 for a right guess, so
    that the return is best if the letter is found soon. `success` says whether it was found.

    The hidden letter is drawn by `chances` (equal ones). What is best for equal chances is known
    exactly (`plan_questions`); the expert does it. In the manner of the guessing games of Abdulhai
    et al., 2023, "LMRL Gym", arXiv:2311.18232. Raises `UserError` unless 2 <= letters <= 26 and
    turns >= 1.
    """
    if not 2 <= letters <= 26 or turns < 1:
        raise UserError(
            f"letters is {letters} and turns {turns}; there must be 2 to 26 letters, and turns."
        )
    vocabulary = (*string.ascii_lowercase[:letters], "<", "=", "y", "n", "?", ".")
    before, equals, yes, no, asks = (letters + i for i in range(5))
    plan, number = plan_questions(letters, turns)[1], np.arange(letters)
    tokens = np.arange(len(vocabulary))

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        hidden = jax.random.categorical(key, jnp.log(jnp.asarray(params.chances)))
        return jnp.array([asks]), Memory(hidden.astype(jnp.int32), jnp.ones(letters, bool))

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        sign, letter = said.tokens
        guesses = sign == equals
        said_of = jnp.where(guesses, number == letter, number < letter)
        true = said_of[memory.hidden]
        right = (guesses & true).astype(jnp.float32)
        possible = memory.possible & (said_of == true)
        return Reply(
            jnp.where(true, yes, no)[None],
            Memory(memory.hidden, possible),
            Grade((right - 1) / turns, success=right),
            done=guesses & true,
            count=1,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        say = jnp.asarray(plan)[memory.possible.sum(), turns - turn]
        # The letter after the first `say` of those that are left; to guess, the first of them.
        letter = jnp.argmax(jnp.cumsum(memory.possible) == say + 1)
        return jnp.stack([jnp.where(say > 0, before, equals), letter])

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        signs = (tokens == before) | (tokens == equals)
        return jnp.where(place == 0, signs, tokens < letters)

    return conversing(
        "guess_letter",
        vocabulary,
        (2,) * turns,
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(np.ones(letters, np.float32)),
    )
