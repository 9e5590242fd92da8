"""Words by instruction: an answer, a judgment of it, and its refinement."""

from __future__ import annotations

import functools
import string

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

ANSWER, JUDGMENT, REFINEMENT = range(3)  # turns


@struct
class Params:
    """Skill of the expert that warms policies up."""

    right: float  # probability that the expert's first word follows the instruction


@struct
class Memory:
    wanted: Array  # int32: letter that a word must have
    banned: Array  # int32: letter that it must not have
    plan: Array  # int32 [L]: the expert's first word
    word: Array  # int32 [L]: word that was said
    follows: Array  # float32: whether it follows the instruction
    judged: Array  # float32: whether the judgment was right


def follow(word: Array, wanted: Array, banned: Array) -> Array:
    """Return whether words [..., L] have the letter `wanted` and lack the letter `banned`."""
    return (word == wanted).any(-1) & (word != banned).all(-1)


def repair(word: Array, wanted: Array, banned: Array) -> Array:
    """Return the word [L] nearest to `word` that follows the instruction: with the wanted letter in
    the place of each banned one, or else in the first place if it is missing."""
    mended = jnp.where(word == banned, wanted, word)
    missing = (mended != wanted).all()
    return jnp.where(missing & (jnp.arange(len(word)) == 0), wanted, mended)


@functools.cache
def instructed_words(letters: int = 5, length: int = 4) -> Environment:
    """Write a word with a certain letter and without another, judge it, and refine it.

    The prompt is `+a-b:`: the word must have an `a` and no `b`, two different ones of `letters`
    (V, 5) letters. Three utterances follow: a word of `length` (L, 4) letters, the judgment `!` (it
    follows) or `?` (it does not), and a second word: `+a-b:cbde?cade`. Observation: the last token,
    0 .. V + 5 (the letters, `+`, `-`, `:`, `!`, `?`, and `.`, which is never said). Action: the
    next token; only those of their kind are legal. Reward: 1 for a first word that follows the
    instruction, at its end, else 0. Prompts are uniform.

    `first` and `success` say whether the first and the second word follow the instruction, `judged`
    whether the judgment is right, and `edits` in how many letters the second word differs from the
    first. The expert's first word follows it with the probability `right` (0.3), and is random
    else; the judgment is right, and the refinement the nearest word that follows. It stands for a
    language model that can judge and refine what it writes, for algorithms that learn from their
    own refinements. Raises `UserError` unless 3 <= letters <= 20 and 2 <= length <= 10.
    """
    if not 3 <= letters <= 20 or not 2 <= length <= 10:
        raise UserError(
            f"letters is {letters} and length {length}; there must be 3 to 20 letters, and words "
            "of 2 to 10."
        )
    vocabulary = (*string.ascii_lowercase[:letters], *"+-:!?.")
    plus, minus, colon, good, bad = range(letters, letters + 5)
    token = np.arange(len(vocabulary))
    kinds = np.stack([token < letters, (token == good) | (token == bad), token < letters])

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        keys = jax.random.split(key, 4)
        wanted = jax.random.randint(keys[0], (), 0, letters)
        banned = (wanted + jax.random.randint(keys[1], (), 1, letters)) % letters
        plan = jax.random.randint(keys[2], (length,), 0, letters)
        right = jax.random.bernoulli(keys[3], params.right)
        plan = jnp.where(right, repair(plan, wanted, banned), plan)
        prompt = jnp.stack([jnp.int32(plus), wanted, jnp.int32(minus), banned, jnp.int32(colon)])
        none = jnp.zeros(())
        return prompt, Memory(wanted, banned, plan, jnp.zeros(length, jnp.int32), none, none)

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        word = said.tokens[:length]
        follows = follow(word, memory.wanted, memory.banned).astype(jnp.float32)
        first = jnp.where(said.turn == ANSWER, follows, memory.follows)
        right = ((word[0] == good) == (memory.follows > 0)).astype(jnp.float32)
        judged = jnp.where(said.turn == JUDGMENT, right, memory.judged)
        kept = jnp.where(said.turn == ANSWER, word, memory.word)
        metrics = {
            "first": first,
            "judged": judged,
            "edits": (word != kept).sum().astype(jnp.float32),
        }
        reward = jnp.where(said.turn == ANSWER, follows, 0.0)
        memory = Memory(memory.wanted, memory.banned, memory.plan, kept, first, judged)
        grade = Grade(reward, success=follows, metrics=metrics)
        return Reply(jnp.zeros(0, jnp.int32), memory, grade)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        judgment = jnp.where(memory.follows > 0, good, bad)
        mended = repair(memory.word, memory.wanted, memory.banned)
        second = jnp.where(memory.follows > 0, memory.word, mended)
        judgments = jnp.full(length, judgment)
        return jnp.stack([memory.plan, judgments, second])[turn].astype(jnp.int32)

    return conversing(
        "instructed_words",
        vocabulary,
        (length, 1, length),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=lambda memory, turn, place: jnp.asarray(kinds)[turn],
        params=Params(right=0.3),
    )
