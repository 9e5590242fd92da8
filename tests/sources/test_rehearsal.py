"""Old windows beside fresh ones, each of the old ones equally likely."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs import make
from jaxrl.sources import rehearsal, rollouts
from jaxrl.sources.rehearsal import Reservoir, offer


def test_every_column_is_equally_likely_to_be_kept():
    """A reservoir of 6 is offered 60 columns, five at a time, and keeps each with a chance of 6/60,
    less the collisions of one window."""

    def life(key):
        empty = Reservoir(jnp.full((6, 1), -1), (), jnp.int32(0))

        def window(reservoir, step):
            key, number = step
            columns = (5 * number + jnp.arange(5))[:, None]
            return offer(reservoir, (columns, ()), key), None

        steps = jax.random.split(key, 12), jnp.arange(12)
        return jax.lax.scan(window, empty, steps)[0]

    many = jax.jit(jax.vmap(life))(jax.random.split(random.key(0), 4000))
    assert (many.seen == 60).all() and (many.steps >= 0).all()
    kept = np.bincount(np.asarray(many.steps).ravel(), minlength=60) / 4000
    np.testing.assert_allclose(kept.mean(), 0.1)
    # Sixths of the run: none is favored by more than chance and collisions explain.
    np.testing.assert_allclose(kept.reshape(6, 10).mean(1), 0.1, atol=0.008)


def act(state, timestep, memory, key, greedy):
    n = timestep.first.shape[0]
    return jnp.zeros(n, jnp.int32), memory + 1, {"window": jnp.full(n, state)}


def policy(window):
    return Policy(act, lambda n: jnp.zeros((n, 1)), jnp.float32(window))


@pytest.mark.slow
def test_fresh_columns_come_first_and_old_ones_are_whole_windows():
    source = rehearsal(rollouts(make("corners"), 4, 3), capacity=8, replays=5)
    plain = rollouts(make("corners"), 4, 3)
    state = source.init(random.key(0), {}, policy(0))
    collect, sample = jax.jit(source.collect), jax.jit(source.sample)
    found = set()
    for window in range(1, 5):
        inner = jax.random.split(random.key(window))[0]
        expected = plain.collect(state.source, policy(window), inner)[1]
        state, fresh, metrics = collect(state, policy(window), random.key(window))
        batch = sample(state, fresh, random.key(9))
        said = batch.transitions.extras["window"]
        assert said.shape == (3, 9) and batch.memory.shape == (9, 1) and batch.tail is None
        for a, b in zip(
            jax.tree.leaves(batch.transitions), jax.tree.leaves(expected.transitions), strict=True
        ):
            np.testing.assert_array_equal(a[:, :4], b)
        old = np.asarray(said[:, 4:])
        assert (old == old[0]).all() and old.min() >= 1 and old.max() <= window
        found |= set(old[0])
        assert metrics["rehearsal_filled"].value() == min(4 * window, 8) / 8
    assert len(found) > 1
    np.testing.assert_array_equal(batch.env_steps, 4 * 12)


def test_old_columns_keep_their_masks():
    plain = rollouts(make("corners"), 4, 3)

    def sample(state, fresh, key):
        batch = plain.sample(state, fresh, key)
        return dataclasses.replace(batch, mask=batch.transitions.extras["window"] % 2 == 0)

    source = rehearsal(dataclasses.replace(plain, sample=sample), capacity=8, replays=6)
    state = source.init(random.key(0), {}, policy(0))
    for window in range(1, 4):
        state, fresh, _ = jax.jit(source.collect)(state, policy(window), random.key(window))
    batch = jax.jit(source.sample)(state, fresh, random.key(9))
    assert batch.mask.shape == (3, 10) and 0 < batch.mask[:, 4:].sum() < 18
    np.testing.assert_array_equal(batch.mask, batch.transitions.extras["window"] % 2 == 0)


def test_sizes():
    for wrong in ({"capacity": 0, "replays": 1}, {"capacity": 1, "replays": 0}):
        with pytest.raises(UserError, match="at least 1, got 0"):
            rehearsal(rollouts(make("corners"), 4, 3), **wrong)
