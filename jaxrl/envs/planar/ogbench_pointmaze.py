"""Move a point through a maze to a goal, in the mazes, tasks and units of OGBench.

Observation: float32 [2], the position; x along columns, y along rows from the top, 4 units a cell,
the origin at the center of the first free cell. Goal, in `timestep.goal`: float32 [2], a position.
Action: float32 [2], clipped to [-1, 1]; a step moves the point by 0.2 of it. Reward: 1 within 1
unit of the goal, where the episode terminates, and 0 elsewhere; time limit 1,000 steps. Start and
goal are the centers of two cells, plus uniform noise of up to 1 unit along each axis:

    begin="tasks"       one of OGBench's five pairs of cells, all equally likely: its evaluation
    begin="anywhere"    any free cell, and any that is no corridor: its data "navigate"
    begin="nearby"      any free cell, and a cell 4 steps away (itself if there is none): "stitch"

Source: PointMaze of Park et al. (2025), "OGBench: benchmarking offline goal-conditioned RL",
arXiv:2410.20092. Its walls are contacts of MuJoCo, which push the ball out almost within a step;
here they push it out at once. The expert walks as the one that made its data, at full length along
the direction to the center of the next cell on a shortest path. In the goal's cell it walks to the
center too, as in those data, so a goal in a corner may stay out of reach; in the tasks it walks to
the goal. Where there are several shortest paths the two may choose differently. OGBench's maze with
teleports is not here.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import free_bodies, mazes, tasks, vectors
from jaxrl.envs.wrappers.time_limit import time_limit

BEGIN = ("tasks", "anywhere", "nearby")
# Start and goal (row, column each) of the five tasks of each maze.
TASKS = {
    "medium": ((1, 1, 6, 6), (6, 1, 1, 6), (5, 3, 4, 2), (6, 5, 6, 1), (2, 6, 1, 1)),
    "large": ((1, 1, 7, 10), (5, 4, 7, 1), (7, 4, 1, 10), (3, 8, 5, 4), (1, 1, 5, 4)),
    "giant": ((1, 1, 10, 14), (1, 14, 10, 1), (8, 14, 1, 1), (8, 3, 5, 12), (5, 9, 3, 8)),
}
NEARBY = 4  # steps from a start to its goal in data to stitch
CELL, OFFSET = 4.0, 4.0  # units: side of a cell, and the origin's distance from the first center
NOISE = 1.0  # units, largest noise of starts and goals along an axis
RADIUS = 0.7  # units, of the point's ball
GOAL_RADIUS = 1.0  # units
MOVE = 0.2  # units at action 1
TIME_LIMIT = 1000


@struct
class Params:
    """Parameters of a maze of OGBench; cells are numbers row * W + column.

    walls: uint8 [H, W], 1 where a cell is solid. begin: which of the lists of starts and goals an
    episode draws from, a number of `BEGIN`. starts: int32 [3, N], by `begin`, cells, then padding.
    num_starts: int32 [3]. goals: int32 [3, N, M], of each start, cells, then padding. num_goals:
    int32 [3, N].
    """

    walls: np.ndarray
    starts: np.ndarray
    num_starts: np.ndarray
    goals: np.ndarray
    num_goals: np.ndarray
    begin: int = 0


@struct
class State:
    position: Array  # [2], the observation
    goal: Array  # [2]


@functools.cache
def ogbench_pointmaze(maze: str = "medium", begin: str = "tasks") -> Environment:
    """The point in OGBench's `maze` "medium", "large" or "giant"; `begin`: "tasks", "anywhere" or
    "nearby"."""
    one_of("ogbench_pointmaze", "maze", maze, tuple(TASKS))
    one_of("ogbench_pointmaze", "begin", begin, BEGIN)
    env = Environment(
        name="ogbench_pointmaze",
        reset=jax.jit(_reset, inline=True),
        step=jax.jit(_step, inline=True),
        params=_params(maze, BEGIN.index(begin)),
        observation_space=Box(-np.inf, np.inf, (2,)),
        action_space=Box(-1.0, 1.0, (2,)),
        render=_render,
        expert=jax.jit(_expert, inline=True),
        goals=Goals(lambda observation: observation, _outcome),
        state_of=lambda timestep: State(timestep.observation, timestep.goal),
    )
    return time_limit(env, TIME_LIMIT)


def _params(maze: str, begin: int) -> Params:
    walls = mazes.maze(maze).walls
    width = walls.shape[1]
    free = np.flatnonzero(walls == 0)
    pairs = np.array(TASKS[maze]) @ np.kron(np.eye(2, dtype=int), [[width], [1]])
    junctions = free[~_is_corridor(walls)[walls == 0]]
    steps = _steps_between(walls, free)
    nearby = [free[row == NEARBY] if (row == NEARBY).any() else free[row == 0] for row in steps]
    lists = [
        (pairs[:, 0], [[goal] for goal in pairs[:, 1]]),
        (free, [junctions] * len(free)),
        (free, nearby),
    ]
    most = max(len(goals) for _, each in lists for goals in each)
    starts, num_starts = np.zeros((3, len(free)), np.int32), np.zeros(3, np.int32)
    goals, num_goals = np.zeros((3, len(free), most), np.int32), np.zeros((3, len(free)), np.int32)
    for i, (cells, each) in enumerate(lists):
        starts[i, : len(cells)], num_starts[i] = cells, len(cells)
        for j, found in enumerate(each):
            goals[i, j, : len(found)], num_goals[i, j] = found, len(found)
    return Params(walls, starts, num_starts, goals, num_goals, begin)


def _is_corridor(walls: np.ndarray) -> np.ndarray:
    """Return the cells [H, W] with two walls on opposite sides and none on the others."""
    up, down, left, right = (
        np.roll(walls, shift, axis) != 0 for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1))
    )
    open_along, open_across = ~up & ~down & left & right, up & down & ~left & ~right
    return open_along | open_across


def _steps_between(walls: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the fewest steps [N, N] between the free cells, through cells that share a side; -1
    where there is no path."""
    width, count = walls.shape[1], len(free)
    apart = np.abs(free[:, None] - free[None])
    beside = (apart == 1) | (apart == width)  # the border is solid, so no row wraps around
    steps, reached = np.full((count, count), -1), np.eye(count, dtype=bool)
    for distance in range(count):
        steps[reached & (steps < 0)] = distance
        reached = (reached.astype(int) @ beside > 0) | reached
    return steps


