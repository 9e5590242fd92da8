"""Solvers of game trees against OpenSpiel's curves, a linear program, and closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact import regret, trees
from tests.exact.test_trees import forest, sequence_form_value

# NashConv of the averages after 1, 10 and 100 iterations, as OpenSpiel 2.0.2 computes it.
OPENSPIEL = {
    "CFR": (regret.CFR, (0.9166666667, 0.1373975876, 0.0164519546)),
    "CFR+": (regret.CFR_PLUS, (0.9166666667, 0.0653741813, 0.0023888082)),
    "linear CFR": (regret.LINEAR_CFR, (0.9166666667, 0.0425014612, 0.0021780547)),
    "discounted CFR": (regret.DISCOUNTED_CFR, (0.9166666667, 0.0455575679, 0.0033326839)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPENSPIEL)
def test_gaps_along_the_way_are_openspiels(name):
    discount, gaps = OPENSPIEL[name]
    with jax.enable_x64(True):
        found = regret.counterfactual_regret(forest("kuhn"), 100, discount, looks=100)
        gaps_found = np.asarray(found.curve).sum(1)[[0, 9, 99]]
        np.testing.assert_allclose(gaps_found, gaps, rtol=1e-7)


@pytest.mark.slow
def test_in_leduc_poker_it_finds_the_value_of_the_linear_program():
    f = forest("leduc")
    found = regret.counterfactual_regret(f, 500, regret.CFR_PLUS, looks=50)
    np.testing.assert_allclose(found.curve.sum(1)[0], 1.2208778032, rtol=1e-4)  # OpenSpiel's
    assert found.curve.sum(1)[-1] < 0.003
    plans = [trees.plan(p, table) for p, table in zip(f.players, found.average, strict=True)]
    np.testing.assert_allclose(trees.values(f, plans)[0], sequence_form_value("leduc"), atol=0.002)


@pytest.mark.slow
def test_mirror_descent_finds_the_regularized_equilibrium():
    with jax.enable_x64(True):
        f = forest("kuhn")
        found = regret.mirror_descent(f, 1000, 0.9, 0.1, looks=1000)
        gaps = np.asarray(found.last_curve).sum(1)[[0, 9, 99, 999]]
        # OpenSpiel's, whose default step is 0.9 here
        openspiel = 0.7349382788, 0.3456028006, 0.2073735057, 0.2073881162
        np.testing.assert_allclose(gaps, openspiel, rtol=1e-7)
        plans = [trees.plan(p, table) for p, table in zip(f.players, found.last, strict=True)]
        for p, player in enumerate(f.players):
            payoff = trees.gradient(f, plans, p)
            prior = jnp.ones(player.legal.shape)  # no prior: entropy alone
            best = regret.leader(player, payoff, prior, np.full(6, 0.1))
            np.testing.assert_allclose(found.last[p], best, atol=1e-9)


@pytest.mark.slow
def test_leaders_approach_kuhns_family_of_equilibria():
    f = forest("kuhn")
    found = regret.regularized_leader(f, 2000, 1.0, balanced=True, looks=2)
    gaps = found.curve.sum(1)
    assert gaps[-1] < 0.02 and gaps[-1] < gaps[0]
    table = np.asarray(trees.join(f, found.average))
    card, stage = (
        np.asarray(f.game.timesteps.observation)[:, x].argmax(1) for x in (slice(3), slice(3, 7))
    )
    bet = lambda c, s: table[(card == c) & (stage == s), 1].item()
    alpha = bet(0, 0)  # how often the first player bets with a jack, at most 1/3
    assert 0 <= alpha < 0.36
    np.testing.assert_allclose([bet(2, 0), bet(1, 3)], [3 * alpha, alpha + 1 / 3], atol=0.06)
    np.testing.assert_allclose([bet(0, 1), bet(1, 2)], 1 / 3, atol=0.06)


def test_balance_counts_what_lies_behind():
    first, second = (regret.balance(player) for player in forest("kuhn").players)
    # A pass of the first player leads to one more choice of two; a bet ends the game.
    np.testing.assert_allclose(first[0], [[3 / 4, 1 / 4]] * 3 + [[1 / 2, 1 / 2]] * 3)
    np.testing.assert_allclose(second[0], 1 / 2)
    np.testing.assert_allclose(first[1], 1)
    player = forest("goofspiel").players[0]
    probabilities, reach = regret.balance(player)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    # The transitions to all sets that follow an action have a sum of 1.
    later = player.parent[3:] - 1
    behind = np.bincount(later, reach[3:], 9)
    np.testing.assert_allclose(behind, 1)
    assert set(reach[3:].round(6)) == {0.25, round(1 / 6, 6)}  # of three or four sets, by size


def test_a_leader_is_the_best_of_its_objective():
    player = forest("kuhn").players[0]
    rng = np.random.default_rng(0)
    payoff = jnp.asarray(rng.normal(size=player.sequences), jnp.float32)
    prior, weight = rng.dirichlet((1, 1), 6), rng.uniform(0.5, 2, 6)

    def objective(table):
        plan = np.asarray(trees.plan(player, jnp.asarray(table)))
        reach = plan[player.parent]
        divergence = (table * np.log(table / prior)).sum(1)
        return (plan * np.asarray(payoff)).sum() - (weight * reach * divergence).sum()

    best = np.asarray(regret.leader(player, payoff, prior, weight))
    assert all(
        objective(0.99 * best + 0.01 * rng.dirichlet((1, 1), 6)) < objective(best)
        for _ in range(20)
    )


def test_looks_must_divide_iterations():
    with pytest.raises(UserError, match="3 looks do not divide 10 iterations"):
        regret.counterfactual_regret(forest("kuhn"), 10, looks=3)
