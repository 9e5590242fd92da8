"""Point mazes: walls that hold, free motion against MuJoCo, goals, starts and the expert.

All mazes are padded to one shape and differ only in their parameters, so that one program of each
kind serves them all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.random import key as fast_key
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import mazes, point_maze
from tests.envs.planar.test_free_bodies import clearance

# Position, velocity, action; then position and velocity after the step, from Gymnasium-Robotics
# 1.4.2 (MuJoCo 3.3.7) in PointMaze_UMaze-v3. One action and one speed are beyond the limits.
_STEPS = """
    -0.1091599 -1.0322029 -0.501724 0.2041393 -0.4233385 0.1722461
        -0.1151735 -1.0297561 -0.601353 0.2446759
    -1.1391561 -1.0388097 2.8439158 3.9726475 0.7088879 1.2434908
        -1.1090964 -0.9967962 3.0059741 4.2013499
    -0.9346237 -0.7537181 3.8104945 5.2262556 0.7088879 1.2434908
        -0.8949212 -0.7014556 3.9702507 5.2262556
    """
MUJOCO = np.array(_STEPS.split(), np.float32).reshape(-1, 10)
SIDE = 28  # side of the largest maze
ROUTES = ("open", "u_maze", "medium", "large", "deceptive")  # mazes with different walls


def _env(name: str):
    return point_maze.point_maze(name)


def _pad(name: str) -> point_maze.Params:
    """Return the parameters of a maze, placed in the corner of a solid one of SIDE x SIDE cells."""
    maze = mazes.maze(name)
    walls = np.ones((SIDE, SIDE), np.uint8)
    height, width = maze.walls.shape
    walls[:height, :width] = maze.walls

    def move(cells):
        return (cells // width * SIDE + cells % width).astype(np.int32)

    larger = mazes.Maze(walls, move(maze.starts), move(maze.goals))
    return point_maze.with_maze(_env(name).params, larger)


def _stack(params: list[point_maze.Params]) -> point_maze.Params:
    return jax.tree.map(
        lambda *x: np.stack([np.asarray(y, jnp.result_type(y)) for y in x]), *params
    )


@functools.cache
def _resets():
    return jax.jit(jax.vmap(_env("deceptive").reset))


@functools.cache
def _rollout(steps: int, expert: bool):
    """Compile observations [steps, B, 4] and successes [steps, B] of B balls with parameters
    [B]."""
    env = _env("deceptive")

    @jax.jit
    def roll(key, state, params):
        def body(carry, key):
            state, action = carry
            n = len(action)
            if expert:
                action = jax.vmap(env.expert)(state, params)
            else:  # a new direction now and then, or the ball would stay where it is
                new = jax.random.uniform(key, (n, 3), minval=-1.0, maxval=1.0)
                action = jnp.where(new[:, 2:] > 0.8, new[:, :2] * 1.5, action)
            keys = jax.random.split(jax.random.fold_in(key, 1), n)
            state, timestep = jax.vmap(env.step)(keys, state, action, params)
            return (state, action), (timestep.observation, timestep.metrics["success"])

        n = len(params.cell)
        keys = jax.random.split(key, steps)
        return jax.lax.scan(body, (state, jnp.ones((n, 2))), keys)[1]

    return roll


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("point_maze"))


@pytest.mark.slow
def test_no_ball_is_ever_inside_a_wall():
    """Check all mazes as published, with ten thousand times the force, and with bounces."""
    copies, cases = 3, []
    for name in mazes.NAMES:
        params = _pad(name)
        strong = dataclasses.replace(params, gear=1e6, max_speed=1e6)
        bouncing = dataclasses.replace(strong, restitution=1.0, damping=0.0)
        cases += [x for x in (params, strong, bouncing) for _ in range(copies)]
    params = _stack(cases)
    state, _ = _resets()(jax.random.split(jax.random.key(0), len(cases)), params)
    observations, _ = _rollout(600, False)(fast_key(1), state, params)
    observations = np.asarray(observations)[::3]
    assert np.all(np.isfinite(observations))
    walls, cell = np.asarray(params.walls), np.asarray(params.cell)
    for b in range(len(cases)):
        depth = clearance(observations[:, b, :2], walls[b], cell[b]) - cases[b].radius
        assert depth.min() > -1e-5, (mazes.NAMES[b // (3 * copies)], b)
    speed = np.abs(observations[..., 2:]).max((0, 2)).reshape(-1, 3, copies).max((0, 2))
    # A corner may turn the speeds of both axes into one.
    assert 4 < speed[0] < 7.5 and np.all(speed[1:] > 6)
    touching = np.abs(observations[..., 2:]).min(-1) == 0  # a wall stopped one component
    assert touching[:, :copies].mean() > 0.05


def test_free_flight_is_mujocos():
    env = _env("u_maze")
    state, _ = env.reset(jax.random.key(0), env.params)

    @jax.jit
    @jax.vmap
    def step(row):
        inner = dataclasses.replace(state.inner, physics=row[:4])
        now = dataclasses.replace(state, inner=inner)
        return env.step(jax.random.key(0), now, row[4:6], env.params)[1].observation

    np.testing.assert_allclose(step(MUJOCO), MUJOCO[:, 6:], atol=2e-6)


@pytest.mark.slow
def test_the_expert_reaches_every_goal_in_time():
    copies = 4
    names = [name for name in ROUTES for _ in range(copies)]
    params = _stack([_pad(name) for name in names])
    state, _ = _resets()(jax.random.split(jax.random.key(2), len(names)), params)
    _, success = _rollout(1000, True)(fast_key(3), state, params)
    success = np.asarray(success) > 0
    arrival = success.argmax(0) + 1
    limits = np.array([_env(name).max_steps for name in names])
    assert np.all(success.any(0)) and np.all(arrival <= limits)


def test_the_next_cell_is_on_a_shortest_path():
    for name in ("large", "deceptive"):
        maze = mazes.maze(name)
        width = maze.walls.shape[1]
        goal = divmod(int(maze.goals[0]), width)
        steps = _breadth_first(maze.walls, goal)
        cells = np.array([cell for cell in steps if cell != goal], np.int32)
        following = jax.jit(jax.vmap(mazes.next_cell, (None, 0, None)))(
            jnp.asarray(maze.walls), cells, jnp.asarray(goal)
        )
        for cell, after in zip(cells, np.asarray(following), strict=True):
            assert np.abs(after - cell).sum() == 1
            assert steps[tuple(after.tolist())] == steps[tuple(cell.tolist())] - 1
    # The straight line to the goal of the hard map is much shorter than any path.
    start = divmod(int(maze.starts[0]), width)
    assert steps[start] == 76 and math.dist(start, goal) < 22


def _breadth_first(walls: np.ndarray, goal: tuple[int, int]) -> dict[tuple[int, int], int]:
    steps, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for cell in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if not walls[cell] and cell not in steps:
                steps[cell] = steps[row, column] + 1
                queue.append(cell)
    return steps


def test_starts_and_goals_are_where_the_maze_says():
    n = 600
    for name in ("medium_diverse_g", "medium_diverse_gr", "u_maze"):
        params, maze = _pad(name), mazes.maze(name)
        width = maze.walls.shape[1]
        _, first = _resets()(jax.random.split(jax.random.key(5), n), _stack([params] * n))
        start, goal = np.asarray(first.observation), np.asarray(first.goal)
        assert not np.any(start[:, 2:])
        cells = []
        for place in (start[:, :2], goal):
            column, row = np.floor([[1, -1]] * place + SIDE / 2).astype(int).T
            noise = place - np.stack([column - (SIDE - 1) / 2, (SIDE - 1) / 2 - row], -1)
            assert 0.24 < np.abs(noise).max() <= 0.25 + 1e-5
            cells.append(row * width + column)
        assert np.all(cells[0] != cells[1])
        assert set(cells[0]) == set(maze.starts) and set(cells[1]) == set(maze.goals)
        if name == "u_maze":  # uniform over the ordered pairs of different cells
            pairs = np.unique(cells[0] * 100 + cells[1], return_counts=True)[1]
            assert len(pairs) == 7 * 6
            chi2 = ((pairs - n / 42) ** 2 / (n / 42)).sum()
            assert chi2 < 80  # 41 degrees of freedom: exceeded once in 4,000


def test_the_only_start_is_not_the_goal():
    env = point_maze.point_maze("###### #cg.g# ######")
    _, first = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(7), 64), env.params
    )
    start, goal = (np.floor(x[:, 0] + 3) for x in (first.observation, first.goal))
    assert np.all(start == 1) and set(goal) == {2, 4}


@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_relabeling_agrees_with_the_step(reward):
    env = point_maze.point_maze("open", reward)
    assert env.goals is not None

    @jax.jit
    @jax.vmap
    def both(key, shift):
        state, first = env.reset(key, env.params)
        goal = first.observation[:2] + shift
        inner = dataclasses.replace(state.inner, goal=goal)
        state = dataclasses.replace(state, inner=inner)
        _, timestep = env.step(key, state, jnp.ones(2), env.params)
        achieved = env.goals.achieved(timestep.observation)
        going_on = dataclasses.replace(env.params, continuing=True)
        return (
            timestep,
            env.goals.outcome(achieved, timestep.goal, env.params),
            (env.goals.outcome(achieved, achieved, going_on)),
        )

    shift = np.random.default_rng(0).uniform(-0.6, 0.6, (50, 2)).astype(np.float32)
    timestep, (again, terminated), (best, ended) = both(
        jax.random.split(jax.random.key(0), 50), shift
    )
    np.testing.assert_array_equal(timestep.reward, again)
    np.testing.assert_array_equal(timestep.terminated, terminated)
    np.testing.assert_array_equal(timestep.metrics["success"], terminated)
    distance = np.linalg.norm(timestep.observation[:, :2] - timestep.goal, axis=-1)
    np.testing.assert_array_equal(terminated, distance <= 0.45)
    assert 0.2 < np.mean(terminated) < 0.8
    np.testing.assert_allclose(
        again, np.exp(-distance) if reward == "dense" else distance <= 0.45, rtol=1e-5
    )
    assert np.all(best == 1) and not np.any(ended)  # at the goal, and it goes on


def test_wrong_mazes_are_rejected():
    for maze, message in (
        ("huge", "'huge'; it must be one of open"),
        ("### #.# #..", "is open at its border"),
        ("### #.## ###", "not a rectangle"),
        ("### ### ###", "has no free cell"),
        ("### #.# ###", "starts at its goal"),
        ("#" * 40, "has 40 columns; it must have at most 32"),
    ):
        with pytest.raises(UserError, match=message):
            make("point_maze", maze=maze)
    with pytest.raises(UserError, match="'rare'; it must be 'sparse' or 'dense'"):
        make("point_maze", reward="rare")
    assert make("point_maze", maze="##### #r.g# #####").max_steps == 800