def _center(cell: Array, width: int) -> Array:
    return CELL * jnp.stack([cell % width, cell // width]).astype(jnp.float32) - OFFSET


def _cell(position: Array) -> Array:
    """Return the row and column of a position."""
    return jnp.floor((position[::-1] + OFFSET) / CELL + 0.5).astype(jnp.int32)


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    start_key, goal_key, noise_key = jax.random.split(key, 3)
    begin, width = params.begin, params.walls.shape[1]
    starts, num_starts, goals, num_goals = (
        jnp.asarray(x)[begin]
        for x in (params.starts, params.num_starts, params.goals, params.num_goals)
    )
    start = jax.random.randint(start_key, (), 0, num_starts)
    goal = goals[start, jax.random.randint(goal_key, (), 0, num_goals[start])]
    noise = jax.random.uniform(noise_key, (2, 2), jnp.float32, -NOISE, NOISE)
    position, goal = jnp.stack([_center(starts[start], width), _center(goal, width)]) + noise
    success = {"success": jnp.zeros((), jnp.float32)}
    return State(position, goal), timesteps.first(position, goal=goal, metrics=success)


def _step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
    del key
    middle = _middle(params.walls)
    position = state.position + MOVE * jnp.clip(action, -1.0, 1.0)
    # The kit's mazes are centered, and their y points up.
    up = jnp.asarray([1.0, -1.0])
    centered, _ = free_bodies.push_out_of_cells(
        (position - middle) * up, jnp.zeros(2), jnp.asarray(params.walls), CELL, RADIUS, 0.0
    )
    position = centered * up + middle
    reward, terminated = _outcome(position, state.goal, params)
    return State(position, state.goal), timesteps.following(
        position, reward, terminated, goal=state.goal, metrics={"success": reward}
    )


def _middle(walls: Array | np.ndarray) -> Array:
    height, width = walls.shape
    return jnp.asarray([width - 1, height - 1], jnp.float32) * CELL / 2 - OFFSET


def _outcome(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    del params
    reached = vectors.norm(achieved - goal) <= GOAL_RADIUS
    return reached.astype(jnp.float32), reached


def _expert(state: State, params: Params) -> Array:
    """Walk at full length to the center of the next cell on a shortest path; in the goal's cell, to
    its center, and in the tasks to the goal."""
    walls, here, goal = jnp.asarray(params.walls), _cell(state.position), _cell(state.goal)
    row, column = mazes.next_cell(walls, here, goal)
    center = _center(row * walls.shape[1] + column, walls.shape[1])
    to_goal = (here == goal).all() & (jnp.asarray(params.begin) == BEGIN.index("tasks"))
    way = jnp.where(to_goal, state.goal, center) - state.position
    return way / (vectors.norm(way) + 1e-6)


def _render(state: State, params: Params) -> np.ndarray:
    walls, middle = np.asarray(params.walls), np.asarray(_middle(params.walls))
    height, width = walls.shape
    pixels = max(10, 400 // max(height, width))  # per cell
    origin = (width * pixels / 2, height * pixels / 2)
    canvas = drawing.Canvas(width * pixels, height * pixels, pixels / CELL, origin)
    for row, column in np.argwhere(walls != 0):
        left, top = (column - width / 2) * CELL, (height / 2 - row) * CELL
        tasks.rectangle(canvas, (left, top - CELL), (left + CELL, top), drawing.STEEL)

    def place(position: Array) -> tuple[float, float]:
        x, y = np.asarray(position) - middle
        return float(x), -float(y)

    canvas.circle(place(state.goal), GOAL_RADIUS, drawing.GREEN)
    canvas.circle(place(state.position), RADIUS, drawing.BLUE)
    return canvas.frame()
