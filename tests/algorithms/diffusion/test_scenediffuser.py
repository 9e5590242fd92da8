"""SceneDiffuser: objectives of paths, and that they guide samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion.scenediffuser import (
    TINY,
    collision,
    drive,
    goal_distance,
    scenediffuser,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start
from jaxrl.envs import make

SCENE = jnp.asarray([0.0, 0, 0, 0, 1, 0, 0, 0, 0])  # the middle of 3 x 3 cells is solid


def test_objectives_of_a_path():
    # 0.1 from the block, inside it 0.3 from its edge, 0.1 from the room's wall, and free.
    path = jnp.asarray([[0.6, 0.0], [0.2, 0.0], [1.4, 0.0], [1.0, 1.0]])
    expected = 0.1 + 0.5 + 0.1
    assert float(collision(path, SCENE, 0.2)) == pytest.approx(expected, abs=1e-5)
    assert float(goal_distance(path, jnp.asarray([0.5, 1.25]))) == pytest.approx(0.75)
    total = (0.1 + 1.25) + (0.3 + 1.25) + (0.9 + 1.25) + 0.75
    assert float(goal_distance(path, jnp.asarray([0.5, 1.25]), "all")) == pytest.approx(total)


def test_the_gradient_leads_out_of_a_block_by_the_nearest_side():
    gradient = jax.grad(lambda x: -collision(x, SCENE, 0.2))(jnp.asarray([[0.3, 0.1], [1.0, 1.0]]))
    np.testing.assert_allclose(gradient, [[1, 0], [0, 0]], atol=1e-5)


def test_the_goal_guides_paths_that_were_not_learned():
    env = make("maze_scenes", **TINY["env_params"])
    settings = {k: v for k, v in TINY.items() if k not in ("env", "env_params")}
    algorithm = scenediffuser(env, settings | {"levels": 8})
    keys = jax.random.split(random.key(1), 256)
    _, timestep = jax.vmap(env.reset, (0, None))(keys, env.params)

    def distance(weight):
        hyper = {"goal_weight": weight, "collision_weight": 0.0, "largest_shift": 0.1}
        policy = algorithm.policy(start(algorithm, random.key(0), hyper).state)
        memory = policy.act(policy.state, timestep, policy.memory(256), random.key(2), True)[1]
        assert memory.steps.shape == (256, 3, 2)
        return float(goal_distance(memory.steps, timestep.goal).mean())

    assert distance(1.0) < distance(0.0) - 0.1


def test_the_ball_is_driven_to_the_next_position():
    env = make("maze_scenes", size=3, blocks=0, layouts=1)
    state, timestep = env.reset(random.key(0), env.params)
    aim = timestep.observation[:2] + jnp.asarray([0.01, -0.02])
    action = drive(timestep.observation[:4], aim, env.params.inner)
    assert (jnp.abs(action) < 1).all()
    _, after = env.step(random.key(0), state, action, env.params)
    np.testing.assert_allclose(after.observation[:2], aim, atol=1e-3)


def test_it_needs_scenes():
    with pytest.raises(UserError, match="does not show"):
        scenediffuser.agent(make("point_maze"))
