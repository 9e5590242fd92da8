"""Shortcut forcing: its targets and samples, and a transformer that sees no future frame."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.networks.shortcut_world_model import (
    ShortcutWorldModel,
    Token,
    draw_levels,
    frame_loss,
    imagine_frame,
    shortcut_target,
)

T, B, D, LEVELS = 5, 2, 3, 8


def test_levels_lie_on_the_grid_of_their_step():
    level, step = draw_levels(random.key(0), (20_000,), LEVELS)
    size = 2 ** np.asarray(step)
    assert (level % size == 0).all() and (level + size <= LEVELS).all() and (level >= 0).all()
    counts = np.bincount(step, minlength=4) / 20_000
    np.testing.assert_allclose(counts, [0.625, 0.125, 0.125, 0.125], atol=0.02)
    for s in range(4):
        places = np.bincount(level[step == s] // 2**s) / (step == s).sum()
        np.testing.assert_allclose(places, 2**s / LEVELS, atol=0.02)


def model(noisy, level, step):
    """A predictor that is right nowhere, in NumPy or jax."""
    level, step = level[..., None], step[..., None]
    return 0.3 * noisy + 0.1 * level - 0.2 * step + 1.0


def test_the_target_of_a_step_is_where_its_two_halves_lead():
    level = np.array([0, 0, 4, 6, 3, 4, 0], np.int32)
    step = np.array([3, 1, 2, 1, 0, 0, 2], np.int32)
    rng = np.random.default_rng(0)
    noisy, clean = rng.normal(size=(2, 7, D)).astype(np.float32)
    target = shortcut_target(model, jnp.asarray(noisy), jnp.asarray(clean), level, step, LEVELS)
    for i in range(7):
        if step[i] == 0:
            expected = clean[i]
        else:
            half, tau = 2.0 ** (step[i] - 1) / LEVELS, level[i] / LEVELS
            one = model(noisy[i], level[i], step[i] - 1)
            b1 = (one - noisy[i]) / (1 - tau)
            z = noisy[i] + half * b1
            two = model(z, level[i] + 2 ** (step[i] - 1), step[i] - 1)
            b2 = (two - z) / (1 - tau - half)
            expected = noisy[i] + (1 - tau) * (b1 + b2) / 2
        np.testing.assert_allclose(target[i], expected, rtol=1e-4, atol=1e-5)
    through = lambda scale: shortcut_target(
        lambda *a: scale * model(*a), jnp.asarray(noisy), jnp.asarray(clean), level, step, LEVELS
    ).sum()
    assert jax.grad(through)(1.0) == 0


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


@functools.cache
def network():
    net = ShortcutWorldModel(D, 3, T + 1, 8, 2, 2, LEVELS, LEVELS - 1, (8,), 5)
    keys = jax.random.split(random.key(2), 4)
    draw = lambda key, n: jax.random.randint(key, (T, B), 0, n)
    tokens = Token(
        jax.random.normal(keys[0], (T, B, D)), draw(keys[1], 4), draw(keys[2], 8), draw(keys[3], 4)
    )
    first = jax.tree.map(lambda x: x[0], tokens)
    params = jax.jit(net.init)(random.key(3), first, net.initial(B))
    return net, params, tokens


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
        for a, b in ((cache.keys, kept.keys), (cache.values, kept.values)):
            np.testing.assert_allclose(a[:, :, seen], b[:, :, seen], rtol=1e-4, atol=1e-5)


def test_no_feature_sees_a_later_frame_action_or_level():
    net, params, tokens = network()
    predict = jax.jit(lambda t: net.apply(params, t, method="unroll")[0])
    jacobian = jax.jit(jax.jacrev(lambda x: predict(dataclasses.replace(tokens, frame=x)).sum(-1)))(
        tokens.frame
    )  # [T, B, T, B, D]
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


def test_the_loss_of_a_frame_sees_the_frames_before_it_and_of_itself_what_its_level_shows():
    net, params, tokens = network()
    key = random.key(5)
    level = draw_levels(jax.random.split(key, 3)[0], (T, B), LEVELS)[0][:, 0]
    assert (level == 0).any() and (level > 0).any()
    apply = functools.partial(net.apply, params)
    loss = lambda x: frame_loss(net, apply, x, tokens.action, key, 0.0)[0][:, 0]
    jacobian = np.abs(jax.jit(jax.jacrev(loss))(tokens.frame)).max(-1)  # [T, T, B]
    assert (jacobian[..., 1] == 0).all()
    for t in range(T):
        for s in range(T):
            assert (jacobian[t, s, 0] > 0) == (s < t or (s == t and level[t] > 0))
