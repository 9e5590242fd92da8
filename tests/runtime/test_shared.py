"""A dataset is in memory once, whatever shares it, and in no checkpoint."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random, shared
from jaxrl.core.errors import UserError
from jaxrl.core.train import advance, start, train
from jaxrl.datasets import minari_format
from jaxrl.datasets.data import Dataset
from jaxrl.datasets.transitions import from_episodes
from jaxrl.runtime import continuing
from jaxrl.runtime.driver import Program
from jaxrl.sources import dataset, proportional
from tests.runtime import averaging, tiny
from tests.runtime.test_driver import bits

SEEDS = 8
STEPS = 6
STORED = 20_000


def data(steps: int, seed: int = 0) -> Dataset:
    """Return two random episodes in the spaces of pendulum."""
    rng = np.random.default_rng(seed)
    number = lambda *shape: rng.uniform(-1, 1, shape).astype(np.float32)
    no = np.zeros(steps // 2, bool)
    episode = lambda: {
        "observations": number(steps // 2 + 1, 3),
        "actions": number(steps // 2, 1),
        "rewards": number(steps // 2),
        "terminations": no,
        "truncations": no,
    }
    return Dataset("chance", from_episodes([episode(), episode()]))


def size(tree) -> int:
    return sum(
        x.nbytes for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


HELD = sum(x.nbytes for x in jax.tree.leaves(data(STORED).transitions))


@pytest.fixture(scope="module")
def algorithm():
    source = dataset(data(STORED).transitions, 4, sampler=proportional(), num_shards=4)
    return averaging.on(source)


@pytest.fixture(scope="module")
def alone(algorithm):
    """Return a function (seed, rate) -> run with one member."""
    go = jax.jit(lambda run: train(algorithm, run, STEPS))
    return lambda seed, rate: go(start(algorithm, random.key(seed), {"rate": rate}))[0]


@pytest.mark.slow
def test_members_share_one_copy(algorithm, alone):
    """Seeds and rates differ, and each member learns what it would learn alone."""
    program, rates = Program(algorithm, SEEDS), np.linspace(0.1, 0.9, SEEDS, dtype=np.float32)
    keys = jax.vmap(random.key)(np.arange(SEEDS, dtype=np.uint32))
    progress = program.start(keys, {"rate": rates})
    priorities = size(progress.run.state.source.sampler)  # each member's own
    assert size(progress) < HELD + priorities + 1000
    shapes = program.shapes(keys)
    assert jax.tree.structure(shapes) == jax.tree.structure(progress)
    assert [x.shape for x in jax.tree.leaves(shapes)] == [
        x.shape for x in jax.tree.leaves(progress)
    ]
    chunk = program.compile(progress)
    progress = chunk(progress, STEPS)
    assert size(progress) < HELD + priorities + 1000
    for i in (0, SEEDS - 1):
        one = shared.member(progress.run, i)
        other = alone(i, rates[i])
        np.testing.assert_array_equal(
            one.state.source.transitions.value.reward, other.state.source.transitions.value.reward
        )
        np.testing.assert_allclose(one.state.agent.mean, other.state.agent.mean, rtol=1e-5)
    means = progress.run.state.agent.mean
    assert len(np.unique(means)) == SEEDS

    # Each device has all data, and a part of each batch.
    program = Program(algorithm, SEEDS, {"batch": 4})
    progress = program.start(keys, {"rate": rates})
    source = progress.run.state.source
    order = source.source.order
    assert order.sharding.shard_shape(order.shape) == (SEEDS, order.size // SEEDS // 4)
    assert source.transitions.value.reward.sharding.is_fully_replicated
    chunk = program.compile(progress)
    np.testing.assert_allclose(chunk(progress, STEPS).run.state.agent.mean, means, rtol=1e-5)


def test_no_program_captures_the_arrays(algorithm):
    run = start(algorithm, random.key(0))
    texts = [
        jax.jit(lambda key: start(algorithm, key)).lower(random.key(0)).as_text(),
        jax.jit(lambda run: advance(algorithm, run)).lower(run).as_text(),
    ]
    assert all(len(text) < HELD / 4 for text in texts)


@pytest.mark.slow
def test_plain_vmap_copies_and_axes_do_not(algorithm):
    keys = jax.random.split(random.key(0), 3)
    begin = lambda key: start(algorithm, key)
    go = lambda run: train(algorithm, run, STEPS)
    one = jax.eval_shape(begin, keys[0])
    copied = jax.vmap(begin)(keys)
    runs = jax.vmap(begin, out_axes=shared.axes(one))(keys)
    assert size(copied.state.source.transitions.value) == 3 * HELD
    assert size(runs.state.source.transitions.value) == HELD
    axes = shared.axes(runs)
    runs, rows = jax.jit(jax.vmap(go, (axes,), (axes, 0)))(runs)
    copied, others = jax.jit(jax.vmap(go))(copied)
    assert size(runs.state.source.transitions.value) == HELD
    assert bits(shared.member(runs, 1)) == bits(jax.tree.map(lambda x: x[1], copied))
    assert bits(rows) == bits(others)


# ------------------------------------------------------------------------------- checkpoints


def write(path, steps, seed=0):
    path.unlink(missing_ok=True)
    minari_format.write(path, data(steps, seed))


def words(folder, *more):
    return [
        "--algorithm", "tests.runtime.averaging:averaging", "--env", "pendulum", "--quiet",
        "--agent.data.name", str(folder / "data.hdf5"), "--agent.data.batch_size", "4",
        "--agent.data.updates", "2", "--steps", "40", "--log_every", "8", "--seeds", "2",
        "--checkpoint_every", "16", "--evaluate_every", "-1", "--out", str(folder), *more,
    ]  # fmt: skip


def call(*argv):
    return tiny.command_line.call(tiny.train_script.main, list(argv))


BESIDE_DATA = ["--agent.data.num_envs=2", "--agent.data.num_steps=2", "--agent.data.warmup=4"]
BESIDE_DATA += ["--agent.data.capacity=64"]


@pytest.mark.slow
def test_a_checkpoint_holds_no_data_and_goes_on_to_the_same_bits(tmp_path, capsys):
    """Two seeds on data and in an environment."""
    pytest.importorskip("h5py")
    write(tmp_path / "data.hdf5", STORED)
    assert call(*words(tmp_path, *BESIDE_DATA, "--name", "whole")) == 0
    whole, folder = tmp_path / "whole", tmp_path / "run"
    files = continuing.newest_checkpoint(whole).rglob("*")
    assert sum(p.stat().st_size for p in files if p.is_file()) < HELD / 10

    def cut():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        shutil.rmtree(continuing.newest_checkpoint(folder))
        (folder / "summary.json").unlink()

    cut()
    assert call("--resume", str(folder), "--trust") == 0
    tiny.assert_same_run(folder, whole)
    assert len(continuing.load_all(folder, trust=True)) == 2
    write(tmp_path / "data.hdf5", STORED, seed=1)
    cut()
    capsys.readouterr()
    assert call("--resume", str(folder), "--trust") == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "was made with other numbers in the dataset" in said
    with pytest.raises(UserError, match="other numbers"):
        continuing.load(folder, trust=True)
