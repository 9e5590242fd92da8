"""CPO and SimPO against NumPy."""

import numpy as np

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.preferences.test_pairs import PAIR

LOW = np.full(5, -500.0)


def pair(rng, **more):
    return {name: -rng.uniform(0.2, 2, 5) for name in PAIR} | {"beta": 0.5} | more


CASES = [
    Case(losses.cpo, pair, gradient=PAIR, extremes=lambda rng: [{PAIR[0]: LOW}, {PAIR[1]: LOW}]),
    Case(
        losses.simpo,
        lambda rng: pair(rng, margin=0.3),
        gradient=PAIR,
        extremes=lambda rng: [{PAIR[0]: LOW}, {PAIR[1]: LOW}],
    ),
]
test_contract = contract(CASES)

CHOSEN, REJECTED = -np.random.default_rng(0).uniform(0.2, 4, (2, 7))


def test_values_are_those_of_the_formulas():
    logistic = lambda x: np.log1p(np.exp(-x))
    lead = 0.5 * (CHOSEN - REJECTED)
    smoothed = 0.8 * logistic(lead) + 0.2 * logistic(-lead)
    np.testing.assert_allclose(losses.cpo(CHOSEN, REJECTED, 0.5, 0.2), smoothed, rtol=1e-5)
    found = losses.simpo(CHOSEN, REJECTED, 0.5, 0.3)
    np.testing.assert_allclose(found, logistic(lead - 0.3), rtol=1e-5)


def test_cpo_is_dpo_with_a_uniform_reference():
    zero = np.zeros(7)
    found = losses.cpo(CHOSEN, REJECTED, 0.5)
    np.testing.assert_allclose(found, losses.dpo(CHOSEN, REJECTED, zero, zero, 0.5), rtol=1e-5)
