"""OGBench's point mazes: moves as OGBench's, starts and goals by kind, the expert, and data played
as OGBench's."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.goals.shared.data import Played
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import ogbench_pointmaze as module
from jaxrl.envs.planar.ogbench_pointmaze import State, ogbench_pointmaze
from jaxrl.envs.policies import expert_policy, noisy_expert
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

# Position, action, and the position after the step, from OGBench 1.2 in pointmaze-medium-v0: three
# free moves, then four against a wall.
_STEPS = """
    19.470086 5.106885 -0.834735 0.667743 19.303139 5.240434
    -0.659178 18.538708 -1.0 -1.0 -0.859178 18.338708
    12.464028 12.507211 0.439757 -1.0 12.551979 12.307211
    18.944141 5.341799 -0.024338 0.652466 18.939273 5.330533
    14.665552 21.207294 -1.0 -1.0 14.658452 21.007294
    14.661372 21.252664 -0.656792 0.157039 14.669876 21.284072
    20.643728 21.341722 0.734724 1.0 20.790673 21.342837
    """
OGBENCH = np.array(_STEPS.split(), np.float32).reshape(-1, 6)


def test_it_keeps_the_rules_of_environments():
    check_environment(make("ogbench_pointmaze"))


def test_moves_are_ogbenchs():
    params = ogbench_pointmaze().params
    move = lambda x, a: module._step(random.key(0), State(x, x), a, params)[0].position
    moved = jax.vmap(move)(OGBENCH[:, :2], OGBENCH[:, 2:4])
    np.testing.assert_allclose(moved[:3], OGBENCH[:3, 4:], atol=1e-5)
    # MuJoCo leaves the ball a little inside the wall, by up to 0.07 units.
    np.testing.assert_allclose(moved[3:], OGBENCH[3:, 4:], atol=0.07)


@functools.cache
def first_cells(maze, begin):
    """Cells (row, column) of 4,000 starts and goals, and whether all are within their noise."""
    env = ogbench_pointmaze(maze, begin)
    reset = jax.jit(jax.vmap(lambda key: env.reset(key, env.params)[1]))
    timestep = reset(jax.random.split(random.key(1), 4000))
    places = np.stack([timestep.observation, timestep.goal], 1)
    cells = np.rint((places + 4) / 4).astype(int)
    assert np.abs(places - 4 * (cells - 1)).max() <= 1
    return cells[..., ::-1]


@pytest.mark.parametrize("maze", ["medium", "large", "giant"])
def test_starts_and_goals(maze):
    walls = np.asarray(ogbench_pointmaze(maze).params.walls)
    pairs = {tuple(x.ravel().tolist()) for x in first_cells(maze, "tasks")}
    assert pairs == set(module.TASKS[maze])
    free = {tuple(x) for x in np.argwhere(walls == 0).tolist()}
    start, goal = (
        set(map(tuple, x.tolist())) for x in np.moveaxis(first_cells(maze, "anywhere"), 1, 0)
    )
    assert start == free and goal < free
    for row, column in free:  # corridors are no goals
        up, down, left, right = (
            walls[row + i, column + j] == 0 for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1))
        )
        corridor = up == down and left == right and up != left
        assert ((row, column) in goal) != corridor


def test_nearby_goals_are_four_steps_away():
    walls = np.asarray(ogbench_pointmaze("large").params.walls)

    def distance(start, goal):
        reached, steps = {start}, 0
        while goal not in reached:
            moves = (0, 1), (1, 0), (0, -1), (-1, 0)
            around = {(row + i, column + j) for row, column in reached for i, j in moves}
            reached |= {cell for cell in around if walls[cell] == 0}
            steps += 1
        return steps

    pairs = {tuple(x.ravel().tolist()) for x in first_cells("large", "nearby")}
    assert {distance(pair[:2], pair[2:]) for pair in pairs} == {4}
    assert {pair[:2] for pair in pairs} == {tuple(x) for x in np.argwhere(walls == 0).tolist()}


def test_the_expert_solves_all_tasks():
    env = expert_channel(ogbench_pointmaze("giant"))
    played = evaluate(env, expert_policy(env), random.key(2), 64)
    assert float(played.returns.min()) == 1 and int(played.lengths.max()) < 800


def play(**settings):
    """The record of data that are played."""
    env = ogbench_pointmaze()
    data = Played(noise=0.5, size=16_000, streams=16, batch_size=4, **settings)
    source = data.source(env)
    return source.init(random.key(3), {}, None).data


def test_navigation_goes_on_from_goal_to_goal():
    data = play(players="navigate", episode_steps=500)
    x = jax.tree.map(np.asarray, data.transitions)
    assert not x.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(x.truncated), 500 * np.arange(1, 33) - 1)
    changed = (x.next_timestep.goal != x.timestep.goal).any(-1)
    np.testing.assert_array_equal(changed, x.reward == 1)
    assert changed.sum() > 100
    assert np.abs(x.action).max() <= 1 and 0.2 < np.std(x.action) < 1


def test_nothing_leads_far_in_data_to_stitch():
    data = play(players="stitch", episode_steps=200)
    x = jax.tree.map(np.asarray, data.transitions)
    assert not x.terminated.any() and x.truncated.sum() == 80
    np.testing.assert_array_equal(x.next_timestep.goal, x.timestep.goal)
    # Cells of each step, as steps along paths from the start: they stay within a few cells.
    position = x.timestep.observation.reshape(80, 200, 2)
    far = np.abs(position - position[:, :1]).max((1, 2))
    assert far.max() < 5 * 4 and np.median(far) > 4
    # They stay at the center of the goal's cell, from where a goal in a corner is out of reach.
    center = np.rint(x.timestep.goal / 4).reshape(80, 200, 2)[:, 0] * 4
    off = np.abs(position[:, -50:].mean(1) - center).max(-1)
    away = np.linalg.norm(x.timestep.goal.reshape(80, 200, 2)[:, 0] - center, axis=-1)
    near, corner = away < 0.7, away > 1.3
    assert near.any() and corner.any() and off.max() < 0.3
    reached = x.reward.reshape(80, 200)[:, -50:].mean(1)
    assert (reached[near] > 0.9).all() and (reached[corner] < 0.1).all()


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="The maze of 'ogbench_pointmaze' is 'huge'"):
        make("ogbench_pointmaze", maze="huge")
    with pytest.raises(UserError, match="no starts and goals 'nearby'"):
        Played(players="stitch").source(make("point_maze"))
    discrete = expert_channel(make("cartpole"))
    with pytest.raises(UserError, match="Normal noise needs a bounded Box"):
        noisy_expert(discrete, 0.5)


def test_parameters_may_differ_between_copies():
    """Data and tasks share one program, since the place where an episode begins is a parameter."""
    env = ogbench_pointmaze()
    nearby = dataclasses.replace(env.params, begin=2)
    reset = jax.jit(env.reset)
    goals = [reset(random.key(4), params)[1].goal for params in (env.params, nearby)]
    assert bool(jnp.any(goals[0] != goals[1]))
