"""Mean-field games: populations and values against NumPy, the fixed point, and one path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact import mean_field

SIZE, HEAT, STEP = 5, 0.3, 0.5
GAME = mean_field.beach_bar(SIZE, aversion=1.0, discount=0.8)
RANDOM = np.random.default_rng(0).dirichlet(np.ones(3), SIZE)
POLICY = jnp.asarray(0.5 * RANDOM + 0.5 / 3, jnp.float32)


@pytest.fixture(scope="module")
def answers():
    """Return what is computed once: an equilibrium and its gaps, and a policy's values."""

    @jax.jit
    def solve(policy):
        step = lambda _, x: mean_field.mirror_ascent(GAME, x, STEP, HEAT)
        end = jax.lax.fori_loop(0, 200, step, policy)
        population = mean_field.stationary_population(GAME, policy)
        return {
            "end": end,
            "next": mean_field.mirror_ascent(GAME, end, STEP, HEAT),
            "gap": mean_field.exploitability(GAME, end, HEAT),
            "hard": mean_field.exploitability(GAME, end),
            "first_gap": mean_field.exploitability(GAME, policy),
            "population": population,
            "q": mean_field.action_values(GAME, policy, population, HEAT),
            "stepped": mean_field.mirror_ascent(GAME, policy, STEP, HEAT),
        }

    return jax.tree.map(np.asarray, solve(POLICY))


def test_the_ring_is_what_its_text_says():
    population = np.array([0.4, 0.1, 0.2, 0.2, 0.1])
    transition = np.asarray(GAME.transition(jnp.asarray(population)))
    np.testing.assert_allclose(transition.sum(-1), 1, rtol=1e-5)
    # To the right from the first place: 0.8 there, 0.1 to either side of it; 0.2 of it is stuck.
    np.testing.assert_allclose(transition[0, 2], [0.8 * 0.1 + 0.2, 0.64, 0.08, 0, 0], atol=1e-6)
    np.testing.assert_allclose(transition[0, 0], [0.8 * 0.1 + 0.2, 0, 0, 0.08, 0.64], atol=1e-6)
    reward = GAME.reward(jnp.asarray(population))
    np.testing.assert_allclose(reward[:, 0], np.array([1, 0.5, 0, 0, 0.5]) - population, atol=1e-6)
    with pytest.raises(UserError, match="has 2 places"):
        mean_field.beach_bar(2)


def test_populations_and_values_by_numpy(answers):
    policy, population = np.asarray(POLICY, np.float64), np.full(SIZE, 1 / SIZE)
    for _ in range(300):
        transition = np.asarray(GAME.transition(jnp.asarray(population)), np.float64)
        population = np.einsum("s,sa,sat->t", population, policy, transition)
    np.testing.assert_allclose(answers["population"], population, atol=1e-5)
    reward = np.asarray(GAME.reward(jnp.asarray(population)))
    entropy = -(policy * np.log(policy)).sum(1)
    value = np.zeros(SIZE)
    for _ in range(300):
        q = reward + 0.8 * transition @ value
        value = (policy * q).sum(1) + HEAT * entropy
    np.testing.assert_allclose(answers["q"], q, atol=1e-4)
    # A step of mirror ascent, from its stationary point.
    new = np.exp((np.log(policy) + STEP * q) / (1 + STEP * HEAT))
    np.testing.assert_allclose(answers["stepped"], new / new.sum(1, keepdims=True), atol=1e-4)
    # The gap of the policy, by value iteration.
    best, own = np.zeros(SIZE), np.zeros(SIZE)
    for _ in range(300):
        best = (reward + 0.8 * transition @ best).max(1)
        own = (policy * (reward + 0.8 * transition @ own)).sum(1)
    np.testing.assert_allclose(answers["first_gap"], population @ (best - own), atol=1e-4)


def test_its_fixed_point_is_the_equilibrium_of_the_regularized_game(answers):
    np.testing.assert_allclose(answers["next"], answers["end"], atol=1e-5)
    np.testing.assert_allclose(answers["gap"], 0, atol=1e-4)
    # Without entropy, no more is lost than entropy can pay.
    assert 0.01 < answers["hard"] < HEAT * np.log(3) / (1 - 0.8)
    assert answers["hard"] < 0.5 * answers["first_gap"]


def test_temporal_differences_along_one_path_find_the_values_the_better_the_more_players(answers):
    errors = []
    for number in (4, 400):

        @jax.jit
        def estimate(key, number=number):
            places = jnp.arange(number) % SIZE
            return mean_field.estimate_values(
                key,
                GAME,
                POLICY,
                places,
                jnp.zeros((SIZE, 3)),
                steps=800,
                wait=2,
                rate=0.5,
                temperature=HEAT,
            )

        q, places = estimate(jax.random.key(0))
        errors.append(np.abs(q - answers["q"]).max())
        assert places.shape == (number,)
    assert errors[1] < 0.1 and errors[1] < 0.5 * errors[0]
