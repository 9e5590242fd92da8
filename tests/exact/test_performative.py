"""Performative MDPs: optimal occupancies by a general solver, and what retraining ends at."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from jaxrl.exact import performative as p
from jaxrl.exact.occupancy import occupancy

STATES, ACTIONS, DISCOUNT = 3, 2, 0.8
RNG = np.random.default_rng(0)
INITIAL = np.full(STATES, 1 / STATES)
ANSWER = p.Answer(
    RNG.dirichlet(np.ones(STATES), (STATES, ACTIONS)), RNG.normal(size=(STATES, ACTIONS))
)


@pytest.mark.parametrize("regularizer", [0.05, 2.0])
def test_regularized_occupancy_is_that_of_a_quadratic_program(regularizer):
    with jax.enable_x64(True):
        solve = jax.jit(p.regularized_occupancy, static_argnums=(2,))
        found = np.asarray(solve(ANSWER, INITIAL, DISCOUNT, regularizer))
        matrix = np.asarray(p.flow(ANSWER, DISCOUNT)).reshape(-1, STATES)
        # It is the occupancy of its own policy.
        policy = found / found.sum(1, keepdims=True)
        same = np.asarray(occupancy(ANSWER.transition, policy, INITIAL, DISCOUNT))
    np.testing.assert_allclose(found, same, atol=1e-7)
    reward = ANSWER.reward.ravel()
    loss = lambda d: -(d @ reward) + regularizer / 2 * d @ d
    best = scipy.optimize.minimize(
        loss, np.ones(6), jac=lambda d: -reward + regularizer * d, bounds=[(0, None)] * 6,
        constraints={"type": "eq", "fun": lambda d: matrix.T @ d - INITIAL},
    )  # fmt: skip
    assert best.success
    np.testing.assert_allclose(found.ravel(), best.x, atol=1e-4)


def test_without_much_regularization_it_is_the_optimal_policy():
    """Compare with all deterministic policies."""
    with jax.enable_x64(True):
        found = np.asarray(p.regularized_occupancy(ANSWER, INITIAL, DISCOUNT, 1e-3))
        returns = [
            (np.asarray(occupancy(ANSWER.transition, np.eye(2)[list(c)], INITIAL, DISCOUNT))
             * ANSWER.reward).sum()
            for c in np.ndindex(2, 2, 2)
        ]  # fmt: skip
    np.testing.assert_allclose((found * ANSWER.reward).sum(), max(returns), rtol=1e-3)


def test_an_environment_that_does_not_answer_needs_one_retraining():
    with jax.enable_x64(True):
        path = p.retrain(lambda d: ANSWER, INITIAL, DISCOUNT, 1.0, np.ones((3, 2)), 3)
        best = p.regularized_occupancy(ANSWER, INITIAL, DISCOUNT, 1.0)
        slow = p.retrain_by_gradient(
            lambda d: ANSWER, INITIAL, DISCOUNT, 1.0, np.ones((3, 2)), 60, 0.5
        )
    np.testing.assert_allclose(path, np.broadcast_to(best, (3, 3, 2)), atol=1e-9)
    assert np.abs(slow[0] - best).max() > 0.01
    np.testing.assert_allclose(slow[-1], best, atol=1e-6)


def test_the_follower_responds_to_the_deployed_policy():
    """One state without a future: softmax of its rewards against the leader's policy."""
    reward = jnp.asarray([[[1.0, 0.0], [0.0, 3.0]]])
    transition = jnp.ones((1, 2, 2, 1))
    game = p.FollowerGame(transition, -reward, reward, jnp.ones(1))
    answer = p.soft_follower(game, 0.0, 0.5)(jnp.asarray([[0.75, 0.25]]))
    follower = jax.nn.softmax(jnp.asarray([0.75, 0.75]) / 0.5)
    np.testing.assert_allclose(answer.reward, [-(reward[0] @ follower)], rtol=1e-5)
    other = p.soft_follower(game, 0.0, 0.5)(jnp.asarray([[1.5, 0.0]]))
    odds = np.exp(2.0)
    np.testing.assert_allclose(other.reward[0, 0], -odds / (odds + 1), rtol=1e-5)
