"""Kit for token environments: the agent reads a prompt token by token, then writes an answer.

A step adds one token to the text. The observation is the text's last token, so a policy needs a
memory, such as the keys and values of a language model. While the prompt is read, its next token is
the only legal action: such a step is no decision, its log-probability and entropy are 0, and an
agent learns nothing from it, as it should. `TimeStep.tokens["decision"]` says which steps are
decisions. The answer ends with the token END or at its maximum length; then a verifier rewards it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import timesteps


@struct
class State:
    text: Array  # int32 [prompt_length + answer_length]: prompt, answer, then END
    position: Array  # int32: position of the last token that was observed


def answering(
    name: str,
    vocabulary: tuple[str, ...],
    prompt_length: int,
    answer_length: int,
    prompt: Callable[[Key, Any], Array],
    verify: Callable[[Array, Array], Array],
    solve: Callable[[Array], Array],
    params: Tree,
) -> Environment:
    """Build an environment with prompts of `prompt_length` (P) and answers of up to `answer_length`
    (A) tokens.

    vocabulary: texts of the tokens 0 .. V - 1; the last one is END.
    prompt(key, params) -> int32 [P].
    verify(prompt, answer) -> whether `answer`, int32 [A] filled up with END, is right. An answer
        without END was cut off and is never right.
    solve(prompt) -> int32 [A], a right answer, filled up with END.
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

    def reset(key: Key, params: Tree) -> tuple[State, TimeStep]:
        empty = jnp.full(answer_length, end, jnp.int32)
        state = State(jnp.concatenate([prompt(key, params), empty]), jnp.zeros((), jnp.int32))
        metrics = {"success": jnp.zeros((), jnp.float32)}
        return state, timesteps.first(state.text[0], metrics=metrics, **emit(state))

    def step(key: Key, state: State, action: Array, params: Tree) -> tuple[State, TimeStep]:
        position = state.position + 1
        reading = position < prompt_length
        token = jnp.where(reading, state.text[position], action)
        text = jnp.where(jnp.arange(state.text.shape[0]) == position, token, state.text)
        ended = ~reading & (token == end)
        done = ended | (position == text.shape[0] - 1)
        right = ended & verify(text[:prompt_length], text[prompt_length:])
        state = State(text, position)
        reward = right.astype(jnp.float32)
        return state, timesteps.following(
            token, reward, done, metrics={"success": reward}, **emit(state)
        )

    def expert(state: State, params: Tree) -> Array:
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
        expert=expert,
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
