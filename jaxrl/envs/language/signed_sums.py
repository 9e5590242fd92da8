"""Signs for numbers so that their sum is as small as possible, in thoughts that may be mixtures.

A thought is no token but a point of the simplex over tokens, so that a policy can follow several
partial sums at once.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.language.conversing import AGENT, ENVIRONMENT
from jaxrl.envs.language.prompts import Split, split_prompts
from jaxrl.envs.language.transcript import picture


@struct
class Params:
    """Choice of the numbers, and the traces that the expert follows."""

    held_out: bool  # whether to ask held-out numbers instead of those for training
    traces: int  # number of traces that the expert's thoughts are mixtures of


@struct
class State:
    numbers: Array  # int32 [N]
    text: Array  # int32 [2 N]: likeliest token of all that was said
    position: Array  # int32: position of the last token that was observed


def all_signs(count: int) -> np.ndarray:
    """Return every choice of signs of `count` (N) numbers, int32 [2^N, N], minus before plus."""
    return np.array(list(itertools.product((-1, 1), repeat=count)), np.int32)


def best_traces(numbers: Array, count: Array | int) -> tuple[Array, Array]:
    """Return the partial sums [2^N, N] of all choices of signs of numbers [N], and which of them
    are the `count` best: bool [2^N].

    The best traces end nearest to 0; one that ends above 0 comes before one that ends as far below.
    """
    sums = jnp.cumsum(jnp.asarray(all_signs(len(numbers))) * numbers, -1)
    rank = 2 * jnp.abs(sums[:, -1]) + (sums[:, -1] < 0)
    place = jnp.argsort(jnp.argsort(rank, stable=True))
    return sums, place < count


def smallest_sum(numbers: Array) -> Array:
    """Return the smallest sum from 0 of numbers [N] with any signs, int32 []."""
    sums, best = best_traces(numbers, 1)
    return jnp.where(best, sums[:, -1], 0).sum()


def split_numbers(count: int, largest: int) -> Split:
    """Hold out a fifth of the multisets of `count` numbers from 1 to `largest` (M), each in all of
    its orders. A prompt's number is its digits to the base M."""
    digits = np.indices((largest,) * count).reshape(count, -1).T
    _, group = np.unique(np.sort(digits, 1), axis=0, return_inverse=True)
    group = np.asarray(group).reshape(-1)
    split = split_prompts(int(group.max()) + 1)
    place = np.argsort(split.order)[group]  # of each prompt's multiset
    held_out = int((place >= len(split.order) - split.held_out).sum())
    return Split(np.argsort(place, kind="stable").astype(np.int32), held_out)


@functools.cache
def signed_sums(numbers: int = 4, largest: int = 9) -> Environment:
    """Give `numbers` (N, 4) numbers signs so that their sum is the smallest from 0, in N - 1
    thoughts and an answer.

    The prompt is the numbers, from 1 to `largest` (M, 9). The tokens are the numbers 1 .. M and the
    sums -N M .. N M, V in all. Action: a point of the simplex over the tokens, [V]; negative
    weights are set to 0, and the others are divided by their sum. Observation: the last token, or
    the mixture that was said, [V]. A thought is one token or a mixture of several; the answer is
    its likeliest token. While the prompt is read, actions have no effect. `TimeStep.tokens` has
    `decision`, `turn` and `speaker` as in text environments, and `answer`, whether the next token
    is the answer.

    Reward: 1 at the end if the answer is the smallest sum from 0, else 0; `success` is the same.
    Terminates after the answer, at 2 N - 1 steps. The expert's k-th thought has all partial sums of
    k numbers, weighted by how many of the `traces` (1,024, all) best choices of signs lead there;
    with one trace it is a chain of thought of single tokens. The best end nearest to 0. All orders
    of a fifth of the multisets of numbers are held out: `held_out` (False) asks these instead of
    the others.

    The task MNNS of Gozeten et al., 2025, "Continuous chain of thought enables parallel exploration
    and reasoning", arXiv:2505.23648, without its token for the beginning; the traces are those of
    the strategy `beam_minabs` in its code. Raises `UserError` unless 2 <= numbers <= 5 and
    2 <= largest <= 9.
    """
    if not 2 <= numbers <= 5 or not 2 <= largest <= 9:
        raise UserError(
            f"numbers is {numbers} and largest {largest}; there must be 2 to 5 numbers, up to a "
            "largest one of 2 to 9."
        )
    most, total = numbers * largest, 2 * numbers
    size, zero = largest + 2 * most + 1, largest + most
    vocabulary = tuple(f"{x} " for x in (*range(1, largest + 1), *range(-most, most + 1)))
    split = split_numbers(numbers, largest)
    one_hot = lambda token: jax.nn.one_hot(token, size)

    def emit(position: Array) -> dict[str, Any]:
        decision = position + 1 >= numbers
        return {
            "tokens": {
                "decision": decision,
                "turn": jnp.zeros((), jnp.int32),
                "speaker": jnp.where(decision, AGENT, ENVIRONMENT),
                "answer": position + 1 >= total - 1,
            }
        }

    def channels(success: Array) -> dict[str, Any]:
        return {"metrics": {"success": success}}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        prompt = split.draw(key, params.held_out)
        drawn = (prompt // largest ** jnp.arange(numbers - 1, -1, -1) % largest + 1).astype(int)
        drawn = drawn.astype(jnp.int32)
        zeros, start = jnp.zeros(numbers, jnp.int32), jnp.zeros((), jnp.int32)
        state = State(drawn, jnp.concatenate([drawn - 1, zeros]), start)
        none = channels(jnp.zeros(()))
        return state, timesteps.first(one_hot(drawn[0] - 1), **none, **emit(start))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        position = jnp.minimum(state.position + 1, total - 1)
        decision, done = position >= numbers, position == total - 1
        weight = jnp.maximum(action, 0.0)
        said = jnp.where(weight.sum() > 0, weight, 1.0)
        said /= said.sum()
        seen = jnp.where(decision, said, one_hot(state.text[position]))
        likeliest = jnp.argmax(seen).astype(jnp.int32)
        right = done & (likeliest == zero + smallest_sum(state.numbers))
        right = right.astype(jnp.float32)
        state = State(state.numbers, state.text.at[position].set(likeliest), position)
        return state, timesteps.following(seen, right, done, **channels(right), **emit(position))

    def expert(state: State, params: Params) -> Array:
        place = jnp.minimum(state.position + 1, total - 1)
        sums, kept = best_traces(state.numbers, jnp.maximum(params.traces, 1))
        here = sums[:, jnp.clip(place - numbers, 0, numbers - 1)]
        thought = (one_hot(zero + here) * kept[:, None]).sum(0) / kept.sum()
        answer = one_hot(zero + smallest_sum(state.numbers))
        spoken = jnp.where(place == total - 1, answer, thought)
        return jnp.where(place < numbers, one_hot(state.text[place]), spoken)

    speakers = np.repeat([ENVIRONMENT, AGENT], numbers)
    simplex = Box(0.0, 1.0, (size,))
    return Environment(
        name="signed_sums",
        reset=reset,
        step=step,
        params=Params(held_out=False, traces=1024),
        observation_space=simplex,
        action_space=simplex,
        max_steps=total - 1,
        render=lambda state, params: picture(
            vocabulary, np.asarray(state.text), speakers, int(state.position) + 1
        ),
        expert=expert,
    )
