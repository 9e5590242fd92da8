"""An isolated function returns what it returns anyway, whatever the program around it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.staging import isolate, where_due


def _function(x, key):
    return {"y": jnp.sin(x) * x, "n": 3, "key": jax.random.fold_in(key, 1)}


def test_an_isolated_function_is_itself_under_jit_vmap_and_scan():
    keys = jax.vmap(random.key)(jnp.arange(3))
    x = jnp.arange(3.0)

    @jax.jit
    def both(x, keys):
        def body(carry, number):
            return carry, jax.vmap(lambda x, key: isolate(number >= 0, _function, x, key))(x, keys)

        _, inside = jax.lax.scan(body, (), jnp.arange(2))
        return inside, jax.vmap(_function)(x, keys)

    inside, plain = both(x, keys)
    for number in range(2):
        np.testing.assert_allclose(inside["y"][number], plain["y"], rtol=1e-6)
        np.testing.assert_array_equal(inside["n"][number], plain["n"])
        np.testing.assert_array_equal(
            jax.random.key_data(inside["key"][number]), jax.random.key_data(plain["key"])
        )


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a plain call on other devices")
def test_an_isolated_function_of_several_members_is_one_branch():
    """Members that all take the branch must not make it a select, which computes both sides."""
    x, numbers = jnp.arange(3.0), jnp.arange(3)
    apart = jax.jit(jax.vmap(lambda x, number: isolate(number >= 0, jnp.sin, x)))
    program = apart.lower(x, numbers).compile()
    assert " conditional(" in program.as_text()
    np.testing.assert_allclose(program(x, numbers), np.sin(x), rtol=1e-6)


def test_gradients_pass_through_an_isolated_function():
    def loss(x, number):
        return isolate(number >= 0, lambda x: jnp.sin(x) * x, x)

    slope = jax.jit(jax.grad(loss))(0.7, jnp.int32(0))
    np.testing.assert_allclose(slope, np.sin(0.7) + 0.7 * np.cos(0.7), rtol=1e-6)


def test_members_that_are_due_get_the_result():
    def step(due, x):
        return where_due(due, lambda: {"y": jnp.sin(x)}, {"y": x})

    x = jnp.arange(3.0)
    for due in ([False] * 3, [False, True, False], [True] * 3):
        y = jax.vmap(step)(jnp.array(due), x)["y"]
        np.testing.assert_allclose(y, np.where(due, np.sin(x), x), rtol=1e-6)
        # Seeds of points, as a sweep has them.
        nested = jax.vmap(jax.vmap(step))(jnp.array([due, due]), jnp.stack([x, x]))["y"]
        np.testing.assert_allclose(nested, [y, y], rtol=1e-6)
        np.testing.assert_allclose(
            [step(jnp.bool_(d), v)["y"] for d, v in zip(due, x, strict=True)], y
        )
    program = jax.jit(jax.vmap(step)).lower(jnp.array([True] * 3), x).compile()
    assert " conditional(" in program.as_text()
