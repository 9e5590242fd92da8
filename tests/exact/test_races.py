"""Random games, their equilibria by linear programs, and iterates in them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxrl import losses, solvers
from jaxrl.core import random
from jaxrl.exact import games, races

KEY = random.key(0)


def test_a_race_returns_what_came_after_each_step():
    step = lambda game, x, t: game * x + t
    np.testing.assert_allclose(races.race(step, 2.0, jnp.float32(1), 3), [3, 8, 19])


def test_bilinear_games_have_their_singular_values():
    values = np.linalg.svd(races.bilinear(KEY, 4, 0.5, 0.7), compute_uv=False)
    assert values.min() > 0.499 and values.max() < 0.701


def test_games_of_pairs_are_zero_sum_and_monotone():
    payoff = races.polymatrix(KEY, 3, 2)
    np.testing.assert_allclose(payoff.sum(0), 0, atol=1e-6)
    one, other = jax.random.dirichlet(KEY, jnp.ones(2), (2, 3))
    force = lambda policy: -losses.deviation_payoff(payoff, policy)
    np.testing.assert_allclose(((force(one) - force(other)) * (one - other)).sum(), 0, atol=1e-5)


def test_in_cyclic_games_an_action_beats_the_one_before_it():
    payoff = np.asarray(races.cyclic(KEY))
    assert (payoff[0, [0, 1, 2], [1, 2, 0]] > 0).all() or (
        payoff[0, [1, 2, 0], [0, 1, 2]] > 0
    ).all()
    np.testing.assert_allclose(payoff[0], -payoff[1])
    np.testing.assert_allclose(payoff[0], -payoff[0].T)


def nash_by_program(payoff: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the row player's equilibrium strategy of a zero-sum game [A, B], and its value."""
    rows, columns = payoff.shape
    result = scipy.optimize.linprog(
        [*np.zeros(rows), -1],
        A_ub=np.concatenate([-payoff.T, np.ones((columns, 1))], 1),
        b_ub=np.zeros(columns),
        A_eq=[[*np.ones(rows), 0]],
        b_eq=[1],
        bounds=[(0, 1)] * rows + [(None, None)],
    )
    return result.x[:-1], -result.fun


@pytest.mark.slow
def test_dynamics_find_the_equilibrium_of_the_linear_program():
    payoff = races.cyclic(KEY)
    strategy, value = nash_by_program(np.asarray(payoff[0], float))
    np.testing.assert_allclose(value, 0, atol=1e-6)
    begin = jnp.asarray([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]])
    force = lambda policy: -losses.deviation_payoff(payoff, policy)

    def step(game, iterate, t):
        policy, half = iterate
        half = solvers.aog(policy, begin, force(half), t, 0.1)
        return solvers.aog(policy, begin, force(half), t, 0.1), half

    policy = races.race(step, payoff, (begin, begin), 4000)[0][-1]
    np.testing.assert_allclose(policy[0], strategy, atol=0.01)
    np.testing.assert_allclose(games.matrix_nash(payoff[0]), strategy, atol=0.01)


def equilibrium_by_program(payoff: np.ndarray, coarse: bool) -> np.ndarray:
    """Return the (coarse) correlated equilibrium [A, A] with the most welfare, of [2, A, A]."""
    actions = payoff.shape[1]
    rows = []
    for player in (0, 1):
        mine = np.moveaxis(payoff[player], player, 0)  # [own action, the other's]
        for deviation in range(actions):
            gain = mine[deviation] - mine  # [recommended, the other's]
            groups = [np.arange(actions)] if coarse else np.arange(actions)[:, None]
            for group in groups:
                row = np.zeros((actions, actions))
                row[group] = gain[group]
                rows.append(np.moveaxis(row, 0, player).ravel())
    result = scipy.optimize.linprog(
        -payoff.sum(0).ravel(),
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=np.ones((1, actions**2)),
        b_eq=[1],
        bounds=(0, 1),
    )
    return result.x.reshape(actions, actions)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_gaps_of_correlated_equilibria_of_linear_programs_are_zero(seed):
    payoff = np.random.default_rng(seed).normal(size=(2, 3, 3))
    correlated = equilibrium_by_program(payoff, coarse=False)
    coarse = equilibrium_by_program(payoff, coarse=True)
    gaps = lambda joint: (
        float(solvers.ce_gap(jnp.asarray(payoff), jnp.asarray(joint), 2)),
        float(solvers.cce_gap(jnp.asarray(payoff), jnp.asarray(joint), 2)),
    )
    np.testing.assert_allclose(gaps(correlated), 0, atol=1e-5)
    assert gaps(coarse)[1] < 1e-5
    # The coarse one is at least as good for the players together.
    welfare = lambda joint: (payoff.sum(0) * joint).sum()
    assert welfare(coarse) >= welfare(correlated) - 1e-6
    best = payoff.sum(0) == payoff.sum(0).max()
    assert max(gaps(best * 1.0)) > 0 or welfare(coarse) == pytest.approx(payoff.sum(0).max())
