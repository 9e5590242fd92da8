"""A maze in words that is walked by plans: say where to be next, then how to go there."""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.language.prompts import split_prompts
from jaxrl.envs.language.text_maze import Params, carve, distances


@struct
class Memory:
    """Places, numbers of cells, and the subgoals that were reached."""

    cell: Array  # int32
    goal: Array  # int32
    plan: Array  # int32: the cell of the present plan
    waits: Array  # bool: whether the plan's cell has been reached
    reached: Array  # int32: number of plans whose cell was reached so far


@functools.cache
def planned_maze(
    size: int = 4, plans: int = 4, moves: int = 2, openings: int = 2, seed: int = 0
) -> Environment:
    """Walk to a goal in a maze that is not shown, by `plans` (4) plans of up to `moves` (2) words.

    Maze (`size`, `openings`, `seed`), prompt and goals are those of `text_maze`, with a limit of
    `plans` * `moves` words. The agent writes the row and column of a cell, its plan, and then
    words, `n`, `e`, `s` or `w`, to each of which the reply is the row and column where it led. Once
    it is in the plan's cell, it can only wait (`.`) for the next plan. Legal are tokens that make
    sense: digits in a plan, a word in a move. Observation: the last token. Action: the next token.
    Reward: 1 at the goal, which ends the text, and nothing before; `success` is the same.

    `TimeStep.tokens["plan"]` says whether the token that follows belongs to a plan;
    `privileged["subgoal_reward"]` is 1 in steps that lead to the present plan's cell, for the first
    time, and 0 in others. The expert plans a cell that is `moves` steps further on a shortest way
    to the goal, and takes a shortest way to the cell that is planned, also to a strange one.

    Raises `UserError` unless 2 <= size <= 10, plans and moves are at least 1, and openings is not
    negative.
    """
    if not 2 <= size <= 10 or plans < 1 or moves < 1 or openings < 0:
        raise UserError(
            f"size is {size}, plans {plans}, moves {moves} and openings {openings}; size must be 2 "
            "to 10, plans and moves at least 1, and openings not negative."
        )
    vocabulary = (*map(str, range(size)), *"nesw", ".")
    wait = len(vocabulary) - 1
    after = carve(size, openings, seed)
    away = distances(after)
    pairs = np.argwhere((away > 0) & (away <= plans * moves)).astype(np.int32)
    ways = split_prompts(len(pairs))
    toward = away[after].argmin(1).astype(np.int32)  # [cell, goal]: the first move
    cells = np.arange(size * size)
    ahead = np.tile(cells[:, None], (1, size * size))
    for _ in range(moves):  # [cell, goal]: the cell some moves further
        further = after[ahead, toward[ahead, cells]]
        ahead = np.where(ahead == cells, ahead, further)
    group = moves + 1
    turns = np.arange(plans * group)
    kinds = np.arange(len(vocabulary))
    digits, words = kinds < size, (kinds >= size) & (kinds < wait)

    def place(cell: Array) -> Array:
        return jnp.stack([cell // size, cell % size])

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        start, goal = jnp.asarray(pairs)[ways.draw(key, params.held_out)]
        no = jnp.zeros((), jnp.int32)
        memory = Memory(start, goal, no, jnp.zeros((), bool), no)
        return jnp.concatenate([place(start), place(goal)]), memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        plans_now = said.turn % group == 0
        row, column = said.tokens[0], said.tokens[1]
        move = jnp.clip(said.tokens[0] - size, 0, 3)
        led = jnp.where(memory.waits, memory.cell, jnp.asarray(after)[memory.cell, move])
        cell = jnp.where(plans_now, memory.cell, led)
        arrives = ~plans_now & ~memory.waits & (cell == memory.plan)
        found = (~plans_now & (cell == memory.goal)).astype(jnp.float32)
        memory = Memory(
            cell,
            memory.goal,
            jnp.where(plans_now, row * size + column, memory.plan).astype(jnp.int32),
            ~plans_now & (memory.waits | arrives),
            memory.reached + arrives,
        )
        count = jnp.where(plans_now, 0, 2)
        return Reply(place(cell), memory, Grade(found, success=found), done=found > 0, count=count)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        plan = place(jnp.asarray(ahead.astype(np.int32))[memory.cell, memory.goal])
        word = size + jnp.asarray(toward)[memory.cell, memory.plan]
        word = jnp.where(memory.waits, wait, word)
        return jnp.where(turn % group == 0, plan, jnp.stack([word, jnp.asarray(wait)]))

    def legal(memory: Memory, turn: Array, within: Array) -> Array:
        moving = jnp.where(memory.waits, kinds == wait, words)
        return jnp.where(turn % group == 0, digits, moving)

    env = conversing(
        "planned_maze",
        vocabulary,
        tuple(int(x) for x in np.where(turns % group == 0, 2, 1)),
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(held_out=False),
    )

    def tell(timestep: TimeStep, reached: Array) -> TimeStep:
        tokens = timestep.tokens | {"plan": timestep.tokens["turn"] % group == 0}
        reward = {"subgoal_reward": reached.astype(jnp.float32)}
        return dataclasses.replace(timestep, tokens=tokens, privileged=reward)

    def reset(key, params):
        state, timestep = env.reset(key, params)
        return state, tell(timestep, jnp.zeros(()))

    def step(key, state, action, params):
        new, timestep = env.step(key, state, action, params)
        return new, tell(timestep, new.memory.reached - state.memory.reached)

    return dataclasses.replace(env, reset=reset, step=step)
