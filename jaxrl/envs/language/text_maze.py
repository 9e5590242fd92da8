"""A maze in words: say where to go, and read where that led."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import split_prompts

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # of the words n, e, s and w
FAR = 10_000  # more than any distance


@struct
class Params:
    """Choice of the ways that are asked for."""

    held_out: bool  # whether to ask for held-out pairs of start and goal instead of the others


@struct
class Memory:
    """Place of the agent, and of its goal: numbers of cells."""

    cell: Array  # int32
    goal: Array  # int32


def carve(size: int, openings: int, seed: int) -> np.ndarray:
    """Return the cell that each of the four moves leads to from each cell, int32 [size^2, 4]: a
    random spanning tree of the grid, with `openings` further walls removed where there are any."""
    rng, cells = np.random.default_rng(seed), size * size
    walls = [(i, k) for i in range(cells) for k in (1, 2) if _neighbor(size, i, k) >= 0]
    group = np.arange(cells)
    after = np.repeat(np.arange(cells)[:, None], 4, 1).astype(np.int32)
    closed = []
    for i, k in (walls[j] for j in rng.permutation(len(walls))):
        other = _neighbor(size, i, k)
        if group[i] != group[other]:
            group[group == group[other]] = group[i]
            after[i, k], after[other, k + 2 - 4 * (k > 1)] = other, i
        else:
            closed.append((i, k, other))
    for i, k, other in closed[:openings]:
        after[i, k], after[other, k + 2 - 4 * (k > 1)] = other, i
    return after


def distances(after: np.ndarray) -> np.ndarray:
    """Return the number of moves from each cell to each cell, int32 [C, C]."""
    cells = len(after)
    found = np.where(np.eye(cells, dtype=bool), 0, FAR)
    for _ in range(cells):
        found = np.minimum(found, 1 + found[after].min(1))
    return found.astype(np.int32)


@functools.cache
def text_maze(size: int = 4, turns: int = 8, openings: int = 2, seed: int = 0) -> Environment:
    """Walk to a goal in a maze that is not shown, in up to `turns` (8) turns of one word each.

    The maze of `size` x `size` (4) cells is the same in all episodes, drawn from `seed`: a random
    spanning tree with `openings` (2) further walls removed. The prompt `0132` says the row and
    column of the start and of the goal. An utterance is one word, `n`, `e`, `s` or `w`; the reply
    says the row and column where it led, which are the old ones at a wall and after any other
    token. Observation: the last token, 0 .. size + 4 (the digits, the words, `.`). Action: the next
    token. Reward: 1 at the goal, which ends the text, and nothing before, so it is delayed by up to
    8 turns; `success` is the same.

    Pairs of start and goal are uniform among those at most `turns` moves apart, so that the best
    policy always succeeds; the expert takes a shortest way. A fifth of them is held out:
    `held_out` (False) asks for these instead of the others. In the manner of the mazes of Abdulhai
    et al., 2023, "LMRL Gym", arXiv:2311.18232, whose reward is -1 for each step. Raises `UserError`
    unless 2 <= size <= 10 and turns >= 1, and for a negative number of openings.
    """
    if not 2 <= size <= 10 or turns < 1 or openings < 0:
        raise UserError(
            f"size is {size}, turns {turns} and openings {openings}; size must be 2 to 10, turns "
            "at least 1, and openings not negative."
        )
    vocabulary = (*map(str, range(size)), *"nesw", ".")
    after = carve(size, openings, seed)
    away = distances(after)
    pairs = np.argwhere((away > 0) & (away <= turns)).astype(np.int32)
    ways = split_prompts(len(pairs))
    toward = away[after].argmin(1).astype(np.int32)  # [cell, goal]: the first move

    def place(cell: Array) -> Array:
        return jnp.stack([cell // size, cell % size])

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        start, goal = jnp.asarray(pairs)[ways.draw(key, params.held_out)]
        return jnp.concatenate([place(start), place(goal)]), Memory(start, goal)

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        move = said.tokens[0] - size
        moves = (move >= 0) & (move < 4)
        led = jnp.asarray(after)[memory.cell, jnp.clip(move, 0, 3)]
        cell = jnp.where(moves, led, memory.cell)
        there = cell == memory.goal
        found = there.astype(jnp.float32)
        memory = Memory(cell, memory.goal)
        return Reply(place(cell), memory, Grade(found, success=found), done=there, count=2)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        return size + jnp.asarray(toward)[memory.cell, memory.goal][None]

    return conversing(
        "text_maze",
        vocabulary,
        (1,) * turns,
        begin=begin,
        respond=respond,
        solve=solve,
        params=Params(held_out=False),
    )


def _neighbor(size: int, cell: int, move: int) -> int:
    """Return the cell beside another in the direction of a move, or -1 outside of the grid."""
    row, column = (x + d for x, d in zip(divmod(cell, size), MOVES[move], strict=True))
    return row * size + column if 0 <= row < size and 0 <= column < size else -1
