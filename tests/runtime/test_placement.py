"""Runs on a mesh of devices: what is split, what it holds, and that it computes the same."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core import random, shared
from jaxrl.core.devices import spread
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.runtime import building, checkpoints, configuration, continuing, placement
from jaxrl.runtime.driver import Program
from jaxrl.runtime.traffic import count_traffic
from tests.contracts.devices import all_gathers, assert_equal, numbers

SMALL = {"num_envs": 8, "num_steps": 4, "num_shards": 4, "hidden": (4,), "epochs": 1}


def ppo(**changes):
    return jaxrl.algorithms.ppo(jaxrl.make("cartpole"), SMALL | changes)


def keys(count):
    return jax.vmap(random.key)(np.arange(count))


# ---------------------------------------------------------------------------------- the mesh asked


@pytest.mark.parametrize(
    ("asked", "members", "mesh"),
    [
        ({}, 4, {}),
        ({"devices": 4}, 8, {"seeds": 4}),
        ({"devices": 4}, 6, {"batch": 4}),
        ({"devices": 4}, 1, {"batch": 4}),
        ({"mesh": {"batch": 2, "seeds": 2}}, 4, {"seeds": 2, "batch": 2}),
        ({"mesh": {"batch": 2, "seeds": 1}, "devices": 2}, 4, {"batch": 2}),
    ],
)
def test_devices_split_the_seeds_if_they_can(asked, members, mesh):
    config = configuration.experiment({"algorithm": "ppo"} | asked)
    found = placement.read_mesh(config, members)
    assert found == mesh and list(found) == list(mesh)


def test_what_has_no_shards_runs_on_several_devices_by_its_seeds():
    config = configuration.experiment({"algorithm": "ppo", "devices": 2})
    nothing: Any = None
    algorithm = Algorithm("own", nothing, nothing, nothing)
    assert placement.layout(config, algorithm, 4) == {"seeds": 2}
    with pytest.raises(UserError, match="'ppo' runs on one device, or on several by its seeds"):
        placement.layout(config, algorithm, 1)


FOUR = {"num_envs": 8, "num_shards": 4}


@pytest.mark.parametrize(
    ("algorithm", "env", "agent"),
    [
        ("ppo", "cartpole", {"rollouts": FOUR}),
        ("dqn", "cartpole", {"replay": FOUR}),
        ("league", "kuhn_poker", {"ppo": {"rollouts": FOUR}}),
        ("neupl", "kuhn_poker", {"ppo": {"rollouts": FOUR}}),
        ("lifelong_ppo", "corners", {"ppo": {"rollouts": FOUR}}),
        ("evolution_strategy", "cartpole", {"population": 4}),
    ],
)
def test_shards_are_spread_evenly(algorithm, env, agent):
    settings = {"algorithm": algorithm, "env": env, "agent": agent}
    for devices in (1, 2, 4):
        config = configuration.experiment(settings | {"devices": devices})
        placement.layout(config, building.build(config)[1], 1)
    config = configuration.experiment(settings | {"devices": 8})
    with pytest.raises(UserError, match="over 8 devices, which does not divide its 4 shards"):
        placement.layout(config, building.build(config)[1], 1)


def test_devices_alone_set_the_shards():
    """`--devices 4` is enough, and the run may go on with 2 or 1."""
    config = configuration.experiment({"algorithm": "ppo", "devices": 4})
    algorithm = building.build(config)[1]
    assert placement.with_shards(config, algorithm, 1).agent.rollouts.num_shards == 4
    assert placement.with_shards(config, algorithm, 4) is config  # the seeds are split
    given = configuration.experiment({"algorithm": "ppo", "devices": 4, "agent": {"num_shards": 8}})
    assert placement.with_shards(given, building.build(given)[1], 1) is given


# ------------------------------------------------------------------------------ what devices hold


def test_what_each_device_holds():
    """Against a count by hand: the streams are split four ways, the seeds two ways."""
    layout = {"seeds": 2, "batch": 4}
    progress = Program(ppo(), 2, layout).start(keys(2))
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    total, streams = size(progress.run), size(progress.run.state.source.streams)
    first, seeds, both = placement.describe(progress, layout)
    held = (total - streams) / 2 + streams / 8
    assert first.startswith("Mesh of 8 devices (cpu): seeds=2, batch=4. Each holds ")
    assert f"Each holds {held:.0f} bytes of the run's {total / 1000:.3g} kB" in first
    assert seeds.startswith(f"  split over seeds: {(total - streams) // 2} bytes (agent.parts, ")
    assert both == f"  split over seeds and batch: {streams // 8} bytes (source.streams)"
    one = Program(ppo(), None, {"batch": 2}).start(random.key(0))
    assert placement.describe(one, {"batch": 2})[1].startswith("  on every device: ")


# -------------------------------------------------------------------------------- the same numbers


def test_seeds_on_devices_of_their_own_do_not_communicate():
    program = Program(ppo(), 4, {"seeds": 4})
    begun = program.start(keys(4))
    compiled = program._compile_chunk(begun).as_text()
    assert not re.search("all-reduce|all-gather|all-to-all|collective-permute", compiled)
    env = jaxrl.make("cartpole")
    played = program.compile_evaluation(program.evaluation(env, 3, True), begun.run)(begun.run)
    alone = Program(ppo(), 4)
    start = alone.start(keys(4))
    same = alone.compile_evaluation(alone.evaluation(env, 3, True), start.run)(start.run)
    assert_equal(played, same, 1e-5)
    ends = [p.compile(b)(b, 2) for p, b in ((program, begun), (alone, start))]
    assert_equal(*[numbers(end) for end in ends], 1e-5)


def test_a_batch_on_devices_reduces_gradients_and_gathers_no_trajectories():
    for changes in ({}, {"normalization.observation": True, "normalization.reward": True}):
        ends, algorithm = [], ppo(**changes)
        for layout in ({}, {"batch": 4}):
            program = Program(algorithm, None, layout)
            begun = program.start(random.key(0))
            compiled = program._compile_chunk(begun)
            assert ("all-reduce" in compiled.as_text()) == bool(layout)
            assert all(size < algorithm.env_steps for size in all_gathers(compiled))
            ends.append(program.compile(begun)(begun, 2))
        # With normalization, this holds only of statistics over all environments.
        assert_equal(*[numbers(end.run.state) for end in ends], 1e-5)


def test_a_checkpoint_of_eight_devices_is_continued_on_one_and_two(tmp_path):
    layouts = ({"seeds": 2, "batch": 4}, {"batch": 2}, {"seeds": 2}, {})
    programs = [Program(ppo(), 2, layout) for layout in layouts]
    begun = programs[0].start(keys(2))
    halfway = programs[0].compile(begun)(begun, 1)
    path = checkpoints.save(tmp_path, 1, checkpoints.copy_to_host(shared.strip(halfway)), {})
    ends = []
    for program in programs:
        restored = program.place(continuing.restore(path, program.shapes(keys(2)))[0])
        ends.append(numbers(program.compile(restored)(restored, 1)))
    for end in ends[1:]:
        assert_equal(ends[0], end, 1e-5)


def test_episodes_and_populations_are_spread():
    """The leading axis is split if it divides; nothing happens without a mesh."""
    mesh = placement.make_mesh({"batch": 2, "fsdp": 2})
    x = jnp.arange(8.0)
    assert spread(x) is x
    with jax.set_mesh(mesh):
        split, odd, scalar = jax.jit(spread)((x, x[:3], x[0]))
    assert split.sharding.shard_shape((8,)) == (2,)
    assert odd.sharding.is_fully_replicated and scalar.sharding.is_fully_replicated
    env = jaxrl.make("cartpole")
    policy = ppo().policy(jaxrl.start(ppo(), random.key(0)).state)
    play = lambda key: evaluate(env, policy, key, 8)
    alone = jax.jit(play)(random.key(1))
    with jax.set_mesh(mesh):
        played = jax.jit(play)(random.key(1))
    assert_equal(alone.returns, played.returns, 1e-6)
    assert played.returns.sharding.shard_shape((8,)) == (2,)


# ------------------------------------------------------------------------------------ transformers

TOKENS = {
    "prompts": 4, "answers": 2, "num_shards": 4, "epochs": 1, "minibatches": 1, "transformer": 1,
    "hidden": (8,), "flat": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def grpo():
    return jaxrl.algorithms.grpo(jaxrl.make("addition"), TOKENS)


@pytest.fixture(scope="module")
def updated_alone(grpo):
    program = Program(grpo)
    begun = program.start(random.key(0))
    return numbers(program.compile(begun)(begun, 1).run.state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [{"model": 2}, {"fsdp": 2}, {"batch": 2, "fsdp": 2, "model": 2}],
    ids=lambda layout: "-".join(layout),
)
def test_parameters_of_a_transformer_are_split(grpo, updated_alone, layout):
    program = Program(grpo, None, layout)
    begun = program.start(random.key(0))
    part = begun.run.state.agent.parts["actor_critic"]
    by_model, by_size = layout.get("model", 1), layout.get("fsdp", 1)
    for tree in (part.params["params"], part.optimizer.mu["params"], part.optimizer.nu["params"]):
        block = tree["core"]["blocks_0"]
        # The axis that the rules split, and the largest of the others, which `fsdp` splits.
        for x, axis in ((block["grow"]["kernel"], 1), (block["shrink"]["kernel"], 0)):
            held = list(x.shape)
            held[axis] //= by_model
            held[1 - axis if by_model > 1 else axis] //= by_size
            assert x.sharding.shard_shape(x.shape) == tuple(held)
        bias = block["mix"]["bias"]  # added after the sum over devices
        assert bias.sharding.shard_shape(bias.shape) == (bias.size // by_size,)
    compiled = program._compile_chunk(begun)
    if layout == {"fsdp": 2}:
        # Its kernels are gathered once for playing, learning and the reference each, and gradients
        # are summed. Activations stay where they are.
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(part.params))
        sent = count_traffic(compiled.as_text())
        assert sent.open_loops == 1 and 2 * size / 2 <= sent.total < 5 * size
    end = compiled(begun.run, begun.row, np.int32(1)).run.state
    assert_equal(updated_alone, numbers(end), 1e-5)


def test_an_axis_that_splits_nothing_is_refused():
    with pytest.raises(UserError, match="has no parameters that model=2 can split; this axis is"):
        Program(ppo(), None, {"model": 2}).start(random.key(0))
    with pytest.raises(UserError, match="has no parameters that fsdp=3 can split"):
        Program(ppo(), None, {"fsdp": 3}).start(random.key(0))
