import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.core import schedules

FRACTIONS = np.linspace(0, 1, 11)


def test_progress():
    values = schedules.progress(jnp.array([0.0, 5, 10, 20]), 10.0)
    np.testing.assert_array_equal(values, [0, 0.5, 1, 1])
    assert schedules.progress(jnp.float32(1e9), jnp.inf) == 0


@pytest.mark.parametrize("name", list(schedules.SCHEDULES))
def test_ends_and_monotone(name):
    schedule = schedules.SCHEDULES[name]
    assert schedule(1e-2, 1e-4, 0.0) == pytest.approx(1e-2)
    assert schedule(1e-2, 1e-4, 1.0) == pytest.approx(1e-4, rel=1e-4)
    values = np.asarray(schedule(1e-2, 1e-4, jnp.linspace(0, 1, 50)))
    assert (np.diff(values) < 0).all()


@pytest.mark.parametrize(
    "name,theirs",
    [
        ("linear", optax.linear_schedule(2.0, 0.5, 10)),
        ("cosine", optax.cosine_decay_schedule(2.0, 10, alpha=0.25)),
        ("exponential", optax.exponential_decay(2.0, 10, 0.25)),
    ],
)
def test_equal_to_optax(name, theirs):
    ours = [schedules.SCHEDULES[name](2.0, 0.5, f) for f in FRACTIONS]
    np.testing.assert_allclose(ours, [theirs(10 * f) for f in FRACTIONS], rtol=1e-5)


@pytest.mark.parametrize("name", list(schedules.SCHEDULES))
def test_all_arguments_may_be_traced(name):
    schedule = schedules.SCHEDULES[name]
    batched = jax.jit(jax.vmap(schedule))(jnp.ones(3), jnp.ones(3) / 2, jnp.linspace(0, 1, 3))
    assert batched.shape == (3,)
    assert np.isfinite(jax.grad(schedule, argnums=(0, 1, 2))(1.0, 0.5, 0.3)).all()


def test_an_infinite_duration_has_finite_gradients():
    gradient = jax.grad(
        lambda start: schedules.linear(start, 0.0, schedules.progress(7.0, jnp.inf))
    )
    assert gradient(3.0) == 1
    assert jax.grad(lambda duration: schedules.progress(7.0, duration))(jnp.inf) == 0
