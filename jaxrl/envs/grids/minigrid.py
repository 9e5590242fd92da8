"""Parts that all environments with MiniGrid's rules share, from a generator of levels to an
`Environment`.

Observation: uint8 [7, 7, 3], object, color and state of the cells ahead of the agent, as MiniGrid's
`image` (`view.ahead_of`), or with `full` uint8 [height, width, 3], the whole grid (`view.whole`).
Actions: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle (open, close, unlock), 6
done (does nothing). Reward: 0, and 1 - 0.9 * steps / max_steps for the step that succeeds.
Chevalier-Boisvert et al. (2023), "Minigrid & Miniworld: Modular & Customizable Reinforcement
Learning Environments for Goal-Oriented Tasks"; rules and numbers of `minigrid` 3.
A step that succeeds or fails terminates and is never truncated, even at the time limit, where
MiniGrid truncates it as well.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.grids import cells, levels, moves, paths, pictures, view
from jaxrl.envs.wrappers.time_limit import time_limit

VIEW = 7
_LARGEST_TABLE = 2**20  # bytes of the table of views: what fits in a processor's cache


@struct
class Params:
    level: int = levels.FRESH  # number of a fixed level; -1 for new ones
    penalty: float = 0.9  # how much less a success at the time limit is worth


def reached_goal(
    state: moves.State, action: Array, after: moves.State, entered: Array
) -> tuple[Array, Array]:
    """Judge a step: success on a goal, failure in lava."""
    del state, action, after
    kind = cells.kind(entered)
    return kind == cells.GOAL_KIND, kind == cells.LAVA


def to_goal(passes: int, locks: bool = False) -> Callable[[moves.State, Params], Array]:
    """Build the expert that goes to a goal."""

    def expert(state: moves.State, params: Params) -> Array:
        del params
        goals = cells.kind(state.grid) == cells.GOAL_KIND
        return paths.follow(state, passes, stand=goals, locks=locks)

    return expert


def minigrid(
    name: str,
    generate: Callable[[Key], moves.State],
    shape: tuple[int, int],
    max_steps: int,
    expert: Callable[[moves.State, Params], Array],
    judge: Callable[..., tuple[Array, Array]] = reached_goal,
    full: bool = False,
    see_through: bool = False,
    objects: bool = True,
    cost: bool = False,
    room: np.ndarray | None = None,
) -> Environment:
    """Build an environment with MiniGrid's rules.

    generate: function that draws a level from a key.
    shape: shape of the levels' grid.
    judge: success and failure from the state, the action, the state after it and the code of the
        cell that was entered; both end the episode.
    see_through: whether walls hide nothing.
    objects: whether anything can be handled.
    cost: whether there is a cost channel, which is 1 if a step fails.
    room: the grid of all levels, if they share one that nothing (no `objects`) can change: it is
        then not part of the state (`()`), and views come from a table.
    """

    def look(state: moves.State) -> Array:
        if full:
            return view.whole(state.grid, state.row, state.column, state.heading)
        return view.ahead_of(
            state.grid, state.row, state.column, state.heading, state.carrying, VIEW, see_through
        )

    def without_room(state: moves.State) -> moves.State:
        return state if room is None else dataclasses.replace(state, grid=())

    def with_room(state: moves.State) -> moves.State:
        return state if room is None else dataclasses.replace(state, grid=jnp.asarray(room))

    size = (*shape, 3) if full else (VIEW, VIEW, 3)
    places = shape[0] * shape[1]
    observe = look
    if room is not None and 4 * places * math.prod(size) <= _LARGEST_TABLE:
        observe = view.from_table(lambda *place: look(moves.start(room, *place)), shape)

    def channels(success: Array | bool, failure: Array | bool) -> dict:
        number = lambda x: jnp.asarray(x, jnp.float32)
        costs = {"cost": number(failure)} if cost else {}
        return {"metrics": {"success": number(success)}, **costs}

    def reset(key: Key, params: Params) -> tuple[moves.State, TimeStep]:
        state = generate(levels.key_of(key, params.level))
        return without_room(state), timesteps.first(observe(state), **channels(False, False))

    def step(
        key: Key, state: moves.State, action: Array, params: Params
    ) -> tuple[moves.State, TimeStep]:
        del key
        state = with_room(state)
        after, entered = moves.act(state, action, objects)
        success, failure = judge(state, action, after, entered)
        worth = 1.0 - params.penalty * after.steps / max_steps
        return without_room(after), timesteps.following(
            observe(after),
            jnp.where(success, worth, 0.0),
            success | failure,
            **channels(success, failure),
        )

    def render(state: moves.State, params: Params) -> np.ndarray:
        del params
        grid = state.grid if room is None else room
        return pictures.frame(
            grid, state.row, state.column, heading=state.heading, carrying=state.carrying
        )

    size = (*shape, 3) if full else (VIEW, VIEW, 3)
    return time_limit(
        Environment(
            name=name,
            reset=reset,
            step=step,
            params=Params(),
            observation_space=Box(0, cells.SYMBOLS - 1, size, jnp.uint8),
            action_space=Discrete(moves.ACTIONS),
            render=render,
            expert=lambda state, params: expert(with_room(state), params),
        ),
        max_steps,
    )
