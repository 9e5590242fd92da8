"""Steer a ball through a maze to a goal, with a force in the plane.

Observation: float32 [4]: position (m; x to the right, y up, from the maze's center) and velocity
(m/s). Goal, in `timestep.goal`: float32 [2], a position (m). Action: float32 [2], the force along x
and y in units of `gear`, clipped to [-1, 1]. Reward: with `reward="sparse"` 1 within `goal_radius`
of the goal and 0 elsewhere, with "dense" exp(-distance to the goal). Terminates within
`goal_radius`, unless `continuing` (the published default); time limit 300 steps (open, u_maze), 600
(medium), 800 (large) or 1,200 (deceptive). Goal and start are the centers of random cells (never
the same one) plus uniform noise. Source: PointMaze of D4RL (Fu et al. 2020, "D4RL: datasets for
deep data-driven reinforcement learning") as in Gymnasium-Robotics (v3), with the same layouts,
ball, gear, damping, velocity clip, 100 Hz and radii; free motion agrees with its MuJoCo model. The
walls differ: MuJoCo's contacts are soft, while here they stop the ball at once (`restitution` 0, no
friction), and the ball moves at most 0.95 of its radius in a step (9.5 m/s), so that it never
passes through a wall. The maze "deceptive" is the hard map of Lehman and Stanley (2011),
"Abandoning objectives", drawn in cells (see `mazes`): the ball replaces their robot, is smaller,
and has no range finders. Differentiable except where the ball meets a wall and at the goal's edge
(sparse reward).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import one_of
from jaxrl.envs.planar import free_bodies, mazes, tasks, vectors
from jaxrl.envs.wrappers.time_limit import time_limit

SPARSE, DENSE = "sparse", "dense"
PROPORTIONAL, DERIVATIVE = 10.0, 1.0  # gains of the expert: actions per m and per m/s, as in D4RL
# Time limits by the beginning of a maze's name; 800 steps in any other.
TIME_LIMITS = {"open": 300, "u_maze": 300, "medium": 600, "deceptive": 1200}


@struct
class Params:
    """Parameters of a point maze. `walls`, `starts` and `goals` may change too (a blocked corridor,
    another maze of the same shape); `with_maze` replaces them together."""

    walls: np.ndarray  # uint8 [H, W]: 1 for solid cells; the border must be solid
    starts: np.ndarray  # int32 [H * W]: start cells (row * W + column), then padding
    goals: np.ndarray  # int32 [H * W]: goal cells (row * W + column), then padding
    num_starts: int = 1  # number of start cells
    num_goals: int = 1  # number of goal cells
    cell: float = 1.0  # m, side of a cell
    position_noise: float = 0.25  # noise on start and goal positions, in cells
    goal_radius: float = 0.45  # m, distance at which the goal is reached
    radius: float = 0.1  # m, radius of the ball; must be less than half a cell
    mass: float = 4.18879  # kg: a sphere of radius 0.1 m and 1,000 kg/m^3
    gear: float = 100.0  # N at action 1
    damping: float = 1.0  # N s/m
    max_speed: float = 5.0  # m/s, clip of the velocity along each axis before a step's force
    restitution: float = 0.0  # coefficient of restitution of the walls
    delay: float = 0.0  # delay of an action, in steps, from 0 to 1
    dt: float = 0.01  # s, length of a step
    continuing: bool = False  # whether an episode goes on at the goal


_NONE = np.zeros(0, np.int32)
_PUBLISHED = Params(_NONE, _NONE, _NONE)
# 26 cells per side, so they are smaller; the published start and exit, without noise.
_DECEPTIVE = dataclasses.replace(_PUBLISHED, cell=0.25, position_noise=0.0, goal_radius=0.25)


@struct
class State:
    physics: Array  # [4]: position and velocity, the observation
    action: Array  # [2]: the previous action
    goal: Array  # [2]


@functools.cache
def point_maze(maze: str = "u_maze", reward: str = SPARSE) -> Environment:
    """The ball in `maze`: a name of `mazes.NAMES`, or a drawing such as "##### #r.g# #####".

    reward: "sparse" or "dense".
    """
    one_of("point_maze", "reward", reward, (SPARSE, DENSE))
    layout = mazes.maze(maze)
    env = Environment(
        name="point_maze" if maze == "u_maze" else f"point_maze_{maze}",
        reset=jax.jit(_reset, inline=True),
        step=jax.jit(functools.partial(_step, _OUTCOMES[reward]), inline=True),
        params=with_maze(_DECEPTIVE if maze == "deceptive" else _PUBLISHED, layout),
        observation_space=Box(-np.inf, np.inf, (4,)),
        action_space=Box(-1.0, 1.0, (2,)),
        render=_render,
        step_seconds=lambda state, params: params.dt,
        expert=jax.jit(_expert, inline=True),
        goals=Goals(_achieved_goal, _OUTCOMES[reward]),
        state_of=_state_of,
    )
    limits = (steps for name, steps in TIME_LIMITS.items() if maze.startswith(name))
    return time_limit(env, next(limits, 800))


def point_maze_open(reward: str = SPARSE) -> Environment:
    """`point_maze` without walls inside."""
    return point_maze("open", reward)


def point_maze_medium(reward: str = SPARSE) -> Environment:
    """`point_maze` in a maze of 6 x 6 cells."""
    return point_maze("medium", reward)


def point_maze_large(reward: str = SPARSE) -> Environment:
    """`point_maze` in a maze of 7 x 10 cells."""
    return point_maze("large", reward)


def point_maze_deceptive(reward: str = DENSE) -> Environment:
    """`point_maze` where going straight for the goal leads into a dead end."""
    return point_maze("deceptive", reward)


def with_maze(params: Params, maze: mazes.Maze) -> Params:
    """Return `params` with another maze of the same shape."""
    size = maze.walls.size

    def pad(cells: np.ndarray) -> np.ndarray:
        return np.resize(cells, size)

    return dataclasses.replace(
        params,
        walls=maze.walls,
        starts=pad(maze.starts),
        goals=pad(maze.goals),
        num_starts=len(maze.starts),
        num_goals=len(maze.goals),
    )


def _reset(key: Key, params: Params) -> tuple[State, TimeStep]:
    numbers = jax.random.uniform(key, (7,), jnp.float32)

    def pick(number: Array, count: Array | int) -> Array:
        return jnp.minimum((number * count).astype(jnp.int32), count - 1)

    starts, goals = jnp.asarray(params.starts), jnp.asarray(params.goals)

    # If the start is the goal's cell, one of the other starts replaces it with equal probability:
    # altogether that is uniform over the others, as if drawn again until they differ. The only
    # start stays, and another goal replaces the goal likewise.
    def replace(cells: Array, index: Array, count: Array | int, forbidden: Array) -> Array:
        another = (index + 1 + pick(numbers[2], jnp.maximum(count - 1, 1))) % count
        return jnp.where(cells[index] == forbidden, cells[another], cells[index])

    goal_index = pick(numbers[0], params.num_goals)
    start_index = pick(numbers[1], params.num_starts)
    start_cell = replace(starts, start_index, params.num_starts, goals[goal_index])
    goal_cell = replace(goals, goal_index, params.num_goals, start_cell)

    height, width = params.walls.shape
    cells = jnp.stack([start_cell, goal_cell])
    place = jnp.stack([cells % width - (width - 1) / 2, (height - 1) / 2 - cells // width], -1)
    noise = (2 * numbers[3:].reshape(2, 2) - 1) * params.position_noise
    position, goal = (place + noise) * params.cell
    state = State(jnp.concatenate([position, jnp.zeros(2)]), jnp.zeros(2), goal)
    success = {"success": jnp.zeros((), jnp.float32)}
    return state, timesteps.first(state.physics, goal=goal, metrics=success)


def _step(
    outcome: Callable, key: Key, state: State, action: Array, params: Params
) -> tuple[State, TimeStep]:
    del key
    action = jnp.clip(action, -1.0, 1.0)
    force = params.gear * tasks.delay_action(action, state.action, params.delay)
    position, velocity = state.physics[:2], state.physics[2:]
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    velocity = free_bodies.drive(velocity, force, params.mass, params.damping, params.dt)
    velocity = vectors.cap_length(velocity, free_bodies.LARGEST_MOVE * params.radius / params.dt)
    position, velocity = free_bodies.push_out_of_cells(
        position + params.dt * velocity,
        velocity,
        jnp.asarray(params.walls),
        params.cell,
        params.radius,
        params.restitution,
    )
    physics = jnp.concatenate([position, velocity])
    reward, terminated = outcome(position, state.goal, params)
    success = _is_reached(position, state.goal, params).astype(jnp.float32)
    return State(physics, action, state.goal), timesteps.following(
        physics, reward, terminated, goal=state.goal, metrics={"success": success}
    )


def _state_of(timestep: TimeStep) -> State:
    """Return the state without a previous action, which only a `delay` would need."""
    physics, goal = timestep.observation, timestep.goal
    return State(physics, jnp.zeros_like(goal), goal)


# ------------------------------------------------------------------------------ goals


def _achieved_goal(observation: Array) -> Array:
    return observation[..., :2]


def _is_reached(achieved: Array, goal: Array, params: Params) -> Array:
    return vectors.norm(achieved - goal) <= params.goal_radius


def _sparse(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    reached = _is_reached(achieved, goal, params)
    return reached.astype(jnp.float32), reached & ~jnp.asarray(params.continuing)


def _dense(achieved: Array, goal: Array, params: Params) -> tuple[Array, Array]:
    return jnp.exp(-vectors.norm(achieved - goal)), _sparse(achieved, goal, params)[1]


_OUTCOMES = {SPARSE: _sparse, DENSE: _dense}


# ------------------------------------------------------------------------------ expert, picture


def _expert(state: State, params: Params) -> Array:
    """Follow D4RL's controller: steer to the center of the next cell on a shortest path, and in the
    goal's cell to the goal itself, by the same proportional-derivative law."""
    height, width = params.walls.shape
    places = jnp.stack([state.physics[:2], state.goal]) / params.cell
    cells = jnp.stack([height / 2 - places[:, 1], places[:, 0] + width / 2], -1)
    here, goal = jnp.floor(cells).astype(jnp.int32)
    row, column = mazes.next_cell(jnp.asarray(params.walls), here, goal)
    center = jnp.stack([column - (width - 1) / 2, (height - 1) / 2 - row]) * params.cell
    aim = jnp.where((here == goal).all(), state.goal, center)
    action = PROPORTIONAL * (aim - state.physics[:2]) - DERIVATIVE * state.physics[2:]
    return jnp.clip(action, -1.0, 1.0)


def _render(state: State, params: Params) -> np.ndarray:
    walls, cell = np.asarray(params.walls), float(params.cell)
    height, width = walls.shape
    pixels = max(10, 400 // max(height, width))  # per cell
    canvas = drawing.Canvas(
        width * pixels, height * pixels, pixels / cell, (width * pixels / 2, height * pixels / 2)
    )
    for row, column in np.argwhere(walls != 0):
        left, top = (column - width / 2) * cell, (height / 2 - row) * cell
        right, low = left + cell, top - cell
        tasks.rectangle(canvas, (left, low), (right, top), drawing.STEEL)
    x, y, *_ = (float(number) for number in state.physics)
    goal = (float(state.goal[0]), float(state.goal[1]))
    canvas.circle(goal, float(params.goal_radius), drawing.SHADE)
    canvas.circle(goal, max(0.06, float(params.radius)) * 1.2, drawing.GREEN)
    canvas.circle((x, y), float(params.radius), drawing.BLUE)
    return canvas.frame()
