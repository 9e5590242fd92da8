"""Questions that only a tool can answer: follow the pointers of a hidden table."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import TOOL, Grade, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import split_prompts


@struct
class Params:
    """Choice of the questions, and the reward of a call."""

    held_out: bool  # whether to ask held-out questions instead of those for training
    call_reward: float  # paid for each call that reads the next pointer on the way to the answer


@struct
class Memory:
    """Hidden table, and how far it was followed."""

    table: Array  # int32 [N]: the key that each key points to
    answer: Array  # int32
    following: Array  # int32: the key to look up next
    left: Array  # int32: pointers to follow from there
    calls: Array  # float32: well-formed calls so far


@functools.cache
def lookup(keys: int = 8, hops: int = 2) -> Environment:
    """Say which key of a hidden table follows another after so many pointers, by calling a tool.

    The table of `keys` (N, 8) letters points from each letter to a random one, drawn anew in each
    episode. The prompt `c2` asks where 2 pointers lead from `c`; up to `hops` (H, 2) are asked for.
    An utterance is two tokens: `?c` calls the tool, which replies with the letter that `c` points
    to, and `=e` answers and ends the text; to any other the reply is `#`. There are H + 1 turns.
    Observation: the last token, 0 .. N + H + 3 (the letters, `1` .. H, `?`, `=`, `#`, `.`). Action:
    the next token. Reward: 1 at the end for a right answer, which `success` says, and `call_reward`
    (0.1) at once for a call that reads the next pointer on the way. `calls` counts calls.

    A fifth of the N H questions is held out: `held_out` (False) asks these instead of the others.
    Without calls no policy is right with more than 1 / N after one pointer or (2 N - 1) / N^2 after
    two, which may lead back; after more it is the chance that they lead back.
    With calls the expert always is right. In the manner of the tool environments of
    Zeng et al., 2025, arXiv:2505.11821 (MT-GRPO), whose tool is a search. Raises `UserError` unless
    2 <= keys <= 26 and 1 <= hops <= 9.
    """
    if not 2 <= keys <= 26 or not 1 <= hops <= 9:
        raise UserError(
            f"keys is {keys} and hops {hops}; there must be 2 to 26 keys and 1 to 9 hops."
        )
    vocabulary = (*string.ascii_lowercase[:keys], *string.digits[1 : hops + 1], "?", "=", "#", ".")
    call, answer, error = (keys + hops + i for i in range(3))
    questions = split_prompts(keys * hops)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        key, table_key = jax.random.split(key)
        question = questions.draw(key, params.held_out)
        asked, number = question % keys, question // keys + 1
        table = jax.random.randint(table_key, (keys,), 0, keys)
        found = asked
        for i in range(hops):
            found = jnp.where(i < number, table[found], found)
        prompt = jnp.stack([asked, keys + number - 1])
        return prompt, Memory(table, found, asked, number, jnp.zeros(()))

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        sign, letter = said.tokens
        calls, answers = ((sign == x) & (letter < keys) for x in (call, answer))
        value = memory.table[jnp.minimum(letter, keys - 1)]
        useful = calls & (letter == memory.following) & (memory.left > 0)
        right = (answers & (letter == memory.answer)).astype(jnp.float32)
        count = memory.calls + calls
        reward = right + params.call_reward * useful
        return Reply(
            jnp.where(calls, value, error)[None],
            Memory(
                memory.table,
                memory.answer,
                jnp.where(useful, value, memory.following),
                memory.left - useful,
                count,
            ),
            Grade(reward, success=right, metrics={"calls": count}),
            done=answers,
            count=1,
            speaker=TOOL,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        return jnp.stack([jnp.where(memory.left > 0, call, answer), memory.following])

    return conversing(
        "lookup",
        vocabulary,
        (2,) * (hops + 1),
        begin=begin,
        respond=respond,
        solve=solve,
        params=Params(held_out=False, call_reward=0.1),
    )
