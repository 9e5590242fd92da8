"""Parts that all mazes with a goal share: compass steps, a place to reach, and hindsight.

Observation: with `observe="planes"` uint8 [height, width, C] of 0 and 1: walls, agent and, if there
are one-way doors, one plane for each of their directions (east, south, west, north); with
`observe="position"` float32 [2]: row and column of the agent, from -1 to 1 over the grid. The goal
is not in it but in the `goal` channel: float32 [2], row and column on the same scale. Actions:
compass steps, 0 east, 1 south, 2 west, 3 north; walls stop them. Reward: `goal_reward` on the goal,
which terminates, else `step_reward`. Start and goal are random free cells, never the same.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.grids import cells, levels, moves, paths, pictures
from jaxrl.envs.options import one_of
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    level: int = levels.FRESH  # number of a fixed maze, start and goal; -1 for new ones
    goal_reward: float = 1.0  # reward for reaching the goal
    step_reward: float = 0.0  # reward of any other step


@struct
class State:
    grid: Array  # uint8 [H, W]: codes
    position: Array  # int32 [2]: row, column
    goal: Array  # int32 [2]


def goal_environment(
    name: str,
    draw: Callable[[Key], Array],
    shape: tuple[int, int],
    max_steps: int,
    observe: str = "planes",
    one_way: bool = False,
    passes: int | None = None,
    fixed: np.ndarray | None = None,
) -> Environment:
    """Build a maze with a goal. draw: its grid, uint8 [H, W], from a key; passes: the length of the
    longest shortest path, for the expert; fixed: the grid, where it is always the same one. A time
    step then tells the state."""
    one_of(name, "observe", observe, ("planes", "position"))
    rows, columns = levels.rows_and_columns(shape)
    scale = (np.array(shape, np.float32) - 1) / 2
    width = shape[1]

    def here(place: Array) -> Array:
        return (rows == place[0]) & (columns == place[1])

    def normalize(place: Array) -> Array:
        return place / scale - 1

    def look(state: State) -> Array:
        if observe == "position":
            return normalize(state.position)
        layers = [state.grid == cells.WALL, here(state.position)]
        if one_way:
            layers += [state.grid == cells.code(cells.ONE_WAY, d) for d in range(4)]
        return jnp.stack(layers, -1).astype(jnp.uint8)

    def achieved_goal(observation: Array) -> Array:
        if observe == "position":
            return observation
        plane = observation[..., 1]
        place = jnp.argmax(plane.reshape(*plane.shape[:-2], -1), -1)
        return normalize(jnp.stack([place // width, place % width], -1))

    def outcome(reached: Array, goal: Array, params: Params) -> tuple[Array, Array]:
        there = (abs(reached - goal) * scale < 0.5).all(-1)
        return jnp.where(there, params.goal_reward, params.step_reward), there

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        maze_key, start_key, goal_key = jax.random.split(levels.key_of(key, params.level), 3)
        grid = draw(maze_key) if fixed is None else jnp.asarray(fixed)
        free = cells.is_free(grid)
        start = levels.pick(start_key, free)
        start = jnp.stack([start // width, start % width])
        goal = levels.pick(goal_key, free & ~here(start))
        state = State(grid, start, jnp.stack([goal // width, goal % width]))
        metrics = {"success": jnp.zeros((), jnp.float32)}
        return state, timesteps.first(look(state), goal=normalize(state.goal), metrics=metrics)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        del key
        place = jnp.stack(moves.go(state.grid, state.position[0], state.position[1], action))
        after = State(state.grid, place, state.goal)
        reward, there = outcome(normalize(place), normalize(state.goal), params)
        return after, timesteps.following(
            look(after),
            reward,
            there,
            goal=normalize(state.goal),
            metrics={"success": there.astype(jnp.float32)},
        )

    def expert(state: State, params: Params) -> Array:
        del params
        enter = paths.entering(state.grid)
        distance = paths.by_compass(enter, here(state.goal), passes)
        return paths.compass_action(enter, distance, state.position[0], state.position[1])

    def state_of(timestep: TimeStep) -> State:
        place, goal = achieved_goal(timestep.observation), timestep.goal
        cell = lambda x: jnp.round((x + 1) * scale).astype(jnp.int32)
        return State(jnp.asarray(fixed), cell(place), cell(goal))

    def render(state: State, params: Params) -> np.ndarray:
        del params
        goal = (state.goal[0], state.goal[1])
        return pictures.frame(state.grid, state.position[0], state.position[1], goal=goal)

    image = Box(0, 1, (*shape, 6 if one_way else 2), jnp.uint8)
    return time_limit(
        Environment(
            name=name,
            reset=reset,
            step=step,
            params=Params(),
            observation_space=image if observe == "planes" else Box(-1.0, 1.0, (2,)),
            action_space=Discrete(4),
            render=render,
            expert=expert,
            goals=Goals(achieved_goal, outcome),
            state_of=None if fixed is None else state_of,
        ),
        max_steps,
    )
