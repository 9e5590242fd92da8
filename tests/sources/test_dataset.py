"""A dataset as a source, alone and mixed with an environment."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import start_source
from jaxrl.core.types import Policy
from jaxrl.sources import dataset, mixed, proportional, replay, rollouts
from tests.datasets.files import counted_steps, environment

N = 512
NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())


def draw(source, policy=NOBODY):
    @jax.jit
    def run(key):
        state = start_source(source, key, source.hyper, policy)
        state, fresh, _ = source.collect(state, policy, key)
        return state, source.sample(state, fresh, key)

    return jax.tree.map(np.asarray, run(random.key(0)))


def test_items_are_steps_of_the_dataset():
    data = counted_steps().transitions
    source = dataset(data, N, updates=5)
    state, batch = draw(source)
    assert source.env_steps == 5 and state.source.batches == 5 and batch.env_steps == 5.0
    rows = batch.index[0][0]
    assert set(rows) == set(range(12))
    for drawn_, held in zip(jax.tree.leaves(batch.transitions), jax.tree.leaves(data), strict=True):
        np.testing.assert_array_equal(drawn_, held[rows])
    x = batch.transitions  # no step leads from the end of an episode to the start of another
    np.testing.assert_array_equal(x.next_observation[:, 0], x.observation[:, 0] + 1)
    np.testing.assert_array_equal(x.next_observation[:, 1], x.observation[:, 1])


def test_windows_stay_inside_the_dataset_and_mark_ends_of_episodes():
    data = counted_steps().transitions
    _, batch = draw(dataset(data, N, length=5))
    rows = batch.index[0][0]
    assert set(rows) == set(range(12 - 5 + 1))  # never on from the last episode to the first
    x = batch.transitions
    np.testing.assert_array_equal(x.observation, data.observation[rows + np.arange(5)[:, None]])
    np.testing.assert_array_equal(x.first[1:], x.done[:-1])
    same = x.observation[1:, :, 1] == x.observation[:-1, :, 1]  # the tag of the episode
    np.testing.assert_array_equal(same, ~x.first[1:])
    assert x.first[1:].any()


@pytest.mark.slow
def test_priorities():
    source = dataset(counted_steps().transitions, N, sampler=proportional(1.0, 1.0))
    state, batch = draw(source)
    assert set(batch.index[0][0]) == set(range(12))  # equal at first
    np.testing.assert_allclose(batch.weight, 1.0, rtol=1e-5)
    priority = (batch.index[0][0] == 7).astype(np.float32)
    state = source.feedback(state, batch, {"priority": priority})
    batch = source.sample(state, batch.env_steps, random.key(1))
    assert (np.asarray(batch.index[0]) == 7).mean() > 0.99


def acting(n):
    act = lambda state, timestep, memory, key, greedy: (
        jax.numpy.full(n, 2, jax.numpy.int32),
        memory,
        {"said": timestep.reward},
    )
    return Policy(act, lambda n: (), ())


@pytest.mark.slow
def test_two_sources_share_each_batch():
    data = counted_steps().transitions
    offline = dataset(data, 6)
    online = replay(rollouts(environment(), 2, 3), 60, 10, warmup=12)
    source = mixed(offline, online)
    assert (source.env_steps, source.initial_env_steps, source.num_envs) == (6, 12, 2)
    state, batch = draw(source, acting(2))
    x = batch.transitions
    assert x.reward.shape == (16,) and x.extras == {}
    assert batch.env_steps == 6 * state.online.source.windows
    assert (x.action[:6] < 2).all() and (x.action[6:] == 2).all()
    np.testing.assert_array_equal(x.next_observation[:, 0], x.observation[:, 0] + 1)


@pytest.mark.slow
def test_channels_of_only_one_source_are_left_out():
    data = counted_steps().transitions
    bare = lambda timestep: dataclasses.replace(timestep, metrics=None)
    data = dataclasses.replace(
        data, timestep=bare(data.timestep), next_timestep=bare(data.next_timestep)
    )
    online = replay(rollouts(environment(), 2, 3), 60, 2)
    _, batch = draw(mixed(dataset(data, 2), online), acting(2))
    assert batch.transitions.timestep.metrics is None
    wide = dataclasses.replace(data, action=np.zeros((12, 2), np.int32))
    with pytest.raises(UserError, match="differ"):
        draw(mixed(dataset(wide, 2), online), acting(2))


def test_arrays_of_different_lengths_are_refused():
    """A gather would clamp the indices, and pair steps with parts of others."""
    data = counted_steps().transitions
    data = dataclasses.replace(data, action=data.action[:-1])
    with pytest.raises(UserError, match=r"'action' has the shape \[11\]; it must have 12 rows"):
        dataset(data, 2, name="x")


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"length": 13}, {"updates": 0}])
def test_sizes_out_of_range_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        dataset(counted_steps().transitions, **({"batch_size": 2} | wrong))
