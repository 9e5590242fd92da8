"""Paths of policies that learn preferences, against sums in NumPy and exact optima."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.exact.answers import optimal_answers
from jaxrl.exact.preference_flows import (
    Path,
    at_divergence,
    draw_pairs,
    expected_pairs,
    fit_overoptimization,
    follow,
    measure_path,
    of_own_pairs,
    of_pairs,
    of_reward,
    of_texts,
    pair_accuracy,
    reward_model,
)

A, BETA = 5, 0.5
RNG = np.random.default_rng(0)
REFERENCE = jax.nn.log_softmax(jnp.asarray(RNG.normal(size=A)))
REWARD = jnp.asarray(RNG.normal(size=A))
PAIRS = expected_pairs(REFERENCE, REWARD)
TABLE = jnp.eye(A)
DPO = functools.partial(losses.dpo, beta=BETA)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_expected_pairs_are_those_of_two_independent_answers():
    expected = np.zeros((A, A))
    p, r = np.exp(REFERENCE), np.asarray(REWARD)
    for i, j in itertools.product(range(A), repeat=2):
        expected[i, j] += p[i] * p[j] * sigmoid(r[i] - r[j])
        expected[j, i] += p[i] * p[j] * sigmoid(r[j] - r[i])
    np.testing.assert_allclose(PAIRS, expected, rtol=1e-5)
    np.testing.assert_allclose(PAIRS.sum(), 1, rtol=1e-5)


def test_a_large_dataset_is_as_expected():
    found = draw_pairs(jax.random.key(0), REFERENCE, REWARD, 100_000)
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-4)
    np.testing.assert_allclose(found, PAIRS, atol=0.005)


def test_losses_are_sums_over_pairs_and_answers():
    now = jax.nn.log_softmax(jnp.asarray(RNG.normal(size=A)))
    total = 0.0
    for i, j in itertools.product(range(A), repeat=2):
        margin = BETA * ((now[i] - REFERENCE[i]) - (now[j] - REFERENCE[j]))
        total += PAIRS[i, j] * np.log1p(np.exp(-margin))
    np.testing.assert_allclose(of_pairs(DPO, PAIRS, REFERENCE)(now), total, rtol=1e-5)
    own = of_own_pairs(DPO, REWARD, REFERENCE)
    fixed = of_pairs(DPO, expected_pairs(now, REWARD), REFERENCE)
    np.testing.assert_allclose(jax.grad(own)(now), jax.grad(fixed)(now), rtol=1e-5)
    kl = (np.exp(now) * (now - REFERENCE)).sum()
    gain = (np.exp(now) * REWARD).sum() - BETA * kl
    np.testing.assert_allclose(of_reward(REWARD, REFERENCE, BETA)(now), -gain, rtol=1e-5)


def test_tables_end_at_the_exact_optima():
    best = optimal_answers(REWARD, REFERENCE, BETA)
    for objective, optimum in (
        (of_reward(REWARD, REFERENCE, BETA), best),
        (of_pairs(DPO, PAIRS, REFERENCE), best),
        (of_own_pairs(DPO, REWARD, REFERENCE), best),
        (of_texts(jnp.exp(best)), best),
    ):
        last = follow(objective, REFERENCE, TABLE, steps=3000)[-1]
        np.testing.assert_allclose(jnp.exp(last), jnp.exp(optimum), atol=5e-3)


def test_the_reward_model_of_all_pairs_is_the_reward():
    found = reward_model(PAIRS, TABLE, ridge=1e-7)
    np.testing.assert_allclose(found, REWARD - REWARD.mean(), atol=2e-2)
    assert pair_accuracy(REWARD, PAIRS) == pair_accuracy(found, PAIRS)


def test_accuracy_counts_ties_as_halves():
    pairs = jnp.array([[0.0, 0.3, 0.1], [0.2, 0.0, 0.1], [0.1, 0.2, 0.0]])
    found = pair_accuracy(jnp.array([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0]]), pairs)
    np.testing.assert_allclose(found, [0.5, 0.5 * 0.5 + 0.2], rtol=1e-6)


def test_points_of_a_path():
    policies = follow(of_pairs(DPO, PAIRS, REFERENCE), REFERENCE, TABLE, steps=20)
    found = measure_path(policies, REFERENCE, REWARD, PAIRS)
    assert policies.shape == (21, A)
    np.testing.assert_allclose(found.kl[0], 0, atol=1e-6)
    expected = pair_accuracy(policies[-1] - REFERENCE, PAIRS)
    np.testing.assert_allclose(found.accuracy[-1], expected, rtol=1e-6)
    p, q, r = np.exp(policies[-1]), np.exp(REFERENCE), np.asarray(REWARD)
    np.testing.assert_allclose(found.gold[-1], (p * r).sum(), rtol=1e-4)
    np.testing.assert_allclose(found.kl[-1], (p * np.log(p / q)).sum(), rtol=1e-3)
    won = sum(p[i] * q[j] * sigmoid(r[i] - r[j]) for i, j in itertools.product(range(A), repeat=2))
    np.testing.assert_allclose(found.win_rate[-1], won, rtol=1e-4)


def test_values_at_divergences_are_interpolated_where_these_are_first_reached():
    kl = jnp.array([0.0, 1.0, 0.5, 2.0])
    path = Path(kl, *[jnp.array([0.0, 10.0, 99.0, 20.0])] * 3)
    found = at_divergence(path, path.gold, jnp.array([0.5, 1.0, 5.0]))
    np.testing.assert_allclose(found, [5.0, 10.0, 20.0])


def test_the_curve_of_over_optimization_is_recovered():
    d = jnp.linspace(0, 2, 50)
    log = jnp.log(jnp.where(d > 0, d, 1))
    found = fit_overoptimization(d**2, 3.0 + d * (1.5 - 0.7 * log))
    np.testing.assert_allclose([found.alpha, found.beta], [1.5, 0.7], rtol=1e-3)
    assert found.r_squared > 0.9999
