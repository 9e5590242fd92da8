"""Losses of absolute rewards against NumPy written from TRL's formulas and the papers'."""

import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.preferences.test_direct_alignment import ARGUMENTS, A, B, logistic, sigmoid
from tests.losses.preferences.test_pairs import FROZEN, PAIR, far, pairs

CASES = [
    *(
        Case(getattr(losses, name), pairs, gradient=PAIR, stopped=FROZEN, extremes=far)
        for name in ("apo_zero", "apo_down", "nca")
    ),
    Case(
        losses.bco,
        lambda rng: pairs(rng, "shift"),
        gradient=PAIR,
        stopped=(*FROZEN, "shift"),
        extremes=far,
    ),
]
test_contract = contract(CASES)

FORMULAS = {
    "nca": ((), logistic(A) + logistic(-A) / 2 + logistic(-B) / 2),
    "bco": ((0.4,), logistic(A - 0.4) + logistic(0.4 - B)),
    "apo_zero": ((), 1 - sigmoid(A) + sigmoid(B)),
    "apo_down": ((), sigmoid(A) + 1 - sigmoid(A - B)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_those_of_the_formula(name):
    more, expected = FORMULAS[name]
    np.testing.assert_allclose(getattr(losses, name)(*ARGUMENTS, *more), expected, rtol=2e-5)
