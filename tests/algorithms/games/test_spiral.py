"""SPIRAL's role-conditioned advantages: outcomes, baselines and their updates."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games.spiral import active_roles, outcomes, spiral
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import advance, start
from jaxrl.core.types import Batch, TimeStep, Transition

CONFIG = replace(spiral.Config(), {"num_envs": 8, "hidden": (8,)})
BEFORE = np.asarray([0.5, -0.2])


def batch() -> Batch:
    """Return three games of Kuhn poker, [3, 3], that end with a move of the second player, of the
    first one, and of the second one again; steps after the end are garbage."""
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
    # The role after the last move is undefined and must not matter.
    after = dataclasses.replace(now, reward=jnp.asarray(reward), role=1 - role)
    action = jnp.asarray([[0, 1, 0], [1, 0, 1], [1, 1, 0]])
    return Batch(Transition(now, action, after, (), {}), jnp.float32(9), mask=mask)


@pytest.mark.slow
def test_each_move_gets_its_players_outcome_whoever_moved_last():
    found = batch()
    total, mine = outcomes(found.transitions, found.mask)
    np.testing.assert_array_equal(total, [[1, -1], [-2, 2], [-1, 1]])
    np.testing.assert_array_equal(mine, [[1, -2, -1], [-1, 2, 1], [1, -2, -1]])
    solo = found.mask.at[1:, 0].set(False)  # a game that ended before the second player's turn
    expected = [[True, False], [True, True], [True, True]]
    np.testing.assert_array_equal(active_roles(found.transitions.timestep.role, solo, 2), expected)


def run_update(env, baseline):
    """Run an update on `batch` from the baselines `BEFORE`, and record what it descends, stores and
    reports."""
    config = replace(spiral.Config(), {"baseline": baseline})
    found = types.SimpleNamespace(extra=jnp.asarray(BEFORE, jnp.float32))
    found.hyper = types.SimpleNamespace(decay=jnp.float32(0.9))

    def keep(**changes):
        found.__dict__.update(changes)
        return found

    found.replace = keep
    found.report = lambda **metrics: keep(metrics=metrics)
    found.descend = lambda loss, x, mask, weight: keep(descended=x)
    return spiral.recipe(env, Static(config)).update(found, batch())


@pytest.mark.parametrize("baseline", ["role", "none"])
def test_the_advantage_is_the_players_outcome_minus_the_previous_baseline(baseline):
    found = run_update(envs.make("kuhn_poker"), baseline)
    averages = np.asarray([(1 - 2 - 1) / 3, (-1 + 2 + 1) / 3])
    expected = BEFORE if baseline == "none" else 0.9 * BEFORE + 0.1 * averages
    np.testing.assert_allclose(found.extra, expected, rtol=1e-5)
    # The games of this update are not part of the baseline subtracted from them.
    used = [found.metrics[f"baseline_{i}"] for i in (0, 1)]
    np.testing.assert_allclose(used, BEFORE)
    role, mask = np.asarray(batch().transitions.timestep.role), np.asarray(batch().mask)
    outcome = np.asarray([[1, -2, -1], [-1, 2, 1], [1, -2, -1]])
    advantage = (outcome - BEFORE[role]) * mask
    np.testing.assert_allclose(found.descended.advantage * mask, advantage, rtol=1e-5)
    square = (advantage**2).sum() / mask.sum()
    np.testing.assert_allclose(found.metrics["advantage_square"], square, rtol=1e-5)


def test_metrics_are_per_player():
    algorithm = spiral(envs.make("kuhn_poker"), CONFIG)
    shapes = jax.eval_shape(lambda: advance(algorithm, start(algorithm, random.key(0)))[1])
    assert {"episode_return_0", "episode_return_1", "baseline_1"} <= set(shapes)
    assert "episode_return" not in shapes
    assert all(leaf.shape == () for leaf in jax.tree.leaves(shapes))


def test_each_role_of_each_game_has_a_baseline():
    recipe = spiral.recipe(envs.make("three_games"), Static(CONFIG))
    assert recipe.extra.shape == (6,)


def test_unsuitable_environments_and_settings_are_rejected():
    with pytest.raises(UserError, match="not a game with a reward for each role"):
        spiral(envs.make("cartpole"), CONFIG)
    with pytest.raises(UserError, match="baseline"):
        spiral(envs.make("kuhn_poker"), replace(CONFIG, {"baseline": "rol"}))
