"""The shortcut world model: its denoising steps, and a transformer that sees no future frame."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.networks.shortcut_world_model import imagine_frame
from tests.networks.shortcut_models import LEVELS, B, D, T, model, network


def test_frames_come_of_equal_steps_and_a_perfect_model_needs_one():
    noise, clean = jax.random.normal(random.key(1), (2, B, D))
    for steps in (1, 2, 8):
        frame = imagine_frame(lambda *_: clean, noise, steps, LEVELS)
        np.testing.assert_allclose(frame, clean, atol=1e-5)
    z = np.asarray(noise)
    for i in range(4):  # steps of 2 of 8 levels: log2 is 1
        level, step = np.full(B, 2 * i), np.full(B, 1)
        z = z + 0.25 * (model(z, level, step) - z) / (1 - 0.25 * i)
    np.testing.assert_allclose(imagine_frame(model, noise, 4, LEVELS), z, rtol=1e-4, atol=1e-5)


def test_unrolling_is_stepping_and_denoising_leaves_no_trace():
    net, params, tokens = network()
    features, caches = jax.jit(lambda t: net.apply(params, t, method="unroll"))(tokens)
    step = jax.jit(functools.partial(net.apply, params))
    cache = net.initial(B)
    for t in range(T):
        token = jax.tree.map(lambda x, t=t: x[t], tokens)
        feature, cache = step(token, cache)
        np.testing.assert_allclose(feature, features[t], rtol=1e-4, atol=1e-5)
        kept = jax.tree.map(lambda x, t=t: x[t], caches)
        np.testing.assert_array_equal(cache.position, kept.position)
        seen = np.arange(T + 1) <= t
        for a, b in zip(cache.keys + cache.values, kept.keys + kept.values, strict=True):
            np.testing.assert_allclose(a[:, :, seen], b[:, :, seen], rtol=1e-4, atol=1e-5)


def test_no_feature_sees_a_later_frame_action_or_level():
    net, params, tokens = network()
    predict = jax.jit(lambda t: net.apply(params, t, method="unroll")[0])

    def weigh_features(frame):  # a plain sum of normalized features is constant
        features = predict(dataclasses.replace(tokens, frame=frame))
        return features @ jnp.arange(features.shape[-1], dtype=jnp.float32)

    jacobian = jax.jit(jax.jacrev(weigh_features))(tokens.frame)  # [T, B, T, B, D]
    reaches = np.abs(jacobian).max(-1)
    for t in range(T):
        for s in range(T):
            assert (reaches[t, 0, s, 0] > 0) == (s <= t)
            assert reaches[t, 0, s, 1] == 0
    plain = predict(tokens)
    for name in ("action", "level", "step"):
        value = getattr(tokens, name)
        changed = predict(dataclasses.replace(tokens, **{name: value.at[3].set(1 - value[3] % 2)}))
        differs = np.abs(changed - plain).max((1, 2)) > 0
        np.testing.assert_array_equal(differs, [False, False, False, True, True])
