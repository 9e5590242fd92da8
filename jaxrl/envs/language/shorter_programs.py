"""Programs of a small stack machine, to be written anew with less work."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.answering import Grade, answering
from jaxrl.envs.language.prompts import split_prompts

VOCABULARY = (*"x1+*d", ".")
X, ONE, PLUS, TIMES, COPY, END = range(6)
COSTS = np.array([1, 1, 1, 3, 1, 0], np.float32)  # of each operation: multiplying takes longest
PUSHES = np.array([1, 1, -1, -1, 1, 0])  # by how much the stack grows
NEEDS = np.array([0, 0, 2, 2, 1, 0])  # values that an operation needs on the stack
TESTS = np.arange(6, dtype=np.int32)  # inputs


@struct
class Params:
    """Choice of the programs."""

    held_out: bool  # whether to ask for held-out programs instead of those for training


def run_program(tokens: Array, inputs: Array) -> tuple[Array, Array]:
    """Run a program on a stack machine; return its values int32 [N], and whether it is valid.

    tokens: int32 [L], up to the first END. inputs: int32 [N]. A program is valid if no operation
    lacks values and one value is left.
    """
    length = len(tokens)
    stack = jnp.zeros((length + 2, len(inputs)), jnp.int32)

    def step(carry, token):
        stack, size, valid, running = carry
        running &= token < END
        token = jnp.minimum(token, END)
        top, below = stack[jnp.maximum(size - 1, 0)], stack[jnp.maximum(size - 2, 0)]
        value = jnp.select(
            [token == X, token == ONE, token == PLUS, token == TIMES],
            [inputs, jnp.ones_like(inputs), below + top, below * top],
            top,
        )
        valid &= ~running | (size >= jnp.asarray(NEEDS)[token])
        grown = jnp.maximum(size + jnp.asarray(PUSHES)[token], 1)
        new = stack.at[grown - 1].set(value)
        stack, size = jax.tree.map(
            lambda x, y: jnp.where(running & valid, x, y), (new, grown), (stack, size)
        )
        return (stack, size, valid, running), None

    begun = stack, jnp.int32(0), jnp.bool_(True), jnp.bool_(True)
    (stack, size, valid, _), _ = jax.lax.scan(step, begun, tokens)
    return stack[0], valid & (size == 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """Programs [N, L] that are not the cheapest, and the cheapest that do the same, [N, L]."""

    given: np.ndarray
    best: np.ndarray


@functools.cache
def wasteful_programs(length: int) -> Programs:
    """Return all valid programs of `length` tokens for which a cheaper one, of at most as many
    tokens, has the same value for every test. Equally cheap ones are ordered by their tokens."""
    rows = [
        (*written, *[END] * (length - n))
        for n in range(1, length + 1)
        for written in itertools.product(range(END), repeat=n)
    ]
    texts = np.array(sorted(rows), np.int32)
    with jax.ensure_compile_time_eval():
        values, valid = jax.jit(jax.vmap(run_program, (0, None)))(texts, jnp.asarray(TESTS))
    texts, values = texts[np.asarray(valid)], np.asarray(values)[np.asarray(valid)]
    costs = COSTS[texts].sum(-1)
    best: dict[tuple[int, ...], int] = {}
    for i, value in enumerate(map(tuple, values.tolist())):
        if value not in best or costs[i] < costs[best[value]]:
            best[value] = i
    cheapest = np.array([best[value] for value in map(tuple, values.tolist())])
    wasteful = (costs > costs[cheapest]) & (texts < END).all(-1)
    return Programs(texts[wasteful], texts[cheapest[wasteful]])


@functools.cache
def shorter_programs(length: int = 5) -> Environment:
    """Write a program that does the same as a given one with less work.

    The prompt is a valid program of `length` (L, 5) operations of a stack machine, the answer one
    of up to L, `xx*1*` -> `xx*.`. `x` pushes the input, `1` one, `d` the top value again; `+` and
    `*` replace the two top values by their sum or product. A program is valid if no operation lacks
    values and exactly one is left, its value. Every operation costs 1, and `*` 3. Observation: the
    last token, 0 .. 5 (`x1+*d`, then `.`). Action: the next token. The tests are the inputs 0 to 5.

    Reward: at the end, the share of tests with the given program's value, times 0.5; if all pass,
    1 + (c - c') / c for costs c of the given program and c' of the answer, but at least 0.5. An
    invalid program gets 0. `success` says whether all tests pass, `optimized` whether also the
    cost is lower, `speedup` is c / c' if it is, else 1, as the measures of PIE (Madaan et al.,
    2023, "Learning performance-improving code edits", arXiv:2302.07867). The prompts are all
    programs for which there is a cheaper one of up to L operations; a fifth is held out:
    `held_out` (False) asks for these instead of the others. The expert writes the cheapest program.
    Raises `UserError` for a length other than 3, 5 and 7: valid programs have an odd one.
    """
    if length not in (3, 5, 7):
        raise UserError(f"length is {length}; it must be 3, 5 or 7 operations.")
    programs = wasteful_programs(length)
    split = split_prompts(len(programs.given))
    cost = lambda tokens: jnp.asarray(COSTS)[tokens].sum()

    def prompt(key: Key, params: Params) -> Array:
        return jnp.asarray(programs.given)[split.draw(key, params.held_out)]

    def grade(prompt: Array, answer: Array, ended: Array, params: Params) -> Grade:
        inputs = jnp.asarray(TESTS)
        wanted, _ = run_program(prompt, inputs)
        values, valid = run_program(answer, inputs)
        passed = jnp.where(valid, (values == wanted).mean(), 0.0)
        before, after = cost(prompt), jnp.maximum(cost(answer), 1.0)
        right = passed == 1
        reward = jnp.where(right, jnp.maximum(1 + (before - after) / before, 0.5), 0.5 * passed)
        optimized = right & (after < before)
        metrics = {
            "optimized": optimized.astype(jnp.float32),
            "speedup": jnp.where(optimized, before / after, 1.0),
        }
        return Grade(reward, right.astype(jnp.float32), metrics=metrics)

    def solve(prompt: Array) -> Array:
        return jnp.asarray(programs.best)[jnp.argmax((programs.given == prompt).all(-1))]

    return answering(
        "shorter_programs",
        VOCABULARY,
        length,
        length,
        prompt=prompt,
        grade=grade,
        params=Params(False),
        solve=solve,
    )
