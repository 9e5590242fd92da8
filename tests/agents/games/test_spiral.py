"""Role-conditioned advantages: whose outcome reinforces whose move, and what is subtracted."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.agents.games import spiral as module
from jaxrl.agents.games.spiral import Config, outcomes, played, spiral
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.contracts.structure import check_structure

CONFIG = Config(num_envs=8, hidden=(8,), optimiser="sgd", max_grad_norm=float("inf"))


def batch() -> Batch:
    """Three games of Kuhn poker, [3, 3], that end with a move of the second player, of the first
    one, and of the second one again; after the end stands another game's rubbish."""
    role = jnp.asarray([[0, 0, 0], [1, 1, 1], [0, 0, 0]])
    mask = jnp.asarray([[1, 1, 1], [1, 1, 1], [0, 1, 0]], bool)
    reward = np.full((3, 3, 2), 50.0, np.float32)
    reward[:, 0] = [[0, 0], [1, -1], [50, -50]]
    reward[:, 1] = [[0, 0], [0, 0], [-2, 2]]
    reward[:, 2] = [[0, 0], [-1, 1], [50, -50]]
    no = jnp.zeros((3, 3), bool)
    observation = jnp.asarray(np.random.default_rng(0).uniform(size=(3, 3, 7)), jnp.float32)
    legal = jnp.ones((3, 3, 2), bool)
    now = TimeStep(observation, jnp.zeros((3, 3, 2)), no, no, no, legal_actions=legal, role=role)
    # The role after the last move is nobody's: it must not matter.
    after = dataclasses.replace(now, reward=jnp.asarray(reward), role=1 - role)
    action = jnp.asarray([[0, 1, 0], [1, 0, 1], [1, 1, 0]])
    return Batch(Transition(now, action, after, (), {}), jnp.float32(9), mask=mask)


def test_the_outcome_goes_to_the_player_who_moved_whoever_moved_last():
    found = batch()
    total, mine = outcomes(found.transitions, found.mask)
    np.testing.assert_array_equal(total, [[1, -1], [-2, 2], [-1, 1]])
    np.testing.assert_array_equal(mine, [[1, -2, -1], [-1, 2, 1], [1, -2, -1]])
    solo = found.mask.at[1:, 0].set(False)  # a game that ended before the second player's turn
    expected = [[True, False], [True, True], [True, True]]
    np.testing.assert_array_equal(played(found.transitions.timestep.role, solo, 2), expected)


@pytest.mark.parametrize("baseline", ["role", "shared", "none"])
def test_an_update_is_the_policy_gradient_of_role_conditioned_advantages(baseline):
    env, config = envs.make("kuhn_poker"), dataclasses.replace(CONFIG, baseline=baseline)
    agent = module.agent(env, config)
    state = agent.init(random.key(0), agent.hyper | {"decay": 0.9, "entropy_weight": 0.0})
    state = dataclasses.replace(state, baseline=jnp.asarray([0.5, 0.5]))
    found = batch()
    after, info = jax.jit(agent.update)(state, found, random.key(1))
    averages = np.asarray([(1 - 2 - 1) / 3, (-1 + 2 + 1) / 3])
    expected = {"role": 0.45 + 0.1 * averages, "shared": [0.45, 0.5], "none": [0.5, 0.5]}[baseline]
    np.testing.assert_allclose(after.baseline, expected, rtol=1e-5)  # updated first, then used
    used = np.asarray(expected)[[0, 0] if baseline == "shared" else [0, 1]]
    role, mask = np.asarray(found.transitions.timestep.role), np.asarray(found.mask)
    outcome = np.asarray([[1, -2, -1], [-1, 2, 1], [1, -2, -1]])
    advantage = (outcome - used[role]) * mask

    def score(params):
        policy = agent.act(
            dataclasses.replace(state, params=params), found.transitions.timestep, (),
            random.key(0), False,
        )[2]["logits"]  # fmt: skip
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(policy), found.transitions.action[..., None], -1
        )
        return -(chosen[..., 0] * advantage).sum() / mask.sum()

    gradient = jax.jit(jax.grad(score))(state.params)
    rate = state.hyper["learning_rate"]
    for new, old, g in zip(
        *map(jax.tree.leaves, (after.params, state.params, gradient)), strict=True
    ):
        np.testing.assert_allclose(new, old - rate * g, rtol=1e-4, atol=1e-6)
    square = (advantage**2).sum() / mask.sum()
    np.testing.assert_allclose(info.metrics["advantage_square"], square, rtol=1e-5)


def test_it_is_an_algorithm_whose_metrics_are_each_players():
    algorithm = spiral(envs.make("kuhn_poker"), CONFIG)
    assert algorithm is spiral(envs.make("kuhn_poker"), config=CONFIG)
    check_structure(algorithm)
    shapes = jax.eval_shape(lambda: advance(algorithm, start(algorithm, random.key(0)))[1])
    assert {"episode_return_0", "episode_return_1", "baseline_1"} <= set(shapes)
    assert "episode_return" not in shapes
    assert all(leaf.shape == () for leaf in jax.tree.leaves(shapes))


def test_many_games_have_a_baseline_for_each_role_of_each():
    shapes = jax.eval_shape(
        lambda: start(spiral(envs.make("three_games"), CONFIG), random.key(0)).state.agent.baseline
    )
    assert shapes.shape == (6,)


def test_what_it_cannot_play():
    with pytest.raises(UserError, match="no game with a reward for each role"):
        spiral(envs.make("cartpole"), CONFIG)
    with pytest.raises(UserError, match="baseline"):
        spiral(envs.make("kuhn_poker"), dataclasses.replace(CONFIG, baseline="rol"))
