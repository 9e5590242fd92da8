"""Populations with numbers that are not finite: failed policies and diverged searches."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.evolution import evolution_strategy, genetic, map_elites, ppga
from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.commands import command_line
from jaxrl.commands import train as train_script
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.hyper import replace_hyper, without_hyper
from jaxrl.core.train import advance, start
from jaxrl.runtime import configuration
from tests.algorithms.evolution.cliff import cliff
from tests.runtime import tiny

CLIFF = cliff()
CELLS = {"descriptor": ("observation.0",), "low": (-1.0,), "high": (1.0,), "cells": (4,)}
SETTINGS = {
    "evolution_strategy": {"strategy": "openai", "population": 4},
    "genetic": {"population": 4, "parents": 2, "hidden": (), "max_generations": 8},
    "map_elites": {"population": 4, "hidden": (), **CELLS},
    "ppga": {
        "population": 4, "gradient_updates": 1, "walk_updates": 1, **CELLS,
        "ppo": {
            "rollouts": {"num_envs": 2, "num_steps": 4}, "torso": {"hidden": (4,)},
            "passes": {"minibatches": 1, "epochs": 1},
        },
    },
}  # fmt: skip
MODULES = {m.__name__.split(".")[-1]: m for m in (evolution_strategy, genetic, map_elites, ppga)}
# Hyperparameters that break the search in its third and fourth step, and the step that diverges.
BREAKS = (
    ("evolution_strategy", {"sigma": np.inf}, 2),  # a search distribution that is not finite
    ("evolution_strategy", {"sigma": 1e6}, 3),  # sampled in the next step: all returns are NaN
    ("genetic", {"mutation": np.inf}, 2),  # the next generation's weights
    ("map_elites", {"mutation": 1e6}, 2),  # all returns are NaN
    ("map_elites", {"mutation": np.inf}, 2),
    ("ppga", {"ppo.optimizer.learning_rate": 1e30}, 2),  # in its PPO
)


@functools.cache
def algorithm(name):
    module = MODULES[name]
    return getattr(module, name)(CLIFF, configuration.override(module.Config(), SETTINGS[name]))


@functools.cache
def stepper(name):
    return jax.jit(jax.vmap(functools.partial(advance, algorithm(name))))


def run_two_members(name, changes):
    """Run six steps of two members, the second with the hyperparameters `changes` in steps 2 and 3.

    Returns the runs before each step and after the last, and the step at which each member reports
    divergence.
    """
    begin = jax.jit(jax.vmap(functools.partial(start, algorithm(name))))
    run, first = begin(jnp.stack([random.key(0), random.key(1)])), np.full(2, m.NEVER)
    runs = [run]
    for i in range(6):
        if i in (2, 4):
            usual = {k: algorithm(name).hyper[k] for k in changes}
            second = changes if i == 2 else usual
            each = {k: jnp.float32([usual[k], second[k]]) for k in changes}
            run = dataclasses.replace(run, state=replace_hyper(run.state, each))
        run, row = stepper(name)(run)
        first = np.minimum(first, row["diverged"].step)
        runs.append(run)
    return runs, first


def leaves(run, member):
    """Return the leaves of a member's state, without counters and hyperparameters."""
    found = without_hyper(jax.tree.map(lambda x: x[member], run.state))
    state = [x for name, x in found.items() if name not in (".steps", ".diverged")]
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in state]


def same(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "changes", "at"), BREAKS)
def test_only_the_member_that_diverges_is_frozen(name, changes, at):
    runs, first = run_two_members(name, changes)
    assert first.tolist() == runs[-1].state.diverged.tolist() == [m.NEVER, at]
    assert runs[-1].state.steps.tolist() == [6, 6]
    for i, (before, after) in enumerate(itertools.pairwise(runs)):
        assert same(leaves(before, 1), leaves(after, 1)) == (i >= at)
        assert before.state.diverged[1] == (m.NEVER if i <= at else at)
    for x in leaves(runs[-1], 1):
        assert not np.isnan(x).any() and not np.isposinf(x).any()  # -inf: a cell without an elite
    unchanged, never = run_two_members(name, {})
    assert (never == m.NEVER).all()
    assert all(same(leaves(a, 0), leaves(b, 0)) for a, b in zip(runs, unchanged, strict=True))


