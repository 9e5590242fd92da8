"""GuDA: every augmented transition is one that the environment plays, and guided ones lead on."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import guda
from jaxrl.algorithms.offline.shared import augmentation
from jaxrl.algorithms.offline.shared.scripted import demonstrations
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Transition

ENV = envs.make("point_maze_medium", dt=0.05)
COUNT = 600


@functools.cache
def augment(guided):
    observed = demonstrations(ENV, 200, 0)
    change = augmentation.turn_in_maze(ENV, guided)
    return augmentation.augment(observed, change, COUNT, 0)


@pytest.mark.parametrize("guided", [False, True])
def test_the_environment_plays_every_augmented_transition(guided):
    x, share = augment(guided)
    assert len(x.reward) == COUNT and 0.1 < share < 0.9

    def play(timestep, action):
        return ENV.step(jax.random.key(0), ENV.state_of(timestep), action, ENV.params)[1]

    played = jax.jit(jax.vmap(play))(x.timestep, x.action)
    np.testing.assert_allclose(played.observation, x.next_observation, atol=2e-4)
    np.testing.assert_array_equal(played.reward, x.reward)
    np.testing.assert_array_equal(played.terminated, x.terminated)
    assert 0 < x.terminated.mean() < 1


def leads_on(x: Transition) -> np.ndarray:
    """Return whether each motion is within 45 degrees of the direction to the goal, or to a cell
    that is nearer to it by breadth-first search."""
    walls = np.asarray(ENV.params.walls)
    height, width = walls.shape
    cell = lambda p: (int(np.floor(height / 2 - p[1])), int(np.floor(p[0] + width / 2)))
    sides = {(1, 0): (0, -1), (-1, 0): (0, 1), (0, 1): (1, 0), (0, -1): (-1, 0)}
    found = []
    for before, after, goal in zip(x.observation, x.next_observation, x.timestep.goal, strict=True):
        distance, edge = {cell(goal): 0}, [cell(goal)]
        while edge:
            row, column = edge.pop(0)
            for side in sides:
                there = (row + side[0], column + side[1])
                if not walls[there] and there not in distance:
                    distance[there] = distance[row, column] + 1
                    edge.append(there)
        here, move = cell(before), (after - before)[:2]
        ways = (
            [goal - before[:2]]
            if here == cell(goal)
            else [
                np.array(way)
                for side, way in sides.items()
                if distance.get((here[0] + side[0], here[1] + side[1]), 99) < distance[here]
            ]
        )
        ahead = max(move @ way / np.linalg.norm(way) for way in ways)
        found.append(ahead >= np.linalg.norm(move) * (np.sqrt(0.5) - 1e-3))
    return np.array(found)


def test_guided_transitions_lead_on():
    assert leads_on(augment(True)[0]).all()
    assert 0.15 < leads_on(augment(False)[0]).mean() < 0.5


def test_a_step_that_touches_a_wall_is_left_out():
    x = jax.tree.map(lambda x: x[:1], demonstrations(ENV, 200, 0))
    stopped = x.next_observation.copy()
    stopped[:, :2] = x.observation[:, :2]  # as if a wall had stopped the ball, which had moved
    stopped[:, 2:] = 1.0
    after = dataclasses.replace(x.next_timestep, observation=stopped)
    held = dataclasses.replace(x, next_timestep=after)
    change = jax.vmap(augmentation.turn_in_maze(ENV, False))
    keys = jax.random.split(jax.random.key(0), 100)
    many = lambda x: jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf), 100, 0), x)
    assert change(keys, many(x))[1].any()
    assert not change(keys, many(held))[1].any()
    with pytest.raises(UserError, match=r"^Of .* augmented transitions 0 are valid"):
        augmentation.augment(held, augmentation.turn_in_maze(ENV, False), 1, 0)


def test_what_cannot_be_augmented_is_refused():
    for env, settings, match in (
        (envs.make("pendulum"), {}, "there is no augmentation"),
        (envs.make("point_maze", delay=0.5), {}, "needs steps without delay"),
        (ENV, {"data.num_envs": 2}, "^guda learns from a dataset alone"),
    ):
        with pytest.raises(UserError, match=match):
            guda.guda.agent(env, replace(guda.Config(), settings))
