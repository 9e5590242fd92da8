"""Frame stacks, distractors and flat observations."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import tasks
from jaxrl.core import stream
from jaxrl.core.types import Policy
from jaxrl.envs.wrappers import distractors, flat_observations, frame_stack, image_distractors
from tests.envs.wrappers import environments
from tests.envs.wrappers.environments import correlation, timesteps_of

N = 6000


@pytest.mark.slow
def test_a_stack_holds_the_last_observations_and_restarts_with_the_episode():
    env = frame_stack(environments.walk(observe="vector"), 3)
    two = Policy(lambda state, timestep, memory, key, greedy: (jnp.full(2, 2), memory, {}), tuple)
    two = dataclasses.replace(two, memory=lambda n: ())
    environment = tasks.fixed(env.params)

    @jax.jit
    def run(key):
        state = environment.init(key, two, {})
        streams = stream.start(env, environment, state, two, key, 2)

        def step(streams, keys):
            streams, _, transition, _ = stream.advance(env, environment, state, streams, two, keys)
            return streams, transition

        return jax.lax.scan(step, streams, stream.step_inputs(key, 7))[1]

    got = run(jax.random.key(0))
    # Places 0 2 4 6, the end, and again: an observation is (place, steps).
    frame = {step: [2.0 * step, step] for step in range(4)}
    stacks = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    expected = np.float32([np.concatenate([frame[i] for i in stack]) for stack in stacks])
    for copy in range(2):
        np.testing.assert_array_equal(got.observation[:, copy], expected[[0, 1, 2, 0, 1, 2, 0]])
        np.testing.assert_array_equal(
            got.next_observation[:, copy], expected[[1, 2, 3, 1, 2, 3, 1]]
        )
        np.testing.assert_array_equal(got.first[:, copy], [1, 0, 0, 1, 0, 0, 1])


@pytest.mark.slow
def test_every_kind_of_leaf_is_stacked_along_its_last_axis():
    walk, env = environments.walk(), frame_stack(environments.walk(), 2)
    seen = timesteps_of(env, jnp.ones(4, jnp.int32)).observation
    true = timesteps_of(walk, jnp.ones(4, jnp.int32)).observation
    for name, leaf in true.items():
        leaf = leaf if leaf.ndim > 1 else leaf[:, None]
        before = leaf[[0, 0, 1, 2, 3]]
        np.testing.assert_array_equal(seen[name], np.concatenate([before, leaf], -1))
    shapes = {name: space.shape for name, space in env.observation_space.items()}
    assert shapes == {name: x.shape[1:] for name, x in seen.items()}


@pytest.mark.slow
def test_distractors_are_ar1_processes_that_leave_the_rest_alone():
    walk = environments.walk(observe="vector")
    env = distractors(walk, 3, correlation=(0.0, 0.5, 0.9), scale=(1.0, 2.0, 0.1))
    seen = timesteps_of(env, jnp.ones(N, jnp.int32)).observation
    true = timesteps_of(walk, jnp.ones(N, jnp.int32)).observation
    np.testing.assert_array_equal(seen[:, :2], true)
    noise = seen[:, 2:]
    np.testing.assert_allclose(noise.std(0), [1.0, 2.0, 0.1], rtol=0.1)
    for lag in (1, 3):
        expected = np.asarray([0.0, 0.5, 0.9]) ** lag
        np.testing.assert_allclose(correlation(noise, lag), expected, atol=0.06)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.1


def test_distractors_join_a_dict_and_an_image():
    dict_env = distractors(environments.walk(), 2)  # `check_structure` compares its observation
    assert set(dict_env.observation_space) == {*environments.EVERYTHING, "distractors"}
    assert dict_env.observation_space["distractors"].shape == (2,)
    image_env = distractors(environments.walk(observe="image"), 2)
    assert set(image_env.observation_space) == {"observation", "distractors"}


def test_lit_cells_have_their_density_and_their_correlation():
    walk = environments.walk(observe="image")
    env = image_distractors(walk, 2, density=0.3, correlation=0.6)
    seen = timesteps_of(env, jnp.ones(N, jnp.int32)).observation
    true = timesteps_of(walk, jnp.ones(N, jnp.int32)).observation
    assert env.observation_space.shape == (2, 3, 4) == seen.shape[1:] and seen.dtype == np.uint8
    np.testing.assert_array_equal(seen[..., :2], true)
    lit = seen[..., 2:]
    assert set(np.unique(lit)) == {0, 255}
    lit = (lit == 255).astype(float)
    np.testing.assert_allclose(lit.mean(0), 0.3, atol=0.05)
    np.testing.assert_allclose(lit.mean(), 0.3, atol=0.01)
    np.testing.assert_allclose(correlation(lit, 1), 0.6, atol=0.05)
    np.testing.assert_allclose(correlation(lit, 2), 0.36, atol=0.06)
    across = np.corrcoef(lit.reshape(len(lit), -1).T) - np.eye(12)
    assert np.abs(across).max() < 0.1

    still = timesteps_of(env, jnp.ones(N, jnp.int32), distractor_correlation=1.0).observation
    assert (still[..., 2:] == still[:1, ..., 2:]).all()
    over = timesteps_of(image_distractors(walk, 0, 0.3), jnp.ones(N, jnp.int32)).observation
    assert over.shape == true.shape and (over[true == 255] == 255).all()
    np.testing.assert_allclose((over[true == 0] == 255).mean(), 0.3, atol=0.01)


def test_a_flat_observation_is_every_leaf_in_turn():
    walk, env = environments.walk(), flat_observations(environments.walk())
    flat = timesteps_of(env, jnp.ones(4, jnp.int32)).observation
    true = timesteps_of(walk, jnp.ones(4, jnp.int32)).observation
    expected = np.concatenate(
        [
            true["image"].reshape(5, 12),
            np.eye(3)[true["kind"]],
            true["lit"],
            true["place"],
            np.eye(2)[true["two"][:, 0]],
            np.eye(4)[true["two"][:, 1]],
        ],
        axis=1,
    )
    np.testing.assert_array_equal(flat, expected)
    assert flat.dtype == np.float32 and env.observation_space.shape == (24,)
    low, high = env.observation_space.low, env.observation_space.high
    assert (low[0], high[0], high[12], low[17]) == (0, 255, 1, -np.inf)
