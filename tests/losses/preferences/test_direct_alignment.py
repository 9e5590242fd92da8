"""Preference losses of TRL's names against NumPy written from its formulas and the papers'."""

import numpy as np
import pytest

from tests.losses.compiled import losses
from tests.losses.contract import Case, contract
from tests.losses.preferences.test_pairs import FROZEN, PAIR, far, pairs

CASES = [
    *(
        Case(getattr(losses, name), pairs, gradient=PAIR, stopped=FROZEN, extremes=far)
        for name in ("dpo_hinge", "aot", "aot_unpaired")
    ),
    Case(
        losses.discopop,
        lambda rng: pairs(rng) | {"temperature": 0.5},
        gradient=PAIR,
        stopped=FROZEN,
        extremes=lambda rng: [x | {"temperature": 0.05} for x in far(rng)],
    ),
    Case(
        losses.robust_dpo,
        lambda rng: pairs(rng) | {"flip": 0.1},
        gradient=PAIR,
        stopped=FROZEN,
        extremes=far,
    ),
    Case(
        losses.exo,
        lambda rng: pairs(rng) | {"label_smoothing": 0.01},
        gradient=PAIR,
        stopped=FROZEN,
        extremes=far,
    ),
]
test_contract = contract(CASES)

BETA, TAU, SMOOTHING = 0.7, 0.3, 0.1
RNG = np.random.default_rng(0)
CHOSEN, REJECTED, CHOSEN_REFERENCE, REJECTED_REFERENCE = RNG.normal(-3, 1.5, (4, 9))
A, B = BETA * (CHOSEN - CHOSEN_REFERENCE), BETA * (REJECTED - REJECTED_REFERENCE)
D = A - B
ARGUMENTS = CHOSEN, REJECTED, CHOSEN_REFERENCE, REJECTED_REFERENCE, BETA


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def logistic(x):
    return np.log1p(np.exp(-x))


def exo():
    q, e = sigmoid(D), SMOOTHING
    return q * (np.log(q) - np.log(1 - e)) + (1 - q) * (np.log(1 - q) - np.log(e))


def discopop():
    m = sigmoid(D / TAU)
    return (1 - m) * logistic(D) + m * np.exp(-D)


def smooth(x):
    return (1 - SMOOTHING) * logistic(x) + SMOOTHING * logistic(-x)


def aot():
    now, frozen = np.sort(CHOSEN - REJECTED), np.sort(CHOSEN_REFERENCE - REJECTED_REFERENCE)
    return smooth(BETA * (now - frozen))


FORMULAS = {
    "dpo_hinge": ((), np.maximum(1 - D, 0)),
    "robust_dpo": ((SMOOTHING,), (0.9 * logistic(D) - 0.1 * logistic(-D)) / 0.8),
    "exo": ((SMOOTHING,), exo()),
    "discopop": ((TAU,), discopop()),
    "aot": ((SMOOTHING,), aot()),
    "aot_unpaired": ((SMOOTHING,), smooth(np.sort(A) - np.sort(B))),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_those_of_the_formula(name):
    more, expected = FORMULAS[name]
    found = getattr(losses, name)(*ARGUMENTS, *more)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_the_robust_loss_is_unbiased_under_flipped_labels():
    """The mean over labels that are flipped so often is DPO's loss of right ones."""
    flipped = REJECTED, CHOSEN, REJECTED_REFERENCE, CHOSEN_REFERENCE, BETA
    mean = 0.8 * losses.robust_dpo(*ARGUMENTS, 0.2) + 0.2 * losses.robust_dpo(*flipped, 0.2)
    np.testing.assert_allclose(mean, losses.dpo(*ARGUMENTS), rtol=1e-4)


def test_exo_is_least_where_the_policy_has_the_smoothed_labels():
    """The reverse divergence is 0 at log-odds log((1 - e) / e)."""
    zero = np.zeros(3)
    lead = np.log(0.9 / 0.1) / BETA + np.array([0.0, 0.5, -0.5])
    found = losses.exo(lead, zero, zero, zero, BETA, 0.1)
    np.testing.assert_allclose(found[0], 0, atol=1e-6)
    assert (found[1:] > 1e-3).all()
