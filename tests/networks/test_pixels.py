"""Tests of encoders of pictures, chosen by their shape, and of the scale of pixels."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Environment
from jaxrl.envs import timesteps
from jaxrl.networks import encoders
from jaxrl.networks.torsos import DREAMER, NATURE, Convolution, PixelEncoder, image_encoder

SMALL = {"num_envs": 2, "num_steps": 4, "hidden": (8,)}
OFF_POLICY = {**SMALL, "warmup": 8, "batch_size": 4, "capacity": 16, "updates": 1}


def pictures(*shape, dtype=jnp.uint8, high=255):
    return Box(0, high, shape, dtype)


def environment(shape, actions=None):
    """Environment whose pictures are random, and whose episodes take 4 steps."""
    space = pictures(*shape)

    def observe(key):
        return jax.random.randint(key, shape, 0, 256, jnp.int32).astype(jnp.uint8)

    def reset(key, params):
        return jnp.int32(0), timesteps.first(observe(key))

    def step(key, state, action, params):
        return state + 1, timesteps.following(observe(key), 1.0, state == 3)

    return Environment("pictures", reset, step, (), space, actions or Discrete(3), 4)


@pytest.mark.parametrize(
    ("shape", "layers", "features"),
    [((84, 84, 4), NATURE, 3136), ((64, 64, 3), DREAMER, 1024), ((96, 36, 1), NATURE, 512)],
)
def test_the_encoder_is_chosen_by_the_shape(shape, layers, features):
    encoder = image_encoder(pictures(*shape))
    assert isinstance(encoder, PixelEncoder) and encoder.layers == layers
    for batch in ((), (3,), (2, 3)):
        x = jnp.ones((*batch, *shape))
        out = jax.eval_shape(lambda x: encoder.init_with_output(jax.random.key(0), x)[0], x)
        assert out.shape == (*batch, features)


def test_grids_and_vectors_are_flattened_and_channels_win():
    assert image_encoder(pictures(10, 10, 4)) is None and image_encoder(Box(0, 1, (84,))) is None
    assert isinstance(image_encoder(pictures(84, 84, 4), (16,)), Convolution)


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 20, 3)])
def test_pictures_that_no_encoder_fits_are_refused(shape):
    for build in (jaxrl.algorithms.ppo, jaxrl.algorithms.dqn):
        with pytest.raises(UserError, match=r"No encoder fits images .* move the channels"):
            build(environment(shape))


def test_pixels_are_scaled_and_nothing_else_is():
    x = jnp.array([[0, 51, 255]], jnp.uint8)
    scaled = encoders.flatten(pictures(3), x)
    np.testing.assert_allclose(scaled, [[0, 0.2, 1]], rtol=1e-6)
    assert scaled.dtype == jnp.float32
    np.testing.assert_array_equal(encoders.flatten(pictures(3, high=12), x), [[0, 51, 255]])
    normalized = jnp.array([[-1.0, 2.0, 300.0]])
    np.testing.assert_array_equal(encoders.flatten(pictures(3), normalized), normalized)


def test_convolutions_see_scaled_pixels():
    space, seen = pictures(84, 84, 1), []
    _, timestep = environment((84, 84, 1)).reset(jax.random.key(0), ())
    x = encoders.features(space, timestep, lambda x: seen.append(x) or x.reshape(-1))
    assert 0.9 < float(x.max()) <= 1 and seen[0].dtype == jnp.float32
    timestep = dataclasses.replace(timestep, observation=timestep.observation.astype(jnp.float32))
    assert encoders.features(space, timestep, lambda x: x.reshape(-1)).max() > 200


def shapes_of(algorithm):
    parts = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), algorithm.hyper)).agent.parts
    leaves = jax.tree_util.tree_flatten_with_path({n: p.params for n, p in parts.items()})[0]
    return {jax.tree_util.keystr(path): x.shape for path, x in leaves}


@pytest.mark.parametrize(
    ("name", "parts"),
    [("ppo", 1), ("dqn", 1), ("sac", 2), ("td3", 2), ("trpo", 2), ("muzero", 1)],
)
def test_every_kind_of_algorithm_encodes_pictures(name, parts):
    actions = Box(-1.0, 1.0, (1,)) if name in ("sac", "td3") else None
    on_policy = {"ppo": {**SMALL, "minibatches": 2}, "trpo": {**SMALL, "minibatches": 2}}
    settings = on_policy.get(name, {} if name == "muzero" else OFF_POLICY)
    algorithm = getattr(jaxrl.algorithms, name)(environment((84, 84, 2), actions), settings)
    kernels = [shape for shape in shapes_of(algorithm).values() if shape[:2] == (8, 8)]
    assert kernels == [(8, 8, 2, 32)] * parts


@pytest.mark.slow
@pytest.mark.parametrize("side", [64, 84])
def test_ppo_learns_from_pictures(side):
    settings = {**SMALL, "minibatches": 2}
    algorithm = jaxrl.algorithms.ppo(environment((side, side, 1)), settings)
    begin = jaxrl.start(algorithm, jaxrl.key(0))
    run, _ = jaxrl.train(algorithm, begin, 1)
    moved = jax.tree.map(
        lambda a, b: bool((a != b).any()),
        begin.state.agent.parts["actor_critic"].params,
        run.state.agent.parts["actor_critic"].params,
    )
    kernels = [x for n, x in jax.tree_util.tree_flatten_with_path(moved)[0] if "kernel" in str(n)]
    assert len(kernels) > 4 and all(kernels)
