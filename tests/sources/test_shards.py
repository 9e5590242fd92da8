"""A source hands out the same on one device and on four, where each device gets its shards."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl.core import random
from jaxrl.core.devices import BATCH
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.sources import dataset, episodes, mixed, proportional, replay, rollouts
from jaxrl.sources.recordings import recordings
from tests.contracts import devices
from tests.datasets.files import counted_steps, environment

SHARDED, STREAMS, ITEMS = 4, 8, 16


def act(state, timestep, memory, key, greedy):
    action = jax.random.randint(key, timestep.reward.shape, 0, 2)
    return action, memory, {}


POLICY = Policy(act, lambda n: jnp.zeros((n, 3)), ())


def sources():
    data, played = counted_steps().transitions, rollouts(environment(), STREAMS, 2)
    own = replay(played, 160, ITEMS, warmup=32, num_shards=SHARDED)
    return {
        "episodes": episodes(environment(), STREAMS, num_shards=SHARDED),
        "dataset": dataset(data, ITEMS, 3, proportional(), num_shards=SHARDED),
        "mixed": mixed(dataset(data, ITEMS, num_shards=SHARDED), own, SHARDED),
        "recorded": recordings(environment(), POLICY, 6, ITEMS, num_shards=SHARDED),
        "replay": replay(
            played, 160, ITEMS, 3, proportional(), warmup=32, num_shards=SHARDED
        ),
    }  # fmt: skip


ALL = sources()


def step(states, key):
    """Make a step for every source: collect, sample, reduce as a gradient would, and feed back."""
    new, batches, means = {}, {}, {}
    for name, source in ALL.items():
        state, fresh, _ = source.collect(states[name], POLICY, key)
        batch = source.sample(state, fresh, key)
        weight = 1.0 if batch.weight is None else batch.weight
        means[name] = jnp.mean(weight * batch.transitions.next_observation[..., 0] ** 2)
        error = jnp.abs(batch.transitions.reward) + 1
        priority = error.reshape(-1, error.shape[-1]).sum(0)
        new[name] = source.feedback(state, batch, {"priority": priority})
        batches[name] = batch.transitions
    return new, batches, means


@pytest.fixture(scope="module")
def run_on():
    """Return the results of a second step on 1 and on 4 devices, and the program."""
    begin = lambda key: {k: s.init(key, s.hyper, POLICY) for k, s in ALL.items()}
    states = jax.jit(begin)(random.key(0))

    def on(count):
        mesh, places = devices.mesh(count), {}
        for name, source in ALL.items():
            places[name] = devices.shardings(mesh, source.partition, states[name])
        placed = jax.tree.map(jax.device_put, states, places)
        go = jax.jit(step, out_shardings=(places, None, None))
        program = go.lower(placed, random.key(1)).compile()
        placed, *_ = program(placed, random.key(1))
        return program(placed, random.key(2)), program

    return on(1), on(SHARDED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_batches_are_split_and_the_same(run_on, name):
    (one, _), (four, _) = run_on
    batch = four[1][name]
    axis = batch.reward.ndim - 1
    for x in (batch.observation, batch.action, batch.reward):
        assert x.sharding.spec[axis] == BATCH
    devices.assert_equal([part[name] for part in one], [part[name] for part in four], 1e-5)


def test_no_trajectories_are_gathered(run_on):
    """Only the priorities of a batch and their places are."""
    program = run_on[1][1]
    assert "all-reduce" in program.as_text()
    assert all(size <= 2 * ITEMS for size in devices.all_gathers(program))


def test_sizes_that_do_not_divide():
    data = counted_steps().transitions
    for build in (
        lambda: episodes(environment(), 6, num_shards=4),
        lambda: dataset(data, 6, num_shards=4),
        lambda: recordings(environment(), POLICY, 6, 6, num_shards=4),
        lambda: replay(rollouts(environment(), 4, 1), 100, 6, num_shards=4),
    ):
        with pytest.raises(UserError, match="=6 does not divide into num_shards=4"):
            build()
