"""Contract of a few algorithms with the loop, sweeps and devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import metrics as m
from jaxrl.core import random, spaces
from jaxrl.core.devices import BATCH
from jaxrl.core.hyper import read_hyper
from jaxrl.core.settings import full_name
from jaxrl.core.train import advance, start
from jaxrl.core.types import Algorithm
from tests.contracts.algorithms import (
    ALGORITHMS,
    algorithm,
    driver,
    environment,
    keys,
    members,
    starter,
)
from tests.contracts.devices import all_gathers, assert_equal, compile_steps
from tests.contracts.structure import check_structure
from tests.learning.probes import Probe, play

NAMES = list(ALGORITHMS)
LONG = Probe(match=1.0, sign=0.5, length=3).vector()  # something to learn and to remember
everyone = pytest.mark.parametrize("name", NAMES)


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.mark.slow
@everyone
def test_structure(name):
    a = algorithm(name)
    check_structure(a)
    assert isinstance(a, Algorithm)
    assert a is ALGORITHMS[name].build(environment(ALGORITHMS[name].continuous))
    run = jax.eval_shape(lambda: start(a, random.key(0)))
    assert "diverged" in jax.eval_shape(lambda run: advance(a, run)[1], run)


@functools.cache
def swept(name):
    """Member 0 has the defaults; member i + 1 has hyperparameter i changed; all share a key."""
    a, count = algorithm(name), members(name)
    hyper = {}
    for i, (key, value) in enumerate(sorted(a.hyper.items())):
        changed = 0.3 if np.isinf(value) or value == 0 else 0.9 * value
        hyper[key] = jnp.full(count, value).at[i + 1].set(changed)
    same = jnp.broadcast_to(random.key(0), (count,))
    runs, rows = starter(name)(same, hyper)
    after, rows = driver(name)(play(runs, np.tile(LONG, (members(name), 1))), rows, 3)
    return hyper, after, rows


@pytest.mark.slow
@everyone
def test_every_hyper_parameter_takes_a_value_for_each_member(name):
    hyper, after, rows = swept(name)
    stored = read_hyper(after)
    for key, values in hyper.items():
        np.testing.assert_array_equal(stored[key], values)
    assert (rows["diverged"].step == m.NEVER).all()
    # The rate of learning reaches the parameters; members that nothing changed are equal.
    leaves = [np.asarray(x) for x in jax.tree.leaves(after.state.agent) if x.dtype == jnp.float32]
    index = sorted(hyper).index(full_name("learning_rate", hyper)) + 1
    assert any((x[0] != x[index]).any() for x in leaves if x.ndim > 2)
    for i in range(len(hyper) + 1, members(name)):
        assert all(np.array_equal(x[0], x[i]) for x in leaves)


@everyone
def test_seeds_differ_and_their_runs_stay_finite(name):
    default = {k: jnp.broadcast_to(v, members(name)) for k, v in algorithm(name).hyper.items()}
    runs, rows = starter(name)(keys(name, 3), default)
    after, rows = driver(name)(play(runs, np.tile(LONG, (members(name), 1))), rows, 3)
    assert driver(name)._cache_size() == 1
    np.testing.assert_array_equal(after.step, 3)
    np.testing.assert_array_equal(rows["diverged"].step, m.NEVER)
    weights = [np.asarray(x) for x in jax.tree.leaves(after.state.agent) if x.ndim == 3]
    different = [len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x) for x in weights]
    assert np.mean(different) >= 0.5  # what is never updated may have zero moments in all
    assert np.isfinite(
        jax.tree.leaves(m.values({k: v for k, v in rows.items() if k != "diverged"}))
    ).all()


@pytest.mark.slow
@everyone
def test_the_policy_acts_greedily_and_not(name):
    env = environment(ALGORITHMS[name].continuous)
    run = start(algorithm(name), random.key(0))
    policy = algorithm(name).policy(run.state)
    _, timestep = jax.vmap(env.reset, in_axes=(0, None))(
        jax.random.split(random.key(1), 64), env.params
    )
    act = jax.jit(lambda policy, key, greedy: policy.act(
        policy.state, timestep, policy.memory(64), key, greedy
    ), static_argnums=2)  # fmt: skip
    key = random.key(0)
    others = jax.random.split(random.key(1), 16)  # noise in the weights seldom changes an action
    for greedy in (True, False):
        action, memory, _ = act(policy, key, greedy)
        fits = jax.vmap(lambda a: jnp.shape(a) == env.action_space.shape)(action)
        assert fits.all() and action.dtype == env.action_space.dtype
        assert shapes(memory) == shapes(policy.memory(64))
        again = jax.vmap(lambda key: act(policy, key, greedy)[0])(others)  # noqa: B023
        same = (action == again).all()
        assert same == greedy
    if not ALGORITHMS[name].continuous:
        assert jax.vmap(lambda a: spaces.contains(env.action_space, a))(action).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in NAMES if ALGORITHMS[n].sharded and n not in ("a2c", "ppo continuous")]
)
def test_one_program_means_the_same_on_four_devices(name):
    one, program = compile_steps(algorithm(name), random.key(0), 3, 1)
    alone, row = program(one)
    four, program = compile_steps(algorithm(name), random.key(0), 3, 4)
    shared, shared_row = program(four)
    source = getattr(shared.state.source, "source", shared.state.source)  # a replay's
    streams = [x for x in jax.tree.leaves(source.streams) if x.ndim]
    assert all(x.sharding.spec[0] == BATCH for x in streams)
    assert_equal((alone.state, row), (shared.state, shared_row))
    assert all(size < algorithm(name).env_steps for size in all_gathers(program))
    assert "all-reduce" in program.as_text()
