"""What a source hands out is the same on one device and on four, where each gets its shards."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrl.core import random
from jaxrl.core.types import Policy
from jaxrl.sources import dataset, episodes, mixed, proportional, replay, rollouts
from jaxrl.sources.recorded import recorded
from jaxrl.sources.rollouts import SHARDS
from tests.datasets.files import counted, world

DEVICES, STREAMS, ITEMS = 4, 8, 16


def act(state, timestep, memory, key, greedy):
    action = jax.random.randint(key, timestep.reward.shape, 0, 2)
    return action, memory, {}


POLICY = Policy(act, lambda n: jnp.zeros((n, 3)), ())


def sources():
    data, played = counted().transitions, rollouts(world(), STREAMS, 2)
    own = replay(played, 160, ITEMS, warmup=32, num_shards=DEVICES)
    return {
        "episodes": episodes(world(), STREAMS, num_shards=DEVICES),
        "dataset": dataset(data, ITEMS, sampler=proportional(), num_shards=DEVICES),
        "windows": dataset(data, ITEMS, length=3, num_shards=DEVICES),
        "mixed": mixed(dataset(data, ITEMS, num_shards=DEVICES), own, DEVICES),
        "recorded": recorded(world(), POLICY, 6, ITEMS, num_shards=DEVICES),
        "replay": replay(
            played, 160, ITEMS, length=3, sampler=proportional(), warmup=32, keep_memory=False,
            num_shards=DEVICES,
        ),
    }  # fmt: skip


ALL = sources()


def step(states, key):
    """Collect, sample, a number as a gradient would be, and feedback; of every source."""
    new, batches, means = {}, {}, {}
    for name, source in ALL.items():
        state, fresh, _ = source.collect(states[name], POLICY, key)
        batch = source.sample(state, fresh, key)
        weight = 1.0 if batch.weight is None else batch.weight
        means[name] = jnp.mean(weight * batch.transitions.next_observation[..., 0] ** 2)
        error = jnp.abs(batch.transitions.reward) + 1
        new[name] = source.feedback(state, batch, error.reshape(-1, error.shape[-1]).sum(0))
        batches[name] = batch.transitions
    return new, batches, means


@pytest.fixture(scope="module")
def ran():
    """On 1 and on 4 devices: what a second step gives, and the program."""
    begin = lambda key: {k: s.init(key, s.hyper, POLICY) for k, s in ALL.items()}
    states = jax.jit(begin)(random.key(0))

    def on(devices):
        mesh = jax.make_mesh(
            (devices,), (SHARDS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
        )
        is_spec = lambda x: isinstance(x, PartitionSpec)
        places = {
            name: jax.tree.map(
                lambda spec, part: jax.tree.map(lambda _: NamedSharding(mesh, spec), part),
                source.partition,
                states[name],
                is_leaf=is_spec,
            )
            for name, source in ALL.items()
        }
        placed = jax.tree.map(jax.device_put, states, places)
        go = jax.jit(step, out_shardings=(places, None, None))
        program = go.lower(placed, random.key(1)).compile()
        placed, *_ = program(placed, random.key(1))
        return program(placed, random.key(2)), program.as_text()

    return on(1), on(DEVICES)


@pytest.mark.parametrize("name", ALL)
def test_batches_are_split_and_the_same(ran, name):
    (one, _), (four, _) = ran
    for x in jax.tree.leaves(four[1][name]):
        axis = 0 if name in ("dataset", "mixed") else 1
        assert len(x.sharding.spec) > axis and x.sharding.spec[axis] == SHARDS, x.sharding
    for part, other in zip(one, four, strict=True):
        for a, b in zip(jax.tree.leaves(part[name]), jax.tree.leaves(other[name]), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


def test_no_trajectories_are_gathered(ran):
    """Only priorities of a batch are, one number for each item."""
    text = ran[1][1]
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* all-gather\(", text)
    sizes = [np.prod([int(n) for n in shape.split(",") if n]) for shape in shapes]
    print(shapes)
    assert "all-reduce" in text
    assert all(size <= ITEMS for size in sizes), shapes
