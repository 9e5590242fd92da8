"""What is built on PPO is what it was: league, NeuPL, lives, PPGA and the runs that data sets are
made of, on the old PPO and on the kit's, step by step from the same weights."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.agents.policy_gradient import ppo as old_ppo
from jaxrl.algorithms import lifelong, old_lifelong
from jaxrl.algorithms.evolution import old_ppga, ppga
from jaxrl.algorithms.games import league, neupl, old_league, old_neupl
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.hyper import without_hyper
from jaxrl.core.settings import replace, walk
from jaxrl.datasets import making
from jaxrl.envs.wrappers import time_limit
from jaxrl.kit.descent import Trained
from jaxrl.kit.learner import Net
from jaxrl.systems.policy_gradient.ppo import ppo

SIZES = {"num_envs": 8, "num_steps": 8, "epochs": 2, "minibatches": 2, "hidden": (4,)}
SIZES |= {"learning_rate": 1e-2, "learning_rate_steps": 1000.0}
METRICS = ("policy_loss", "value_loss", "entropy", "approximate_kl", "episode_return")


def carried(old, new):
    """`new`, a state of what is on the kit, with all that `old` holds but for hyper-parameters."""
    if isinstance(old, old_ppo.State):
        parts = {"actor_critic": Trained(old.params, old.optimiser)}
        return dataclasses.replace(new, parts=parts)
    if dataclasses.is_dataclass(old):
        names = [f.name for f in dataclasses.fields(old) if f.name != "hyper"]
        return dataclasses.replace(
            new, **{n: carried(getattr(old, n), getattr(new, n)) for n in names}
        )
    # Parameters alone, as a pool of opponents holds them, are below their part's name now.
    leaves, structure = jax.tree.leaves(old), jax.tree.structure(new)
    for x, y in zip(leaves, jax.tree.leaves(new), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
    return jax.tree.unflatten(structure, leaves)


def numbers(state):
    """All arrays of a state but hyper-parameters, by their paths; keys as numbers."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return {
        path: np.asarray(jax.random.key_data(x) if is_key(x) else x)
        for path, x in without_hyper(state).items()
    }


def assert_close(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6, err_msg=name)


def follow(old, new, steps, monkeypatch, names=METRICS):
    """Both stay the same, in all that their states hold and in the metrics `names`."""
    # The old one had no other use for its key than the order of minibatches.
    monkeypatch.setattr(Net, "key", lambda net, name="": net.seed())
    key = random.key(0)
    a = jax.jit(old.init)(key, old.hyper)
    b = first = carried(a, jax.jit(new.init)(key, new.hyper))
    old_step, new_step = jax.jit(old.step), jax.jit(new.step)
    for key in jax.random.split(random.key(1), steps):
        a, was = old_step(a, key)
        b, now = new_step(b, key)
        assert_close(numbers(carried(a, b)), numbers(b))
        was, now = m.values(was), m.values(now)
        assert_close({n: was[n] for n in names}, {n: now[n] for n in names})
    with pytest.raises(AssertionError, match=r"actor_critic|theta"):  # it learnt
        assert_close(numbers(first), numbers(b))


def test_league(monkeypatch):
    env, pool = envs.make("kuhn_poker"), {"pool": 3, "every": 2, "matching": "even"}
    old = old_league.league(env, old_league.Config(**SIZES, **pool))
    new = league.league(env, replace(league.Config(**pool), SIZES))
    follow(old, new, 6, monkeypatch)


def test_neupl(monkeypatch):
    env = envs.make("kuhn_poker")
    old = old_neupl.neupl(env, old_neupl.Config(**SIZES, rows=3))
    new = neupl.neupl(env, replace(neupl.Config(rows=3), SIZES))
    follow(old, new, 4, monkeypatch)


def test_lifelong(monkeypatch):
    env = envs.make("corners")
    life = {"values": (0, 2), "windows": 2, "periods": 1, "episodes": 2, "max_tasks": 3}
    life |= {"components": ("ewc", "replay", "heads", "infer")}
    parts = {"ewc.weight": 50.0, "ewc.samples": 2, "replay.capacity": 8, "clone.steps": 2}
    parts |= {"replay.replays": 2, "clone.rate": 3e-3}
    olds = {"ewc_weight": 50.0, "ewc_samples": 2, "replay_capacity": 8, "clone_steps": 2}
    olds |= {"replays": 2, "clone_rate": 3e-3}
    old = old_lifelong.lifelong(env, old_lifelong.Config(**SIZES, **life, **olds))
    new = lifelong.lifelong(env, replace(lifelong.Config(**life), SIZES | parts))
    names = (*METRICS, "ewc_penalty", "clone_divergence", "tasks_found", "performance")
    follow(old, new, 3, monkeypatch, names)


def test_ppga(monkeypatch):
    env = time_limit(envs.make("cartpole"), 12)
    search = {"descriptor": ("observation.0",), "low": (-1.0,), "high": (1.0,), "cells": (8,)}
    search |= {"population": 3, "gradient_updates": 2, "walk_updates": 2}
    old = old_ppga.ppga(env, old_ppga.Config(**SIZES, **search))
    new = ppga.ppga(env, replace(ppga.Config(**search), SIZES))
    # What each step draws anew is overwritten, but for a normal's deviation, which begins at 1.
    names = ("policy_loss", "value_loss", "entropy", "best_return")
    follow(old, new, 2, monkeypatch, names)


def test_what_data_sets_are_made_by(monkeypatch):
    """With both normalisations, and settings that have other names now."""
    settings: dict[str, Any] = {"num_envs": 16, "num_steps": 128}
    settings |= {"epochs": 8, "minibatches": 8}
    settings |= {"learning_rate": 1e-3, "normalize_observation": True, "normalize_reward": True}
    for world, steps, changes in (
        ("double_pendulum", 655_360, {}),
        ("pendulum", 327_680, {"discount": 0.9, "learning_rate_steps": 327_680}),
    ):
        recipe, old = making.recipe(envs.make(world)), old_ppo.Config(**settings | changes)
        assert recipe.steps == steps
        known = {name.rpartition(".")[2]: value for name, _, value in walk(recipe.agent)}
        known |= {"optimiser": known["name"], "learning_rate_schedule": known["schedule"]}
        known |= {"trace": known["gae_lambda"], "normalize_observation": known["observation"]}
        known |= {"normalize_reward": known["reward"]}
        assert {f.name: known[f.name] for f in dataclasses.fields(old)} == dataclasses.asdict(old)
    env, small = envs.make("pendulum"), {"num_steps": 8, "epochs": 1}
    old = old_ppo.ppo(env, dataclasses.replace(old, **small))
    follow(old, ppo(env, replace(recipe.agent, small)), 3, monkeypatch)
