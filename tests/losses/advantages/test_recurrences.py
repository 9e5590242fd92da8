"""The loop and the associative scan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract


def recurrence_inputs(rng):
    cut = np.array([[False, True], [True, False], [False, False], [False, False]])
    return {
        "final": rng.normal(size=2),
        "cut": cut,
        "reward": rng.normal(size=(4, 2)),
        "decay": rng.uniform(size=(4, 2)),
    }


def loop(final, cut, reward, decay):
    return losses.reverse_recurrence(lambda r, d: (d, r), final, cut, reward, decay)


loop.__doc__ = losses.reverse_recurrence.__doc__
loop.__name__ = "reverse_recurrence"


CASES = [
    Case(
        loop,
        recurrence_inputs,
        gradient=("final", "reward", "decay"),
        time=("cut", "reward", "decay"),
        extremes=lambda rng: [{"cut": np.ones((4, 2), bool)}, {"decay": np.zeros((4, 2))}],
    ),
]
test_contract = contract(CASES)


@functools.partial(jax.jit, static_argnames="parallel")
def solve(final, cut, increment, decay, parallel):
    return losses.reverse_recurrence(
        lambda r, d: (d, r), final, cut, increment, decay, parallel=parallel
    )


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 7, 40]))
def test_the_parallel_scan_equals_the_loop(seed, length):
    rng = np.random.default_rng(seed)
    increment, decay = jnp.float32(rng.normal(size=(2, length, 3)))
    cut, final = jnp.array(rng.random((length, 3)) < 0.2), jnp.float32(rng.normal(size=3))
    both = [solve(final, cut, increment, decay, parallel) for parallel in (False, True)]
    np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_cut_stops_nan_and_a_decay_of_0_has_a_gradient(parallel):
    def run(decay, poison):
        cut = jnp.array([False, False, True, False, False])
        increment = jnp.arange(5.0).at[3:].set(poison)
        return solve(jnp.float32(0), cut, increment, decay, parallel)

    assert run(0.5, jnp.nan)[:3].tolist() == [1.0, 2.0, 2.0]
    # x[0] = 0 + decay * (1 + decay * 2)
    np.testing.assert_allclose(jax.grad(lambda d: run(d, 1.0)[0])(0.0), 1)
