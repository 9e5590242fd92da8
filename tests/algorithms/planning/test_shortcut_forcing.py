"""Shortcut forcing: its noise levels, its targets, and the frames that a loss depends on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.planning.shared.shortcut_forcing import (
    draw_levels,
    frame_loss,
    shortcut_target,
)
from jaxrl.core import random
from tests.networks.shortcut_models import LEVELS, B, D, T, model, network


def test_levels_lie_on_the_grid_of_their_step():
    level, step = draw_levels(random.key(0), (20_000,), LEVELS)
    size = 2 ** np.asarray(step)
    assert (level % size == 0).all() and (level + size <= LEVELS).all() and (level >= 0).all()
    counts = np.bincount(step, minlength=4) / 20_000
    np.testing.assert_allclose(counts, [0.625, 0.125, 0.125, 0.125], atol=0.02)
    for s in range(4):
        places = np.bincount(level[step == s] // 2**s) / (step == s).sum()
        np.testing.assert_allclose(places, 2**s / LEVELS, atol=0.02)


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
