"""Transitions held out of a dataset, and bootstrap samples of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.sources import dataset, held_out
from jaxrl.sources.held_out import by_row
from tests.sources.test_imagined import POLICY, steps

ROWS, MEMBERS, SHARE = 40, 3, 0.3


def test_a_row_is_always_held_out_or_never():
    source = held_out(dataset(steps(ROWS), 500), SHARE, MEMBERS)

    @jax.jit
    def run(key):
        state, fresh, _ = source.collect(source.init(key, {}, POLICY), POLICY, key)
        return source.sample(state, fresh, key)

    batch = jax.tree.map(np.asarray, run(random.key(0)))
    held, bootstrap = by_row(jnp.arange(ROWS), SHARE, MEMBERS)
    row = batch.transitions.observation[:, 0].astype(int)
    assert len(set(row)) == ROWS
    np.testing.assert_array_equal(batch.mask, ~np.asarray(held)[row])
    np.testing.assert_array_equal(batch.transitions.extras["bootstrap"], bootstrap[row])
    assert not batch.mask.all() and batch.mask.any()


def test_bootstrap_samples_are_poisson_and_differ():
    held, times = jax.jit(lambda row: by_row(row, SHARE, 2))(jnp.arange(20_000))
    np.testing.assert_allclose(held.mean(), SHARE, atol=0.015)
    expected = [np.exp(-1), np.exp(-1), np.exp(-1) / 2, np.exp(-1) / 6]
    for member in range(2):
        shares = [(times[:, member] == k).mean() for k in range(4)]
        np.testing.assert_allclose(shares, expected, atol=0.015)
    assert abs(np.corrcoef(times.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(held, times[:, 0])[0, 1]) < 0.03


def test_shares_and_sources_are_checked():
    with pytest.raises(UserError, match=r"between 0 and 1, got 1\.0"):
        held_out(dataset(steps(), 2), 1.0, 1)
    windows = held_out(dataset(steps(), 2, length=2), 0.5, 1)
    with pytest.raises(UserError, match="needs a dataset of transitions"):
        windows.sample(windows.init((), {}, POLICY), jnp.float32(1), random.key(0))
