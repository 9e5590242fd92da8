"""Repeated games with memory against sums over rounds, and learning in games of one number each."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.exact import repeated
from jaxrl.exact.repeated import PRISONERS_DILEMMA

DEFECT = np.array([[0.0, 1.0]] * 5)
TIT_FOR_TAT = np.array([[1.0, 0.0], [1, 0], [0, 1], [1, 0], [0, 1]])  # as player 0 sees the rounds


def seen_by_player_1(strategy):
    return strategy[[0, 1, 3, 2, 4]]


def sum_of_rounds(payoff, strategies, discount):
    one, other = (np.asarray(x, np.float64) for x in strategies)
    joint = np.outer(one[0], other[0]).ravel()
    total = np.zeros(2)
    for t in range(2000):
        total += discount**t * payoff.reshape(2, -1) @ joint
        joint = sum(
            p * np.outer(x, y).ravel() for p, x, y in zip(joint, one[1:], other[1:], strict=True)
        )
    return (1 - discount) * total


def test_values_are_the_discounted_sum_over_rounds():
    keys = jax.random.split(random.key(0), 2)
    payoff = jax.random.normal(keys[0], (2, 3, 3))
    strategies = jax.random.dirichlet(keys[1], jnp.ones(3), (2, 10))
    found = repeated.discounted_values(payoff, strategies, 0.9)
    expected = sum_of_rounds(np.asarray(payoff), strategies, 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_known_strategies_of_the_prisoners_dilemma():
    value = lambda one, other: repeated.discounted_values(
        PRISONERS_DILEMMA, jnp.stack([one, seen_by_player_1(other)]), 0.96
    )
    np.testing.assert_allclose(value(DEFECT, DEFECT), [-2, -2], rtol=1e-5)
    np.testing.assert_allclose(value(TIT_FOR_TAT, TIT_FOR_TAT), [-1, -1], rtol=1e-5)
    # Tit for tat loses the first round only.
    expected = [0.04 * -3 + 0.96 * -2, 0.04 * 0 + 0.96 * -2]
    np.testing.assert_allclose(value(TIT_FOR_TAT, DEFECT), expected, rtol=1e-4)


def test_steps_in_a_game_of_one_number_each():
    """Player 0 gains x y and player 1 loses it; a look ahead of size b makes that x (y - b x)."""
    values = lambda z: jnp.array([1.0, -1.0]) * z[0] * z[1]
    x, y, rate, look = 0.5, 2.0, 0.1, 0.3
    plain = repeated.ascend(values, jnp.array([x, y]), rate)
    np.testing.assert_allclose(plain, [x + rate * y, y - rate * x], rtol=1e-6)
    shaped = repeated.lola(values, jnp.array([x, y]), rate, look)
    expected = [x + rate * (y - 2 * look * x), y + rate * (-x - 2 * look * y)]
    np.testing.assert_allclose(shaped, expected, rtol=1e-6)


def test_small_dilemma_retaliates_after_defection():
    found = repeated.retaliating(jnp.array([2.0, -1.0]), forgive=-3.0)
    cooperate, forgiven = 1 / (1 + np.exp([-2.0, 1])), 1 / (1 + np.exp(3.0))
    for player, order in enumerate(([0, 1, 2, 3, 4], [0, 1, 3, 2, 4])):
        p = cooperate[player]
        np.testing.assert_allclose(
            found[player, :, 0][np.array(order)], [p, p, forgiven, p, forgiven], rtol=1e-5
        )


def test_dilemma_and_pennies_are_mixed():
    logits, tails = jnp.array([0.3, -0.8]), jnp.tanh(jnp.array([0.15, -0.4]))
    pennies = tails.prod() * np.array([1, -1])  # 2 p - 1 = tanh(logit / 2)
    strategies = repeated.retaliating(logits)
    dilemma = sum_of_rounds(PRISONERS_DILEMMA, strategies, 0.9)
    found = repeated.dilemma_and_pennies(logits, 0.25, 0.9)
    np.testing.assert_allclose(found, 0.25 * pennies + 0.75 * dilemma, rtol=1e-4)


def test_gradient_of_values_is_their_difference():
    logits = jax.random.normal(random.key(0), (2, 5))
    with jax.enable_x64():
        value = lambda x: repeated.discounted_values(
            PRISONERS_DILEMMA, repeated.remembering(x), 0.96
        )[0]
        logits, shift = jnp.asarray(logits, float), jax.random.normal(random.key(1), (2, 5))
        difference = (value(logits + 1e-5 * shift) - value(logits - 1e-5 * shift)) / 2e-5
        gradient = (jax.grad(value)(logits) * shift).sum()
        np.testing.assert_allclose(gradient, difference, rtol=1e-6)
