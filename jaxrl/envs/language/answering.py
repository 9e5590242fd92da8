"""Kit for token environments: the agent reads a prompt token by token, then writes an answer.

A step adds one token to the text. The observation is the text's last token, so a policy needs a
memory, such as the keys and values of a language model. While the prompt is read, its next token is
the only legal action: such a step is no decision, its log-probability and entropy are 0, and an
agent learns nothing from it, as it should. `TimeStep.tokens["decision"]` says which steps are
decisions. The answer ends with the token END or at its maximum length; then it is graded: by a
verifier (right or wrong), by a score, and by what a judge compares it with other answers by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Judge, Key, TimeStep, Tree, struct
from jaxrl.envs import timesteps


@struct
class State:
    text: Array  # int32 [prompt_length + answer_length]: prompt, answer, then END
    position: Array  # int32: position of the last token that was observed


@struct
class Grade:
    """Grade of an answer.

    reward: float32 [], paid at the end of the answer.
    success: float32 [], 1 for a right answer and 0 for a wrong one; None where answers are neither.
    judged: what `Environment.judge` compares of an answer, any tree; None without a judge.
    """

    reward: Array
    success: Array | None = None
    judged: Tree = None


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
    """
    end = len(vocabulary) - 1

    def emit(state: State) -> dict[str, Any]:
        decision = state.position >= prompt_length - 1
        following = state.text[jnp.minimum(state.position + 1, prompt_length - 1)]
        forced = jnp.arange(len(vocabulary)) == following
        return {
            "legal_actions": decision | forced,
            "tokens": {"decision": decision},
        }

    def grade_text(text: Array, ended: Array, done: Array, params: Tree) -> tuple[Array, dict]:
        """Return the reward and the channels of a grade, zeros before the end."""
        found = grade(text[:prompt_length], text[prompt_length:], ended, params)
        found = jax.tree.map(lambda x: jnp.where(done, x, jnp.zeros_like(x)), found)
        channels: dict[str, Any] = {}
        if found.success is not None:
            channels["metrics"] = {"success": found.success}
        if found.judged is not None:
            channels["privileged"] = {"judged": found.judged}
        return found.reward, channels

    def reset(key: Key, params: Tree) -> tuple[State, TimeStep]:
        empty = jnp.full(answer_length, end, jnp.int32)
        state = State(jnp.concatenate([prompt(key, params), empty]), jnp.zeros((), jnp.int32))
        no = jnp.zeros((), bool)
        _, shapes = jax.eval_shape(grade_text, state.text, no, no, params)
        return state, timesteps.first(state.text[0], **trees.zeros(shapes), **emit(state))

    def step(key: Key, state: State, action: Array, params: Tree) -> tuple[State, TimeStep]:
        position = state.position + 1
        reading = position < prompt_length
        token = jnp.where(reading, state.text[position], action)
        text = jnp.where(jnp.arange(state.text.shape[0]) == position, token, state.text)
        ended = ~reading & (token == end)
        done = ended | (position == text.shape[0] - 1)
        reward, channels = grade_text(text, ended, done, params)
        state = State(text, position)
        return state, timesteps.following(token, reward, done, **channels, **emit(state))

    def expert(solve: Callable[[Array], Array], state: State, params: Tree) -> Array:
        text = jnp.concatenate([state.text[:prompt_length], solve(state.text[:prompt_length])])
        return text[jnp.minimum(state.position + 1, text.shape[0] - 1)]

    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=params,
        observation_space=Discrete(len(vocabulary)),
        action_space=Discrete(len(vocabulary)),
        max_steps=prompt_length - 1 + answer_length,
        render=lambda state, params: picture(vocabulary, prompt_length, state),
        expert=None if solve is None else functools.partial(expert, solve),
        judge=judge,
    )


def picture(vocabulary: tuple[str, ...], prompt_length: int, state: State) -> np.ndarray:
    """Draw the text so far, with the answer in another color: uint8 [H, W, 3]."""
    from PIL import Image, ImageDraw, ImageFont  # late: training never draws

    from jaxrl.envs.drawing import BLUE, INK, PAPER, SHADE

    size, cell = len(state.text), 24
    image = Image.new("RGB", (max(cell * (size + 1), 160), 120), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle([cell // 2, 40, cell // 2 + cell * size, 80], fill=SHADE)
    for i in range(int(state.position) + 1):
        place, color = (cell * (i + 1), 60), INK if i < prompt_length else BLUE
        font = ImageFont.load_default(cell)
        draw.text(place, vocabulary[int(state.text[i])], fill=color, font=font, anchor="mm")
    return np.asarray(image)
