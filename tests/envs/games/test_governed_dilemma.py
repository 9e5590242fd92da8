"""The governed dilemma: what players want by what they are shown, payoffs, graphs, chains."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import make
from jaxrl.envs.games import governed_dilemma as dilemmas
from jaxrl.envs.games.governed_dilemma import Params, State

RECIPROCATES, STAYS_AFTER_A_WIN, GRIM = range(3)


def three_players(moves, disposition=(RECIPROCATES, STAYS_AFTER_A_WIN, GRIM)):
    """Return three players who are all neighbors, after the given moves."""
    return State(
        ~jnp.eye(3, dtype=bool),
        jnp.array(disposition),
        jnp.array(moves, jnp.float32),
        jnp.zeros(3),
        jnp.zeros(()),
        jnp.ones((), jnp.int32),
    )


STATE = three_players([[0, 1, 0], [0, 0, 0], [1, 1, 0]])
HIDE, SHOW = jnp.zeros(3, bool), jnp.ones(3, bool)


def test_what_is_shown_decides_what_players_want():
    exact = Params(prior=0.4, conformity=0.25, noise=0.0)
    others = ~np.eye(3, dtype=bool)
    wants = lambda a, b: np.asarray(dilemmas.intentions(STATE, a, b, exact))[others]
    np.testing.assert_allclose(wants(HIDE, HIDE), np.full(6, 0.4), rtol=1e-6)
    # By rows: 0 repeats; 1 defected against a cooperator twice, and won; 2 was defected against.
    np.testing.assert_array_equal(wants(SHOW, HIDE), [0, 1, 0, 0, 0, 0])
    # Their neighbors cooperated in two, three and one of four moves.
    share = np.repeat(np.array([2 / 4, 3 / 4, 1 / 4], np.float32), 2)
    np.testing.assert_allclose(wants(HIDE, SHOW), 0.75 * 0.4 + 0.25 * share)
    both = wants(SHOW, SHOW)
    np.testing.assert_allclose(both, 0.75 * np.array([0, 1, 0, 0, 0, 0]) + 0.25 * share)
    one = jnp.array([True, False, False])
    np.testing.assert_allclose(wants(one, HIDE), np.array([0, 1, 0.4, 0.4, 0.4, 0.4]), rtol=1e-6)
    noisy = dilemmas.intentions(STATE, SHOW, HIDE, dataclasses.replace(exact, noise=0.1))
    by_hand = np.array([0.1, 0.9, 0.1, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(np.asarray(noisy)[others], by_hand, rtol=1e-6)


def test_both_defect_after_defection_and_the_one_that_shifts_cooperates():
    state = three_players(np.zeros((3, 3)))
    wants = dilemmas.intentions(state, SHOW, HIDE, Params(noise=0.0))
    np.testing.assert_array_equal(np.asarray(wants)[[0, 1, 2], [1, 2, 0]], [0, 1, 0])


@pytest.mark.parametrize(("prior", "paid"), [(1.0, 3.0), (0.0, 1.0)])
def test_payoffs_and_observations(prior, paid):
    env = make("governed_dilemma", players=4, prior=prior, noise=0.0)
    state, first = env.reset(random.key(0), env.params)
    state, timestep = env.step(random.key(1), state, jnp.zeros(8, jnp.int32), env.params)
    assert float(timestep.reward) == paid and first.observation.shape == (17,)
    players = timestep.observation[:-1].reshape(4, 4)
    np.testing.assert_array_equal(players[:, :3], np.full((4, 3), prior))
    assert float(dilemmas.cooperation(state.inner)) == prior
    assert dilemmas.PAYOFF[1, 0] == 0 and dilemmas.PAYOFF[0, 1] == 5  # of the exploited, the other


def test_graphs_hold_a_ring_and_are_symmetric():
    env = make("governed_dilemma", players=6, density=0.5)
    keys = jax.random.split(random.key(2), 300)
    graph = np.asarray(jax.vmap(env.reset, (0, None))(keys, env.params)[0].inner.neighbors)
    assert (graph == graph.swapaxes(1, 2)).all() and not graph[:, range(6), range(6)].any()
    assert graph[:, range(6), [1, 2, 3, 4, 5, 0]].all()
    assert graph[:, 0, 2].mean() == pytest.approx(0.5, abs=0.1)


def test_pairs_who_see_last_moves_follow_their_chain():
    """Moves of a pair are a Markov chain of four states, whose distribution is known."""
    env, rounds = make("governed_dilemma", players=3, noise=0.1, prior=0.5), 20
    params = env.params
    action = jnp.array([1, 1, 1, 0, 0, 0])

    def episode(key):
        start, key = jax.random.split(key)
        state, _ = env.reset(start, params)
        state = dataclasses.replace(
            state, inner=dataclasses.replace(state.inner, disposition=jnp.array([0, 1, 2]))
        )

        def step(state, key):
            return env.step(key, state, action, params)[0], state.inner.moves

        return jax.lax.scan(step, state, jax.random.split(key, rounds))[1]

    moves = jax.jit(jax.vmap(episode))(jax.random.split(random.key(3), 2000)).mean((0, 1))
    for i, j in ((0, 1), (1, 2), (0, 2)):
        chain = np.zeros((4, 4))
        for own, other in np.ndindex(2, 2):
            a = 0.8 * dilemmas.WANTS[i, own, other] + 0.1
            b = 0.8 * dilemmas.WANTS[j, other, own] + 0.1
            chain[2 * own + other] = np.outer([1 - a, a], [1 - b, b]).reshape(-1)
        now, mean = np.full(4, 0.25), np.zeros(2)
        for _ in range(rounds):
            mean += [now[2] + now[3], now[1] + now[3]]
            now = now @ chain
        found = [float(moves[i, j]), float(moves[j, i])]
        np.testing.assert_allclose(found, mean / rounds, atol=0.015)


def test_bad_options_are_refused():
    with pytest.raises(UserError, match="The players of 'governed_dilemma' is 2"):
        make("governed_dilemma", players=2)
