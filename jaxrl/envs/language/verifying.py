"""Kit for tasks of one's own: prompts as texts, and a Python function that pays for answers.

    def verify(prompt: str, answer: str) -> float:
        return float(answer == prompt[::-1])

    def task():
        return verifying("reverse", ["abc", "bca"], verify, characters("abc"), 4)

`verify` runs on the host, in one call for all environments whose answers end in the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Prompt, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import Split, split_prompts
from jaxrl.envs.language.vocabulary import Vocabulary


class Verify(Protocol):
    """A plain Python function that grades an answer."""

    def __call__(self, prompt: str, answer: str, /) -> float:
        """Return the reward of an answer; 1 or more means that it is right."""
        ...


class VerifyAll(Protocol):
    """A plain Python function that grades many answers at once."""

    def __call__(self, prompts: list[str], answers: list[str], /) -> Sequence[float]:
        """Return the reward of each answer to the prompt at the same place."""
        ...


@struct
class Params:
    """Choice of prompts: those of training, or the held-out ones."""

    held_out: bool


def verifying(
    name: str,
    prompts: Sequence[str],
    verify: Verify | VerifyAll,
    vocabulary: Vocabulary,
    answer_length: int,
    *,
    batched: bool = False,
    must_end: bool = False,
    held_out: float = 0.0,
) -> Environment:
    """Build an environment in which answers to `prompts` are graded by a Python function.

    A prompt is drawn uniformly. Observation: the last token. Action: the next one. Reward: at the
    end of the answer what `verify` returns; `success` is 1 where that is at least 1. Terminates at
    the vocabulary's end token, or after `answer_length` tokens.

    verify: of a prompt and an answer, both texts, the answer without the end token; it must depend
        on nothing else. batched: whether it takes and returns lists.
    must_end: whether an answer that was cut off at its maximum length is paid 0, unseen.
    held_out: share of the prompts for the parameter `held_out` of the environment, and not for
        training; 0 for none.

    Raises `UserError` without prompts, for empty ones, for sizes below 1, and if `verify` fails or
    returns no number for the first prompt and an empty answer.
    """
    if not prompts or answer_length < 1:
        raise UserError(
            f"'{name}' has {len(prompts)} prompts and answers of up to {answer_length} tokens; it "
            "needs at least one of each."
        )
    texts = [str(text) for text in prompts]
    encoded = [vocabulary.encode(text) for text in texts]
    if not all(encoded):
        raise UserError(f"A prompt of '{name}' has no tokens: {texts[encoded.index([])]!r}.")
    counts = np.array([len(tokens) for tokens in encoded], np.int32)
    table = np.full((len(texts), counts.max()), vocabulary.end, np.int32)
    for row, tokens in zip(table, encoded, strict=True):
        row[: len(tokens)] = tokens
    order = np.arange(len(texts), dtype=np.int32)
    split = split_prompts(len(texts), held_out) if held_out else Split(order, 0)
    grade_all = _grade_all(name, verify, batched)
    grade_all(texts[:1], [""])

    def grade(needed: np.ndarray, rows: tuple[np.ndarray, ...]) -> np.ndarray:
        """Grade the answers [N, A] to prompts [N], both in `rows`, where `needed` [N]."""
        reward, some = np.zeros(needed.shape, np.float32), np.flatnonzero(needed)
        numbers, answers = (x[some] for x in rows)
        said = [vocabulary.decode(_before(row, vocabulary.end)) for row in answers]
        reward[some] = grade_all([texts[i] for i in numbers], said)
        return reward

    on_host = call_for_rows(grade)

    def begin(key: Key, params: Params) -> tuple[Prompt, Array]:
        held = jnp.asarray(params.held_out, bool) & (split.held_out > 0)
        number = split.draw(key, held)
        return Prompt(jnp.asarray(table)[number], jnp.asarray(counts)[number]), number

    def respond(key: Key, memory: Array, said: Utterance, params: Params) -> Reply:
        paid = said.over & said.ended if must_end else said.over
        reward = on_host(jnp.asarray(paid, bool), memory, said.tokens)
        right = (reward >= 1).astype(jnp.float32)
        return Reply(jnp.zeros(0, jnp.int32), memory, Grade(reward, success=right), done=True)

    known = np.arange(vocabulary.size) < len(vocabulary.tokens)
    missing = ("",) * (vocabulary.size - len(vocabulary.tokens))
    return conversing(
        name,
        vocabulary.tokens + missing,
        (answer_length,),
        begin=begin,
        respond=respond,
        params=Params(False),
        legal=lambda memory, turn, place: jnp.asarray(known),
        end=vocabulary.end,
    )


def _before(tokens: np.ndarray, end: int) -> list[int]:
    """Return the tokens before the first `end`."""
    ends = np.flatnonzero(tokens == end)
    return tokens[: ends[0] if len(ends) else None].tolist()


def _grade_all(
    name: str, verify: Any, batched: bool
) -> Callable[[list[str], list[str]], list[float]]:
    """Return `verify` for lists, whose mistakes are a sentence."""

    def call(prompts: list[str], answers: list[str]) -> list[float]:
        def fail(what: str, i: int = 0) -> UserError:
            return UserError(
                f"verify of '{name}' {what} (prompt {prompts[i]!r}, answer {answers[i]!r})."
            )

        i = 0
        try:
            if batched:
                found = list(verify(prompts, answers))
            else:
                found = []
                for i in range(len(prompts)):  # noqa: B007: messages read it
                    found.append(verify(prompts[i], answers[i]))
        except Exception as error:  # anything, since it is a user's code
            raise fail(f"raised {type(error).__name__}: {error}", i) from error
        if len(found) != len(prompts):
            raise fail(f"returned {len(found)} rewards for {len(prompts)} answers")
        rewards = []
        for i, x in enumerate(found):
            try:
                rewards.append(float(x))
            except (TypeError, ValueError):
                raise fail(f"returned {x!r}, which is no number", i) from None
            if not math.isfinite(rewards[-1]):
                raise fail(f"returned {x!r}; a reward must be finite", i)
        return rewards

    return call


class GradeRows(Protocol):
    """A function on the host that grades many rows."""

    def __call__(self, needed: np.ndarray, rows: tuple[np.ndarray, ...], /) -> np.ndarray:
        """Return float32 [N]: a number for each row that is `needed`, bool [N], and 0 for others.

        rows: arrays [N, ...].
        """
        ...


def call_for_rows(grade: GradeRows) -> Callable[..., Array]:
    """Return a function (needed [], *row) -> float32 [] that calls `grade` on the host: once for
    all rows of a batch, however often it is vmapped, and not at all where none is needed."""

    def on_host(needed: Array, *rows: Array) -> np.ndarray:
        return grade(np.asarray(needed), tuple(map(np.asarray, rows)))

    @custom_vmap
    def of_rows(needed: Array, *rows: Array) -> Array:
        shape = jax.ShapeDtypeStruct(needed.shape, jnp.float32)
        call = lambda: jax.pure_callback(on_host, shape, needed, *rows, vmap_method="sequential")
        return jax.lax.cond(needed.any(), call, lambda: jnp.zeros(needed.shape, jnp.float32))

    @of_rows.def_vmap
    def of_batch(axis_size, in_batched, *rows):
        def merge(x: Array, is_batched: bool) -> Array:
            x = x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        found = of_rows(*map(merge, rows, in_batched))
        return found.reshape(axis_size, -1), True

    return lambda *row: of_rows(*(x[None] for x in row))[0]
