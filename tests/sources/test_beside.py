"""Steps of another source beside those that are played."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.learn import start_source
from jaxrl.envs.policies import random_policy
from jaxrl.sources import beside, dataset, replay, rollouts
from tests.datasets.files import counted_steps

ENV = envs.make("pendulum")


def draw(source, env=ENV):
    policy = random_policy(env)

    @jax.jit
    def run(key):
        state = start_source(source, key, source.hyper, policy)
        state, fresh, metrics = source.collect(state, policy, key)
        return source.sample(state, fresh, key), metrics

    return run(random.key(0))


@pytest.mark.parametrize("windows", [True, False])
def test_each_step_has_one_of_the_other_source(windows):
    shown = dataset(counted_steps().transitions, 24, num_shards=4)
    played = rollouts(ENV, 8, 3)
    if not windows:
        played = replay(played, 96, 24, num_shards=4)
    alone, _ = draw(played)
    batch, metrics = draw(beside(played, shown))
    x, shape = batch.transitions, alone.transitions.reward.shape
    assert x.reward.shape == shape == ((3, 8) if windows else (24,))
    beside_it = x.extras["expert"]
    assert all(a.shape[: len(shape)] == shape for a in jax.tree.leaves(beside_it))
    # They are whole transitions of the data.
    before, after = beside_it.observation[..., 0], beside_it.next_observation[..., 0]
    np.testing.assert_array_equal(after, before + 1)
    assert set(np.unique(before)) == {0, 1, 2}
    assert "episodes" in metrics and beside(played, shown).env_steps == played.env_steps


def test_shards_have_their_own():
    """The rows of a shard of the data lie beside the environments of the same shard, so nothing
    moves between devices."""
    rows = np.arange(12)
    data = counted_steps().transitions
    numbered = dataclasses.replace(data, extras={"row": rows})
    shown = dataset(numbered, 8 * 3, num_shards=4)
    inner = shown.sample

    def sample_in_order(state, fresh, key):
        batch = inner(state, fresh, key)
        extras = {"row": np.arange(24) // 6}  # the number of its shard
        return dataclasses.replace(
            batch, transitions=dataclasses.replace(batch.transitions, extras=extras)
        )

    batch, _ = draw(beside(rollouts(ENV, 8, 3), dataclasses.replace(shown, sample=sample_in_order)))
    shard = batch.transitions.extras["expert"].extras["row"]
    np.testing.assert_array_equal(shard, np.tile(np.arange(8) // 2, (3, 1)))


def test_the_played_source_hears_the_feedback():
    heard = []
    played = rollouts(ENV, 2, 1)
    listening = dataclasses.replace(
        played, feedback=lambda state, batch, feedback: heard.append(feedback) or state
    )
    source = beside(listening, dataset(counted_steps().transitions, 2))
    assert source.feedback(("mine", "theirs"), None, {"priority": 1}) == ("mine", "theirs")
    assert heard == [{"priority": 1}]
