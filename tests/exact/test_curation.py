"""Retraining on curated samples, against enumeration of all samples and the paper's bounds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact.curation import choice_of_n, retrain

RNG = np.random.default_rng(0)
REWARD = RNG.normal(size=4)
PROB = RNG.dirichlet(np.ones(4))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_one_of_n_is_chosen_by_a_softmax_of_rewards(n):
    expected = np.zeros(4)
    for drawn in itertools.product(range(4), repeat=n):
        chance = np.exp(REWARD[list(drawn)])
        np.add.at(expected, list(drawn), PROB[list(drawn)].prod() * chance / chance.sum())
    with jax.enable_x64(True):
        found = jnp.exp(choice_of_n(jnp.log(PROB), jnp.asarray(REWARD), n))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(expected.sum(), 1)


def test_one_of_many_is_as_likely_as_exponentials_of_rewards():
    tilted = PROB * np.exp(REWARD)
    gaps = [
        np.abs(jnp.exp(choice_of_n(jnp.log(PROB), jnp.asarray(REWARD), n)) - tilted / tilted.sum())
        for n in (4, 16)
    ]
    assert gaps[1].max() < gaps[0].max() / 3 < 0.05


def test_a_value_without_probability_is_never_written():
    log_prob = jnp.log(jnp.array([0.5, 0.5, 0.0]))
    found = jnp.exp(choice_of_n(log_prob, jnp.array([0.0, 1.0, 9.0]), 2))
    assert found[2] == 0
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-6)


def test_a_round_fits_the_mixture_of_real_data_and_kept_samples():
    real = np.log(RNG.dirichlet(np.ones(4)))
    _, first, second = retrain(
        jnp.log(PROB), jnp.asarray(REWARD), 3, 2, real=jnp.asarray(real), weight=0.25
    )
    kept = np.exp(choice_of_n(first, jnp.asarray(REWARD), 3))
    np.testing.assert_allclose(jnp.exp(second), 0.8 * np.exp(real) + 0.2 * kept, rtol=1e-5)


def test_without_real_data_only_the_best_value_is_left():
    last = jnp.exp(retrain(jnp.log(PROB), jnp.asarray(REWARD), 4, 60)[-1])
    np.testing.assert_allclose(last, np.eye(4)[REWARD.argmax()], atol=1e-3)


@pytest.mark.parametrize("n, size", [(0, 4), (40, 40)])
def test_a_number_of_samples_that_cannot_be_enumerated_is_refused(n, size):
    with pytest.raises(UserError, match=f"n is {n} and there are {size} values"):
        choice_of_n(jnp.zeros(size), jnp.zeros(size), n)
