"""Rooms with scattered blocks: layouts, what is seen of them, and distances."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.trees import strong
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import maze_scenes as module

SIZE = 4


@pytest.fixture(scope="module")
def env():
    return make("maze_scenes", size=SIZE, blocks=4, layouts=8)


def _reset(env, held_out):
    params = strong(dataclasses.replace(env.params, held_out=held_out))
    keys = jax.random.split(jax.random.key(0), 128)
    return jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)


def test_it_keeps_the_rules_of_environments(env):
    check_environment(env)


@pytest.mark.parametrize(("blocks", "match"), [(8, "at most 7"), (9, "at most 7"), (-1, "0 up")])
def test_a_scene_without_room_is_one_sentence(blocks, match):
    with pytest.raises(UserError, match=match):
        make("maze_scenes", size=3, blocks=blocks)
    assert make("maze_scenes", size=3, blocks=7, layouts=1).params.count == 2


def test_connected_cells_share_sides():
    assert module.is_connected(np.array([[0, 1], [0, 0]], bool))
    assert not module.is_connected(np.array([[0, 1], [1, 0]], bool))


def test_layouts_are_different_and_those_held_out_are_others(env):
    walls = env.params.walls[:, 1:-1, 1:-1].reshape(16, -1)
    assert len(np.unique(walls, axis=0)) == 16 and (walls.sum(1) == 4).all()
    seen = [set(np.asarray(_reset(env, held)[0].inner.layout).tolist()) for held in (False, True)]
    assert seen == [set(range(8)), set(range(8, 16))]


def test_the_scene_is_the_layout_that_the_ball_is_in(env):
    state, timestep = _reset(env, True)
    scene = np.asarray(timestep.observation[:, 4:])
    walls = env.params.walls[np.asarray(state.inner.layout), 1:-1, 1:-1].reshape(128, -1)
    np.testing.assert_array_equal(scene, walls)
    distance = module.signed_distance(
        timestep.observation[:, None, :2], timestep.observation[:, 4:]
    )
    assert (distance > 0.1).all()  # starts are free
    goal = module.signed_distance(timestep.goal[:, None], timestep.observation[:, 4:])
    assert (goal > 0.1).all()


def test_distances_are_those_of_brute_force():
    scene = np.zeros((SIZE, SIZE), np.float32)
    scene[1, 2] = scene[3, 0] = 1
    points = np.random.default_rng(0).uniform(-1.9, 1.9, (200, 2)).astype(np.float32)
    found = np.asarray(module.signed_distance(jnp.asarray(points), jnp.asarray(scene.reshape(-1))))
    fine = np.linspace(-0.5, 0.5, 201)
    edge = np.concatenate([np.stack([fine, 0 * fine + s], -1) for s in (-0.5, 0.5)])
    edge = np.concatenate([edge, edge[:, ::-1]])
    for point, distance in zip(points, found, strict=True):
        best = 2 - np.abs(point).max()
        for row, column in ((1, 2), (3, 0)):
            center = np.array([column - 1.5, 1.5 - row])
            near = np.linalg.norm(center + edge - point, axis=1).min()
            inside = (np.abs(point - center) < 0.5).all()
            best = min(best, -near if inside else near)
        assert distance == pytest.approx(best, abs=4e-3)
