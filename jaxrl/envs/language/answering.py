"""Kit for token environments with one turn: the agent reads a prompt token by token, then writes an
answer.

It is `conversing` with a single utterance: what steps, observations and decisions are stands there.
The answer ends with the token END or at its maximum length; then it is graded: by a verifier (right
or wrong), by a score, and by what a judge compares it with other answers by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Judge, Key, Tree
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

__all__ = ["Grade", "Grader", "answering", "right_or_wrong"]


class Grader(Protocol):
    """A function that grades answers."""

    def __call__(self, prompt: Array, answer: Array, ended: Array, params: Any, /) -> Grade:
        """Return the grade of an answer.

        prompt: int32 [P]. answer: int32 [A], filled up with END.
        ended: bool [], whether the answer ended with END; if not, it was cut off.
        params: the environment's parameters.
        """
        ...


def right_or_wrong(verify: Callable[[Array, Array], Array]) -> Grader:
    """Return a grader that pays 1 for right answers; an answer that was cut off is never right.

    verify(prompt, answer) -> bool [], whether an answer is right.
    """

    def grade(prompt, answer, ended, params):
        right = (ended & verify(prompt, answer)).astype(jnp.float32)
        return Grade(right, success=right)

    return grade


def answering(
    name: str,
    vocabulary: tuple[str, ...],
    prompt_length: int,
    answer_length: int,
    *,
    prompt: Callable[[Key, Any], Array],
    grade: Grader,
    params: Tree,
    solve: Callable[[Array], Array] | None = None,
    judge: Judge | None = None,
) -> Environment:
    """Build an environment with prompts of `prompt_length` (P) and answers of up to `answer_length`
    (A) tokens.

    vocabulary: texts of the tokens 0 .. V - 1; the last one is END.
    prompt(key, params) -> int32 [P].
    grade: the grade of an answer: `right_or_wrong(verify)`, or a function that scores it. Its
        reward is paid at the end, `success` becomes a metric, and `judged` the channel
        `TimeStep.privileged["judged"]`, zeros until the end.
    solve(prompt) -> int32 [A], a good answer, filled up with END; None without an expert.
    judge: the preference between two answers to one prompt, by what their grades say is `judged`.

    Raises `UserError` for a prompt of another length.
    """

    def begin(key: Key, params: Tree) -> tuple[Array, Array]:
        text = prompt(key, params)
        if text.shape != (prompt_length,):
            raise UserError(
                f"The prompt of '{name}' has the shape {list(text.shape)}; prompt_length says "
                f"[{prompt_length}]."
            )
        return text, text

    def respond(key: Key, memory: Array, said: Utterance, params: Tree) -> Reply:
        found = grade(memory, said.tokens, said.ended, params)
        return Reply(jnp.zeros(0, jnp.int32), memory, found, done=True)

    return conversing(
        name,
        vocabulary,
        (answer_length,),
        begin=begin,
        respond=respond,
        params=params,
        solve=None if solve is None else lambda memory, turn, params: solve(memory),
        judge=judge,
    )
