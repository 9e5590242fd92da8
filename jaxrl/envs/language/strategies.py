"""Problems of several kinds and sizes, each to be given to one of three solvers: a choice of
strategy whose values are known exactly."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing

SIZES, KINDS, SOLVERS = tuple("1234"), tuple("NWF"), tuple("dsp")
VOCABULARY = (*SIZES, *KINDS, *SOLVERS, "?", "!", "x", ".")
FIRST_KIND, FIRST_SOLVER = len(SIZES), len(SIZES) + len(KINDS)
ASKS, RIGHT, WRONG = (VOCABULARY.index(x) for x in "?!x")
# Chance that a solver is right, for each kind (numbers, words, formulas) of the smallest size, and
# what each further size takes away from it.
CHANCE = np.array([[0.9, 0.8, 0.65], [0.95, 0.9, 0.35], [0.5, 0.6, 0.9]], np.float32)
DECLINE = np.array([0.25, 0.1, 0.0], np.float32)


@struct
class Params:
    """Solvers. The table is read by kind, size and solver."""

    chances: np.ndarray  # chance that a solver is right, for each kind and size, [3, 4, 3]
    costs: np.ndarray  # what an attempt by each solver costs, [3]


@struct
class Memory:
    """Problem, and which solvers would solve it."""

    kind: Array  # int32
    size: Array  # int32
    solved_by: Array  # bool [3]
    tried: Array  # bool [3]
    first: Array  # float32: whether the first attempt was right


class Selectors(NamedTuple):
    """Expected reward of a first attempt, means over kinds and sizes: by the best solver for each
    problem, by the best single one, and by each alone [3]."""

    oracle: np.ndarray
    best_single: np.ndarray
    single: np.ndarray


def attempt_values(params: Params) -> np.ndarray:
    """Return the expected reward of an attempt by each solver, by kind and size, [3, 4, 3]."""
    return np.asarray(params.chances) - np.asarray(params.costs)


def exact_selectors(params: Params) -> Selectors:
    """Return what choosing a solver is worth exactly."""
    values = attempt_values(params)
    single = values.mean((0, 1))
    return Selectors(values.max(-1).mean(), single.max(), single)


@functools.cache
def strategies(attempts: int = 3) -> Environment:
    """Choose a solver for a problem, again up to `attempts` (3) times while it is not solved.

    The prompt is `N3?`: numbers, `N`, words, `W`, or formulas, `F`, of a size of 1 to 4. An attempt
    is one token: `d` answers directly, which fails with size, `s` works in steps, and `p` writes a
    program, which is no worse at large problems but bad at words. The reply is `!`, which ends the
    text, or `x`; then another attempt follows: `N3?dxs!`. Observation: the last token, 0 .. 13.
    Action: the next token; only solvers that were not tried yet are legal.

    Whether a solver is right is drawn once for each problem, by `chances` [kind, size, solver].
    Reward of an attempt: 1 if it is right, less its solver's cost, `costs` (0.1 each). `success`
    says whether the first attempt was right, `solved` whether any was. What first attempts can be
    worth is known exactly (`exact_selectors`): by the best solver for each problem, which the
    expert chooses, and by the best single one. In the manner of the strategies of Liu et al., 2024,
    "SMART: Self-learning Meta-strategy Agent for Reasoning Tasks", arXiv:2410.16128, whose solvers
    are a language model's answers, chains of thought and programs. Raises `UserError` unless
    1 <= attempts <= 3.
    """
    if not 1 <= attempts <= len(SOLVERS):
        raise UserError(f"attempts is {attempts}; it must be 1, 2 or 3, as there are 3 solvers.")
    declined = CHANCE[:, None] - DECLINE * np.arange(len(SIZES))[:, None]
    chances = np.maximum(declined, 0.05).astype(np.float32)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        kind_key, size_key, solve_key = jax.random.split(key, 3)
        kind = jax.random.randint(kind_key, (), 0, len(KINDS))
        size = jax.random.randint(size_key, (), 0, len(SIZES))
        chance = jnp.asarray(params.chances)[kind, size]
        prompt = jnp.stack([FIRST_KIND + kind, size, jnp.int32(ASKS)])
        solved_by = jax.random.bernoulli(solve_key, chance)
        return prompt, Memory(kind, size, solved_by, jnp.zeros(len(SOLVERS), bool), jnp.zeros(()))

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        solver = jnp.clip(said.tokens[0] - FIRST_SOLVER, 0, len(SOLVERS) - 1)
        right = memory.solved_by[solver]
        found = right.astype(jnp.float32)
        tried = memory.tried | (np.arange(len(SOLVERS)) == solver)
        first = jnp.where(said.turn == 0, found, memory.first)
        return Reply(
            jnp.where(right, RIGHT, WRONG)[None],
            dataclasses.replace(memory, tried=tried, first=first),
            Grade(
                found - jnp.asarray(params.costs)[solver],
                success=first,
                metrics={"solved": found},
            ),
            done=right,
            count=1,
        )

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        values = jnp.asarray(params.chances)[memory.kind, memory.size] - jnp.asarray(params.costs)
        return (FIRST_SOLVER + jnp.argmax(jnp.where(memory.tried, -jnp.inf, values)))[None]

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        return jnp.zeros(len(VOCABULARY), bool).at[FIRST_SOLVER:ASKS].set(~memory.tried)

    return conversing(
        "strategies",
        VOCABULARY,
        (1,) * attempts,
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(chances, np.full(len(SOLVERS), 0.1, np.float32)),
    )
