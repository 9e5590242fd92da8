"""Behavior cloning: its loss, its fixed point, and what it learns from; percentile cloning."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import bc, filtered_bc
from jaxrl.algorithms.offline.shared.best_episodes import best_episodes
from jaxrl.algorithms.offline.shared.data import Data
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition
from jaxrl.datasets import transitions as episodes_of
from tests.counting import counting
from tests.datasets.stand_in import no_training
from tests.kit.stub import stub, transitions

__all__ = ["no_training"]


def test_the_loss_is_the_negative_log_likelihood():
    x = transitions(16)
    table = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    policy = lambda s: types.SimpleNamespace(
        log_prob=lambda a: table[s.observation, a], entropy=lambda: table[:, 0]
    )
    output = bc.actor_loss(stub(actor=policy), x)
    np.testing.assert_allclose(output.value, -table[np.arange(16), x.action], rtol=1e-6)


@pytest.mark.slow
def test_the_clone_of_a_bandit_has_its_frequencies():
    agent = bc.bc.agent(counting(), replace(bc.Config(), {"hidden": (8,), "learning_rate": 0.02}))
    no, same = jnp.zeros(8, bool), jnp.full((8, 3), 0.3)
    step = TimeStep(same, jnp.zeros(8), no, no, no)
    action = jnp.array([0, 0, 0, 0, 0, 1, 1, 2])
    batch = Batch(Transition(step, action, step, (), {}), jnp.float32(0))
    state, update = jax.jit(agent.init)(random.key(0), agent.hyper), jax.jit(agent.update)
    for _ in range(300):
        state, info = update(state, batch, random.key(1))
    entropy = -np.sum([p * np.log(p) for p in (5 / 8, 2 / 8, 1 / 8)])
    np.testing.assert_allclose(info.metrics["actor_loss"], entropy, rtol=1e-3)
    np.testing.assert_allclose(info.metrics["entropy"], entropy, atol=0.02)


@pytest.mark.parametrize("algorithm", [bc.bc, filtered_bc.filtered_bc], ids=lambda a: a.name)
@pytest.mark.parametrize("data", [{"num_envs": 4}, {"data.name": ""}])
def test_an_environment_beside_the_data_is_refused(algorithm, data):
    config = replace(algorithm.Config(), data)
    with pytest.raises(UserError, match=f"^{algorithm.name} learns from a dataset alone, since"):
        algorithm.agent(envs.make("cartpole"), config)


# -------------------------------------------------------------------------- percentile cloning


def episode(rewards):
    """An episode that ends in a termination."""
    n = len(rewards)
    last = np.arange(n) == n - 1
    return {
        "observations": np.arange(n + 1, dtype=np.float32)[:, None] + 100 * rewards[0],
        "actions": np.zeros(n, np.int32),
        "rewards": np.array(rewards),
        "terminations": last,
        "truncations": np.zeros(n, bool),
    }


# Returns 6, -1, 5, 6.5 and 1, in 3, 2, 1, 2 and 2 of 10 steps.
PLAYED = [[1.0, 2, 3], [0.0, -1], [5.0], [-0.5, 7], [2.0, -1]]


@pytest.mark.parametrize(
    "fraction, kept",
    [
        (0.01, [3]),  # at least one
        (0.2, [3]),
        (0.49, [3]),  # the next one is too long; a shorter one behind it is not taken
        (0.5, [0, 3]),
        (0.6, [0, 2, 3]),
        (0.8, [0, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_episodes_within_a_fraction_of_the_steps(fraction, kept):
    data = episodes_of.from_episodes([episode(rewards) for rewards in PLAYED])
    best = best_episodes(data, fraction)
    np.testing.assert_array_equal(best.reward, np.concatenate([PLAYED[i] for i in kept]))
    assert [PLAYED[i][0] for i in kept] == best.reward[best.first].tolist()  # whole, in order
    np.testing.assert_array_equal(
        np.flatnonzero(best.done) + 1, np.cumsum([len(PLAYED[i]) for i in kept])
    )


def test_of_equal_returns_the_later_episode_is_kept():
    data = episodes_of.from_episodes([episode([1.0, 1.0]), episode([2.0]), episode([0.0, 2.0])])
    np.testing.assert_array_equal(best_episodes(data, 0.5).reward, [0.0, 2.0])


def test_its_source_draws_only_from_the_best(no_training):
    env = envs.make("pendulum")
    data = Data(name="random", size=400, batch_size=8)
    config = filtered_bc.Config(data=data, fraction=0.5)
    drawn = filtered_bc.source(env, config)
    every = data.source(env)
    rewards = lambda source: source.init(random.key(0), {}, None).transitions.value.reward[:, 0]
    halves = np.asarray(rewards(every)).reshape(2, 200)  # two episodes
    np.testing.assert_array_equal(rewards(drawn), halves[halves.sum(1).argmax()])
