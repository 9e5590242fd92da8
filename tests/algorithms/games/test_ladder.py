"""The measures of competing players, where they are known."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.games.shared.ladder import exploit, ladder
from jaxrl.algorithms.policy_gradient.ppo import Config
from jaxrl.core import random, settings
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.policies import random_policy

CONFIG = settings.replace(
    Config(),
    {"num_envs": 32, "num_steps": 4, "minibatches": 1, "hidden": (8,), "learning_rate": 0.05},
)


@functools.cache
def game():
    return envs.make("rock_paper_scissors")


def act(choice, timestep, memory, key, greedy):
    return jnp.broadcast_to(choice, timestep.role.shape), memory, {}


def always(choice):
    return Policy(act, lambda n: (), jnp.int32(choice))


def test_the_ladder_of_a_rock_a_paper_and_an_equilibrium():
    players = {"rock": always(0), "paper": always(1), "even": random_policy(game())}
    found = ladder(game(), players, CONFIG, steps=4000, key=random.key(0), games=600)
    won = np.asarray(found.results.won)
    np.testing.assert_allclose(won[:2, :2], [[0.5, 0], [1, 0.5]])
    np.testing.assert_allclose(won[2], 0.5, atol=0.08)
    assert found.rating[1] > found.rating[2] > found.rating[0]
    # Against those that always choose alike a best response always wins; nothing beats the third.
    assert (np.asarray(found.exploited.payoff[:2]) > 0.9).all()
    np.testing.assert_allclose(found.exploited.payoff[2], 0, atol=0.12)
    assert (np.asarray(found.exploited.won[:2]) > 0.95).all()


def test_less_than_a_window_is_refused():
    with pytest.raises(UserError, match="less than a window of 128 steps"):
        exploit(game(), always(0), CONFIG, steps=100, key=random.key(0))
