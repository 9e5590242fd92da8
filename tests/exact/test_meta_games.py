"""Meta-solvers against linear and quadratic programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxrl.exact import meta_games as metas

STAG_HUNT = np.asarray([[3.0, -1.0], [0.5, 0.5]])  # hunt together, or a hare for sure
ALL = np.ones(4, bool)


def random_game(seed, zero_sum=True):
    payoff = np.random.default_rng(seed).normal(size=(4, 4))
    return payoff - payoff.T if zero_sum else payoff


def solve(name, payoff, mask, risk=0.0):
    found = jax.jit(metas.META[name])(jnp.asarray(payoff), jnp.asarray(mask), risk)
    found = np.asarray(found)
    assert (found >= 0).all() and not found[~np.asarray(mask)].any()
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-5)
    return found


def value_of(payoff):
    """Return the value of a zero-sum matrix game to the row player, by a linear program."""
    rows, columns = payoff.shape
    cost = np.append(np.zeros(rows), -1.0)
    bounds = [(0, 1)] * rows + [(None, None)]
    limits = np.hstack([-payoff.T, np.ones((columns, 1))])
    sums = np.append(np.ones(rows), 0.0)[None]
    return -scipy.optimize.linprog(cost, limits, np.zeros(columns), sums, [1.0], bounds).fun


@pytest.mark.parametrize("name", ["nash", "risk_averse", "projected_replicator"])
def test_without_risk_a_solver_guarantees_the_value_of_the_linear_program(name):
    mask = np.asarray([True, True, False, True])
    for seed in range(3):
        payoff = random_game(seed) * np.outer(mask, mask)
        inner = payoff[np.ix_(mask, mask)]
        found = solve(name, payoff, mask)[mask]
        slack = 0.1 if name == "projected_replicator" else 0.02
        assert (found @ inner).min() > value_of(inner) - slack


def best_utility(payoff, mixture, risk):
    """Return the greatest utility against a mixture, by a quadratic program."""
    mean = payoff @ mixture
    deviation = payoff - mean[:, None]
    covariance = (deviation * mixture) @ deviation.T
    loss = lambda s: -(s @ mean - risk * s @ covariance @ s)
    starts = [np.full(len(mean), 1 / len(mean)), *np.eye(len(mean))]
    sums = {"type": "eq", "fun": lambda s: s.sum() - 1}
    ends = [
        scipy.optimize.minimize(loss, x, bounds=[(0, 1)] * len(mean), constraints=sums)
        for x in starts
    ]
    return -min(end.fun for end in ends), -loss(mixture)


@pytest.mark.parametrize("zero_sum", [True, False])
def test_risk_averse_mixture_is_a_best_answer_to_itself(zero_sum):
    """A quadratic program finds no better answer, and the gap bounds what it finds."""
    for seed in range(3):
        payoff = random_game(seed, zero_sum)
        found = solve("risk_averse", payoff, ALL, 0.5)
        best, own = best_utility(payoff, found, 0.5)
        assert best - own < 5e-3
        uniform = np.full(4, 0.25)
        best, own = best_utility(payoff, uniform, 0.5)
        assert best - own <= metas.averse_gap(payoff, uniform, 0.5, ALL) + 1e-4


def test_gain_is_mean_payoff_minus_twice_the_covariance():
    payoff, x = random_game(0, False), np.asarray([0.1, 0.2, 0.3, 0.4])
    mean = payoff @ x
    covariance = sum(
        w * np.outer(payoff[:, j] - mean, payoff[:, j] - mean) for j, w in enumerate(x)
    )
    found = metas.averse_gain(jnp.asarray(payoff), jnp.asarray(x), 0.7)
    np.testing.assert_allclose(found, mean - 2 * 0.7 * covariance @ x, rtol=1e-4)


def test_aversion_chooses_the_sure_hare():
    """Hunting together pays more on average; its payoff varies, that of the hare does not."""
    both = np.ones(2, bool)
    bold, careful = (solve("risk_averse", STAG_HUNT, both, risk)[0] for risk in (0.0, 1.0))
    assert bold > 0.9 and careful < 0.1


def test_uniform_is_over_the_policies_that_exist():
    np.testing.assert_allclose(
        solve("uniform", np.zeros((3, 3)), [True, False, True]), [0.5, 0, 0.5]
    )
