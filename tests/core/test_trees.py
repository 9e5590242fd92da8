import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import shared, trees
from jaxrl.core.shared import Original


def test_where_masks_the_leading_axes():
    mask = jnp.array([True, False, True])
    a = {"x": jnp.ones((3, 2)), "n": jnp.ones(3, jnp.int32), "none": None}
    b = {"x": jnp.zeros((3, 2)), "n": jnp.zeros(3, jnp.int32), "none": None}
    chosen = trees.where(mask, a, b)
    np.testing.assert_array_equal(chosen["x"], [[1, 1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(chosen["n"], [1, 0, 1])
    assert chosen["n"].dtype == jnp.int32
    np.testing.assert_array_equal(trees.where(jnp.bool_(True), a, b)["x"], a["x"])
    deep = trees.where(jnp.eye(3, dtype=bool), jnp.ones((3, 3, 2)), jnp.zeros((3, 3, 2)))
    np.testing.assert_array_equal(deep[..., 1], np.eye(3))


def test_where_leaves_shared_parts_alone():
    part = Original(np.arange(4), "numbers").shared()
    chosen = jax.vmap(lambda mask: trees.where(mask, part, part), out_axes=shared.axes(part))(
        jnp.array([True, False])
    )
    np.testing.assert_array_equal(chosen.value, np.arange(4))


def test_all_finite_looks_at_inexact_leaves_only():
    assert trees.all_finite({})
    assert trees.all_finite({"n": jnp.array(3), "k": jax.random.key(0)})
    assert trees.all_finite([1.0, jnp.ones(3)])
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        assert not trees.all_finite({"a": jnp.ones(2), "b": jnp.array([0.0, bad])})


def test_zeros_of_shapes():
    shapes = jax.eval_shape(lambda: {"a": jnp.ones((2, 3)), "b": jnp.ones((), jnp.int32)})
    zeros = trees.zeros(shapes)
    assert zeros["a"].shape == (2, 3) and zeros["b"].dtype == jnp.int32
    assert not zeros["a"].any()