@pytest.mark.parametrize("strategy", ["csa", "sep_cma", "cma"])
def test_a_step_size_that_overflows_is_caught(strategy):
    """Uses a cliff without an edge, where rewards, and so the search, are unbounded."""
    config = evolution_strategy.Config(strategy=strategy, population=8)
    a = evolution_strategy.evolution_strategy(cliff(np.inf), config)

    def go(sigma):
        def step(run, _):
            after, row = advance(a, run)
            return after, (run.state, row["diverged"].step)

        return jax.lax.scan(step, start(a, random.key(0), {"sigma": sigma}), None, 40)

    run, (states, first) = jax.jit(jax.vmap(go))(jnp.float32([0.5, 1e17]))
    assert run.state.diverged[0] == m.NEVER == first[0].min()
    at = int(run.state.diverged[1])
    assert 1 < at < 40 and first[1].min() == at
    means = np.asarray(states.own.mean[1])
    assert np.isfinite(means).all() and np.linalg.norm(np.float64(means[at])) > 1e18
    assert (means[at:] == means[at]).all() and (means[1 : at + 1] != means[:at]).any(1).all()
    for x in jax.tree.leaves(states.own):
        assert np.isfinite(x).all()


def test_a_failed_policy_is_the_worst_and_does_not_affect_the_others():
    space = policies(CLIFF, (), "tanh")
    vectors = jnp.stack([jnp.full(space.size, v) for v in (0.5, 1e6, np.inf, -0.5)])
    vectors = vectors.at[2, 0].set(np.nan)
    describe = descriptor(CLIFF, ("observation.0",))
    scores = scoring.score(CLIFF, space, vectors, random.key(0), 2, describe)
    assert np.isneginf(scores.fitness).tolist() == [False, True, True, False]
    reported = m.values(scoring.statistics(scores))
    assert reported["failed"] == 0.5 and reported["best_return"] == scores.fitness[0]
    np.testing.assert_allclose(reported["episode_return"], scores.fitness[jnp.array([0, 3])].mean())
    none = scoring.statistics(scoring.score(CLIFF, space, vectors[1:3], random.key(0)))
    assert m.values(none)["best_return"] == -np.inf and np.isnan(m.values(none)["episode_return"])


def test_a_descriptor_that_is_not_finite_is_a_failure_too():
    def bare(timestep):
        where = timestep.observation
        return jnp.where(where > 0, where, jnp.nan)

    space = policies(CLIFF, (), "tanh")
    vectors = jnp.stack([jnp.full(space.size, v) for v in (0.5, -0.5)])
    scores = scoring.score(CLIFF, space, vectors, random.key(0), 1, bare)
    assert np.isfinite(scores.fitness).tolist() == [True, False]


def test_a_search_climbs_to_the_edge_of_finite_rewards():
    a = evolution_strategy.evolution_strategy(
        cliff(3.0), evolution_strategy.Config(strategy="cma", population=16)
    )

    def step(run, _):
        run, row = advance(a, run)
        return run, m.values(row)

    run, rows = jax.jit(lambda run: jax.lax.scan(step, run, None, 60))(start(a, random.key(0)))
    assert run.state.diverged == m.NEVER and np.isfinite(rows["episode_return"]).all()
    assert (rows["failed"] > 0).any() and rows["failed"].max() < 1
    assert rows["best_return"][-1] > 5.5  # of 6, the supremum


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_run_whose_returns_are_not_finite_fails(name, tmp_path, capsys):
    settings = {
        "algorithm": name,
        "env": "tests.algorithms.evolution.cliff:NOWHERE",
        "agent": SETTINGS[name],
        "steps": 3 * algorithm(name).env_steps,
        "evaluate_every": -1,
        "out": str(tmp_path),
        "name": "run",
        "quiet": True,
    }
    configuration.write(configuration.experiment(settings), tmp_path / "run.yaml")
    assert command_line.call(train_script.main, [str(tmp_path / "run.yaml")]) == 1
    assert "not finite after 0 updates" in capsys.readouterr().err
    summary = tiny.summary(tmp_path / "run")
    assert summary["stopped_because"] == "not finite" and summary["diverged"] == {"0": 0}
    for key, array in tiny.arrays(tmp_path / "run").items():
        if ".state" in key and "hyper" not in key and array.dtype == np.float32:
            assert not np.isnan(array).any() and not np.isposinf(array).any(), key
