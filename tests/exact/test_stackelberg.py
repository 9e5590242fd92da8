"""Learning leaders, and followers who respond or manipulate."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.exact import stackelberg as s

PAYOFF = jnp.asarray([[0.9, 0.1], [0.5, 0.4]])
OTHER = jnp.asarray([[0.4, 0.3], [0.8, 0.1]])


def test_the_best_manipulation_is_the_best_of_all_responses():
    manipulate = jax.jit(s.best_manipulation)
    for seed in range(20):
        payoff, other = np.random.default_rng(seed).uniform(size=(2, 3, 3))
        rows = np.arange(3)
        gains = []
        for response in itertools.product(range(3), repeat=3):
            action = payoff[rows, response].argmax()
            gains.append(other[action, response[action]])
        response = np.asarray(manipulate(payoff, other))
        action = payoff[rows, response].argmax()
        np.testing.assert_allclose(other[action, response[action]], max(gains), rtol=1e-6)


def test_a_margin_leaves_no_pair_that_is_hard_to_tell_apart():
    """Punished, the first action pays 0.1, so that the second leads by 0.4 or 0.3."""
    np.testing.assert_array_equal(s.best_manipulation(PAYOFF, OTHER, 0.35), [1, 0])
    # No pair of the second action leads by 0.45, and the first only with the myopic answer.
    np.testing.assert_array_equal(s.best_manipulation(PAYOFF, OTHER, 0.45), [0, 1])
    # Nothing leads by 0.6: the greatest lead is taken.
    np.testing.assert_array_equal(s.best_manipulation(PAYOFF, OTHER, 0.6), [0, 1])
    assert s.leader_action(PAYOFF, jnp.asarray([0, 0])) == 0
    assert s.leader_action(PAYOFF, jnp.asarray([1, 0])) == 1


def test_upper_bounds_by_hand():
    arms = s.Arms(jnp.asarray([3.0, 0.0]), jnp.asarray([4.0, 0.0]))
    found = s.upper_bound(arms, jnp.asarray(8.0), 0.5)
    np.testing.assert_allclose(found, [0.75 + 0.5 * np.sqrt(2 * np.log(8) / 4), np.inf], rtol=1e-6)


def test_a_leader_learns_the_stackelberg_value_and_is_steered_away_from_it():
    """Myopically the follower earns 0.4; by punishing the first action it earns 0.8."""
    play = jax.jit(
        lambda follow: s.play(
            random.key(0), PAYOFF, OTHER, follow, 1000, noise=0.05, exploration=0.1
        ),
        static_argnums=0,
    )
    learned = play(s.learning_follower(0.1))
    assert (learned.leader[-100:] == 0).mean() > 0.9 and (learned.follower[-100:] == 0).mean() > 0.9
    steered = play(s.committed_follower(s.best_manipulation(PAYOFF, OTHER)))
    assert (steered.leader[-100:] == 1).mean() > 0.9
    np.testing.assert_allclose(np.median(steered.other_payoff[-100:]), 0.8)
    # What is recorded are means of the actions that were played.
    np.testing.assert_allclose(learned.payoff, PAYOFF[learned.leader, learned.follower])
    assert np.unique(learned.follower[learned.leader == 1]).size == 2  # all was tried
