import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.core import metrics as m


def row(a, b, c):
    """Make a row with a metric of each kind from three small integers, whose sums are exact."""
    return {
        "mean": m.Mean(jnp.float32(a), jnp.float32(abs(b))),
        "sum": m.Sum(jnp.float32(b)),
        "min": m.Minimum(jnp.float32(c)),
        "max": m.Maximum(jnp.float32(a)),
        "first": m.First(jnp.int32(abs(c))),
    }


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


ROWS = st.builds(row, *[st.integers(-1000, 1000)] * 3)


@given(ROWS, ROWS, ROWS)
def test_merge_is_associative_and_commutative_with_an_identity(a, b, c):
    same(m.merge(m.merge(a, b), c), m.merge(a, m.merge(b, c)))
    same(m.merge(a, b), m.merge(b, a))
    same(m.merge(a, m.empty(a)), a)
    same(m.merge(m.empty(a), a), a)


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_reduce_is_the_fold_of_merge(rows):
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    folded = m.reduce(stacked)
    same(folded, functools.reduce(m.merge, rows, m.empty(rows[0])))
    jax.tree.map(lambda x: None, folded)  # the same kinds
    assert {k: type(v) for k, v in folded.items()} == {k: type(v) for k, v in rows[0].items()}


def test_empty_of_shapes_is_empty_of_values():
    shapes = jax.eval_shape(lambda: row(1, 2, 3))
    same(m.empty(shapes), m.empty(row(1, 2, 3)))
    for leaf, shape in zip(jax.tree.leaves(m.empty(shapes)), jax.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)


def test_values_of_nothing():
    values = m.values(m.empty(row(1, 2, 3)))
    assert np.isnan(values["mean"])
    assert values["sum"] == 0
    assert values["min"] == np.inf and values["max"] == -np.inf
    assert np.isnan(values["first"])


def test_mean_of_all_and_of_some():
    x = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    where = np.random.default_rng(1).random((5, 4)) < 0.4
    np.testing.assert_allclose(m.mean(x).value(), x.mean(), rtol=1e-5)
    np.testing.assert_allclose(m.mean(x, axis=(0, 1)).value(), x.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(m.mean(x, where).value(), x[where].mean(), rtol=1e-5)
    some = m.mean(x, where, axis=(0, 1))
    np.testing.assert_allclose(some.value(), x[where].mean(0), rtol=1e-5)
    np.testing.assert_array_equal(some.weight, [where.sum()] * 3)


def test_values_that_are_not_counted_may_be_nan():
    x = jnp.array([1.0, jnp.nan, 3.0])
    assert m.mean(x, jnp.array([True, False, True])).value() == 2.0
    assert np.isnan(m.mean(x, jnp.array([False, False, False])).value())
    assert np.isnan(m.mean(x).value())


def test_no_nan_in_the_gradient_where_nothing_was_counted():
    gradient = jax.grad(lambda x: jnp.nan_to_num(m.mean(x, jnp.zeros(3, bool)).value()))
    np.testing.assert_array_equal(gradient(jnp.ones(3)), np.zeros(3))


@pytest.mark.parametrize("axis", [0, (0, 1), None])
def test_weights_make_means_of_parts_the_mean_of_the_whole(axis):
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    where = x % 3 == 0
    parts = [m.mean(x[:1], where[:1], axis), m.mean(x[1:], where[1:], axis)]
    whole = m.mean(x, where, axis)
    np.testing.assert_allclose(parts[0].merge(parts[1]).value(), whole.value())
    parts = [m.mean(x[:1], None, axis), m.mean(x[1:], None, axis)]
    np.testing.assert_allclose(parts[0].merge(parts[1]).value(), m.mean(x, None, axis).value())


def test_folding_in_a_scan_equals_folding_in_one_piece():
    x = jnp.arange(40.0).reshape(10, 4) - 17
    steps = jnp.arange(10)

    def at(x, step):
        return {
            "mean": m.mean(x, x > 0),
            "sum": m.Sum(x.sum()),
            "min": m.Minimum(x.min()),
            "max": m.Maximum(x.max()),
            "first": m.First(jnp.where(x.max() > 10, step, m.NEVER)),
        }

    first = m.empty(jax.eval_shape(at, x[0], steps[0]))
    folded, stacked = jax.lax.scan(
        lambda row, xs: (m.merge(row, at(*xs)), at(*xs)), first, (x, steps)
    )
    same(folded, m.reduce(stacked))
    values = m.values(folded)
    assert values["mean"] == np.mean(np.asarray(x)[np.asarray(x) > 0])
    assert values["min"] == -17 and values["max"] == 22 and values["first"] == 7


def test_is_metric():
    assert all(m.is_metric(x) for x in row(1, 2, 3).values())
    assert not m.is_metric(jnp.ones(3))
