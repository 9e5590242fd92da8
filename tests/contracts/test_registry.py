"""What every registered algorithm promises to the loop, to sweeps, to devices and to accelerators,
at the smallest settings that its module says (`TINY`).

The first half traces and compiles nothing. The second runs one compiled program for each name: CI
does so for the `CORE` and for a rota of the others, which another state of the code turns on;
`make test-all` for all.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms import registry
from jaxrl.algorithms.meta import lpg
from jaxrl.core import metrics as m
from jaxrl.core import random, shared, spaces
from jaxrl.core.hyper import hypers, read_hyper
from jaxrl.core.train import advance, start
from jaxrl.runtime import checkpoints, continuing
from jaxrl.runtime.driver import Program, Progress
from tests.contracts.structure import check_structure
from tests.rota import state

NAMES = registry.names()
CORE = ("dqn", "iql", "muzero", "ppo")
ROTA = 6


def rota(names=NAMES, core=CORE, size=ROTA) -> set[str]:
    """`size` of the other names."""
    others = [name for name in names if name not in core]
    return {others[(state() + i) % len(others)] for i in range(min(size, len(others)))}


TODAY = rota() | set(CORE)
everyone = pytest.mark.parametrize("name", NAMES)
in_turn = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in TODAY else pytest.mark.rest) for n in NAMES],
)


@functools.cache
def tiny(name):
    env, config = registry.tiny(name)
    if name == "lpg":  # which learns by a rule that others evolved: here one that nobody did
        state = lpg.agent(env, config).init(random.key(0), hypers(config))
        path = Path(tempfile.mkdtemp()) / "rule.npz"
        lpg.save_rule(path, state.rule)
        config = dataclasses.replace(config, rule=str(path))
    return env, registry.builder(name)[0](env, config)


# Datasets are a few random steps.
pytestmark = pytest.mark.usefixtures("no_training")


def test_the_rota_comes_round():
    assert rota(("a", "b", "c"), core=("a",), size=5) == {"b", "c"}
    assert len(rota()) == min(ROTA, len(NAMES) - len(CORE))


# -------------------------------------------------------------------------------- shapes alone


@everyone
def test_structure(name):
    """A step gives back what it takes, and each hyperparameter may differ between members."""
    algorithm = tiny(name)[1]
    check_structure(algorithm)
    run = begun(algorithm)
    metrics = jax.eval_shape(lambda run: advance(algorithm, run)[1], run)
    assert "diverged" in metrics
    measured = jax.eval_shape(algorithm.measure, run.state)
    assert all(x.shape == () for x in measured.values()) and measured.keys() <= set(
        algorithm.scores
    )
    assert algorithm.scores.keys() <= metrics.keys() | measured.keys()


@pytest.mark.parametrize(
    ("name", "shown"),
    {
        "map_elites": ["coverage", "QD-score"],
        "lifelong_ppo": ["performance", "forgetting"],
        "league": ["won", "exploitability"],
        "spiral": ["exploitability"],
        "general_utilities": ["utility"],
        "grpo": ["pass@1"],
        "ppo": [],
    }.items(),
)
def test_its_own_scores_have_names(name, shown):
    assert list(tiny(name)[1].scores.values()) == shown


def begun(algorithm):
    return jax.eval_shape(lambda: start(algorithm, random.key(0)))


@everyone
def test_the_policy_acts_in_its_environment(name):
    env, algorithm = tiny(name)

    def act(greedy):
        policy = algorithm.policy(start(algorithm, random.key(0)).state)
        reset = jax.vmap(env.reset, in_axes=(0, None))
        timestep = reset(jax.random.split(random.key(1), 3), env.params)[1]
        memory = policy.memory(3)
        action, after, _ = policy.act(policy.state, timestep, memory, random.key(2), greedy)
        example = jax.tree.map(lambda x: jnp.stack([x] * 3), spaces.example(env.action_space))
        return (action, after), (example, memory)

    for greedy in (True, False):
        got, expected = jax.eval_shape(functools.partial(act, greedy))
        alike = lambda x, y: x.shape == y.shape and x.dtype == y.dtype
        assert all(jax.tree.leaves(jax.tree.map(alike, got, expected)))


@everyone
def test_it_lowers_for_accelerators(name):
    """XLA has not seen it there, but every operation has a rule for a TPU and for a GPU."""
    algorithm = tiny(name)[1]
    step = jax.jit(functools.partial(advance, algorithm)).trace(begun(algorithm))
    for platform in ("tpu", "cuda"):
        assert "stablehlo" in step.lower(lowering_platforms=(platform,)).as_text()


# --------------------------------------------------------------------------------- whole programs


@in_turn
def test_members_checkpoints_and_resume(name, tmp_path):
    """Members 0 and 1 differ in the seed, each further one in one hyperparameter from member 0.
    Three steps at once and three with a checkpoint between end in the same bits."""
    algorithm = tiny(name)[1]
    names = sorted(algorithm.hyper)
    count = len(names) + 2
    hyper = {n: jnp.full(count, algorithm.hyper[n], jnp.float32) for n in names}
    for i, n in enumerate(names):
        hyper[n] = hyper[n].at[i + 2].set(other(algorithm.hyper[n]))
    seeds = jnp.zeros(count, int).at[1].set(1)
    program = Program(algorithm, members=count)
    keys = jax.vmap(random.key)(seeds)
    first = program.start(keys, hyper)
    for n, values in hyper.items():
        np.testing.assert_array_equal(read_hyper(first.run)[n], values)
    chunk = program.compile(first)

    straight = chunk(program.start(keys, hyper), 3)
    halfway = chunk(first, 2)
    path = checkpoints.save(tmp_path, 2, shared.strip(halfway), {})
    resumed, _ = continuing.restored(path, program.shapes(keys))
    after = chunk(program.place(resumed), 1)
    assert bits(after) == bits(straight)

    assert (np.asarray(after.row["diverged"].step) == m.NEVER).all()
    state = [np.asarray(x) for x in numbers(after.run.state) if x.dtype == jnp.float32]
    differs = lambda i: any(not np.array_equal(x[0], x[i], equal_nan=True) for x in state)
    assert all(differs(i) for i in range(1, count))  # the seed, and each value stored


def other(value):
    """Another value near a hyperparameter's default that its range allows."""
    return 0.3 if np.isinf(value) or value == 0 else 0.9 * float(value)


def numbers(tree):
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]


def bits(progress: Progress):
    return [np.asarray(x).tobytes() for x in numbers(progress)]


def sharded(name):
    return (tiny(name)[1].num_shards or 1) >= 4


@in_turn
def test_one_program_means_the_same_on_four_devices(name):
    algorithm = tiny(name)[1]
    if not sharded(name):
        pytest.skip(f"{name} has no shards")
    ends = []
    for devices in (1, 4):
        program = Program(algorithm, devices=devices)
        begun = program.start(random.key(0))
        ends.append(program.compile(begun)(begun, 2))
    for a, b in zip(*(jax.tree.leaves((numbers(e.run.state), e.row)) for e in ends), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-3)
