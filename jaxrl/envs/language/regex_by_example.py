"""Find a regular expression that a user has in mind, from strings that it matches or does not.

The user shows one string after another, each with its label: whether the program, a regular
expression, matches all of it. After each string the agent guesses the program. The programs are
sequences of one to `parts` pieces over the letters a and b, where a piece is `a`, `b` or `.`,
alone or followed by `*`, `+` or `?`; of programs that match the same strings only the first is
there (H programs). The strings are all up to the length `length`, the empty one included (X).

The user speaks as in the rational speech acts of `jaxrl.exact.pragmatics`, one string after the
other: with the probability of a string not yet shown in proportion to L(program)^rationality, where
L is the literal listener, uniform over the programs that agree with all strings so far and with
this one. With `rationality` 0 the strings are drawn evenly, with 1 (default) it is the pragmatic
speaker, and above it tends to the most informative string.

Observation: float32 [K * X], for each of up to `examples` (K) strings in order a row that is 1 at
the string if it matches, -1 if it does not, and 0 elsewhere. Actions: the programs in order of
`programs(parts, length)`; those that contradict a string are not legal, so random play is the
literal listener. Reward: 1 for the right guess, after which the episode terminates, as it does
after K wrong guesses. Metrics: `success`, and `shown`, the number of strings shown. The expert
knows the program. A small version of the task in Vaduguru, Fried and Pu (2023), "Generating
pragmatic examples to train neural program synthesizers".
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least

LETTERS = "ab"
PIECES = tuple(letter + times for letter in (*LETTERS, ".") for times in ("", "*", "+", "?"))
NONE = -1  # where no string is shown yet
ROWS = 24  # programs in a picture at most


@struct
class Params:
    meanings: Any  # bool [H, X]: which strings each program matches
    rationality: float = 1.0  # exponent of the literal listener in the user's choice, nonnegative


@struct
class State:
    program: Array  # int32
    strings: Array  # int32 [K]: strings shown so far, then NONE
    guesses: Array  # int32
    found: Array  # bool


def strings(length: int) -> tuple[str, ...]:
    """Return all strings up to this length (X), the shortest first."""
    sizes = (itertools.product(LETTERS, repeat=size) for size in range(length + 1))
    return tuple("".join(letters) for size in sizes for letters in size)


@functools.cache
def programs(parts: int, length: int) -> tuple[str, ...]:
    """Return the regular expressions (H) of up to `parts` pieces, the first of each meaning."""
    return tuple(_table(parts, length))


@functools.cache
def _table(parts: int, length: int) -> dict[str, tuple[bool, ...]]:
    """Return which strings each program matches."""
    found: dict[tuple[bool, ...], str] = {}
    for size in range(1, parts + 1):
        for pieces in itertools.product(PIECES, repeat=size):
            program = re.compile("".join(pieces))
            meaning = tuple(program.fullmatch(text) is not None for text in strings(length))
            found.setdefault(meaning, program.pattern)
    return {program: meaning for meaning, program in found.items()}


def agree(meanings: Array, shown: Array, labels: Array) -> Array:
    """Return the programs that agree with all strings shown, bool [H].

    meanings: bool [H, X]. shown: int32 [K], NONE for no string. labels: bool [K].
    """
    right = meanings[:, shown] == labels
    return (right | (shown == NONE)).all(-1)


def speak(meanings: Array, possible: Array, shown: Array, rationality: Array | float) -> Array:
    """Return the probability of each next string for a user of each program, [H, X].

    meanings: bool [H, X]. possible: bool [H], programs that agree with the strings so far; rows of
        others mean nothing. shown: int32 [K], those strings, which are not shown again.
    """
    matched = (possible[:, None] & meanings).sum(0)
    left = jnp.where(meanings, matched, possible.sum() - matched)  # programs, with one string more
    old = (jnp.arange(meanings.shape[1]) == shown[:, None]).any(0)
    return jax.nn.softmax(-rationality * jnp.log(jnp.maximum(left, 1)), axis=-1, where=~old)


def encode(shown: Array, labels: Array, size: int) -> Array:
    """Return the observation of strings and labels [..., K], float32 [..., K * size]."""
    signs = jnp.where(labels, 1.0, -1.0).astype(jnp.float32)[..., None]
    rows = jax.nn.one_hot(shown, size, dtype=jnp.float32) * signs
    return rows.reshape(*rows.shape[:-2], -1)


@functools.cache
def regex_by_example(parts: int = 2, length: int = 4, examples: int = 3) -> Environment:
    """The search for a regular expression. Raises `UserError` for sizes below 1, and for as many
    examples as there are strings."""
    name = "regex_by_example"
    for option, value in (("parts", parts), ("length", length), ("examples", examples)):
        at_least(name, option, value, 1)
    texts = strings(length)
    at_least(name, "number of strings", len(texts), examples + 1)
    table = np.array(list(_table(parts, length).values()))

    def see(state: State, reward: Array | float, params: Params, begins: bool) -> TimeStep:
        meanings = jnp.asarray(params.meanings)
        labels = meanings[state.program, state.strings]
        channels = {
            "legal_actions": agree(meanings, state.strings, labels),
            "metrics": {
                "success": state.found.astype(jnp.float32),
                "shown": (state.strings != NONE).sum().astype(jnp.float32),
            },
        }
        observation = encode(state.strings, labels, len(texts))
        if begins:
            return timesteps.first(observation, **channels)
        done = state.found | (state.guesses >= examples)
        return timesteps.following(observation, reward, done, **channels)

    def show(key: Key, state: State, params: Params) -> State:
        """Show another string, as long as there is a place for it."""
        meanings, place = jnp.asarray(params.meanings), state.guesses
        labels = meanings[state.program, state.strings]
        possible = agree(meanings, state.strings, labels)
        chances = speak(meanings, possible, state.strings, params.rationality)[state.program]
        string = jax.random.categorical(key, jnp.log(chances))
        more = jnp.where(jnp.arange(examples) == place, string, state.strings)
        return State(state.program, more.astype(jnp.int32), state.guesses, state.found)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        program_key, key = jax.random.split(key)
        program = jax.random.randint(program_key, (), 0, len(table))
        blank = jnp.full(examples, NONE, jnp.int32)
        state = State(program, blank, jnp.zeros((), jnp.int32), jnp.zeros((), bool))
        state = show(key, state, params)
        return state, see(state, 0.0, params, begins=True)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        found = action == state.program
        state = State(state.program, state.strings, state.guesses + 1, found)
        shown = show(key, state, params)
        kept = jnp.where(found, state.strings, shown.strings)
        state = State(state.program, kept, state.guesses, found)
        return state, see(state, found, params, begins=False)

    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=Params(table),
        observation_space=Box(-1.0, 1.0, (examples * len(texts),)),
        action_space=Discrete(len(table)),
        max_steps=examples,
        render=_render,
        expert=lambda state, params: state.program,
    )


def _render(state: State, params: Params) -> np.ndarray:
    """Draw a row for each program that agrees with the strings, the user's first, and a column for
    each string: green where it matches, with the strings shown in full color."""
    meanings, shown = np.asarray(params.meanings), np.asarray(state.strings)
    labels = meanings[int(state.program), shown]
    possible = np.asarray(agree(jnp.asarray(meanings), jnp.asarray(shown), jnp.asarray(labels)))
    others = np.flatnonzero(possible & (np.arange(len(meanings)) != int(state.program)))
    rows = meanings[[int(state.program), *others]][:ROWS]
    colors = np.full((ROWS, meanings.shape[1], 3), drawing.PAPER)
    colors[: len(rows)] = np.where(rows[..., None], drawing.GREEN, drawing.SHADE)
    faint = (colors + 2 * np.asarray(drawing.PAPER)) // 3
    seen = np.isin(np.arange(meanings.shape[1]), shown)[:, None]
    size = max(1, 480 // max(meanings.shape[1], ROWS))
    return drawing.tiles(np.where(seen, colors, faint), size)
