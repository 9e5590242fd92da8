"""The lives that the checks of this track compare: three corners to go to, one after the other.

Two components are there in every life and switched by their strength, which at 0 is exactly none:
so all combinations of them, and all seeds, are one program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core import settings
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Key
from jaxrl.evaluation.lifelong import History
from jaxrl.systems.lifelong.lifelong import Config, lifelong
from jaxrl.tasks.basic import Schedule

SWITCHED = ("replay", "ewc")
STRENGTH = {"replay": ("replay.clone.rate", 3e-3), "ewc": ("ewc.weight", 100.0)}
TASKS = (0, 2, 1)
CONFIG = settings.replace(
    Config(
        values=TASKS,
        windows=10,
        periods=3,
        episodes=32,
        measure="success",
        components=SWITCHED,
    ),
    {
        "ppo.rollouts.num_envs": 32,
        "ppo.rollouts.num_steps": 32,
        "ppo.passes.minibatches": 2,
        "ppo.torso.hidden": (32, 32),
        "ppo.optimizer.learning_rate": 3e-3,
        "ppo.discount": 0.95,
        "ppo.entropy_weight": 0.02,
    },
)
TINY = settings.replace(
    CONFIG,
    {
        "ppo.rollouts.num_envs": 4,
        "ppo.rollouts.num_steps": 8,
        "ppo.passes.minibatches": 1,
        "ppo.passes.epochs": 1,
        "ppo.torso.hidden": (4,),
        "windows": 1,
        "periods": 2,
        "episodes": 2,
        "ewc.samples": 2,
        "replay.capacity": 8,
        "replay.replays": 2,
        "replay.clone.steps": 1,
    },
)


def life(config: Config, *more: str) -> Algorithm:
    """The life with both switched components and `more`."""
    return lifelong(
        envs.make("corners"), dataclasses.replace(config, components=(*SWITCHED, *more))
    )


def strengths(on: Sequence[str]) -> dict[str, float]:
    """The hyper-parameters that switch the components `on`, and the others off."""
    return {field: value * (name in on) for name, (field, value) in STRENGTH.items()}


def only(run: Run, task: jax.Array) -> Run:
    """`run`, all of whose tasks are the one of number `task`: an expert's."""

    def repeat(x):
        if not isinstance(x, Schedule):
            return x
        same = lambda p: jnp.broadcast_to(p[jnp.maximum(task, 0)], p.shape)
        params = jax.tree.map(lambda p: jnp.where(task < 0, p, same(p)), x.params)
        return Schedule(params, x.windows)

    return jax.tree.map(repeat, run, is_leaf=lambda x: isinstance(x, Schedule))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _histories(algorithm: Algorithm, steps: int, keys: Key, hyper, task) -> History:
    def one(key, hyper, task):
        run = only(start(algorithm, key, hyper), task)
        return train(algorithm, run, steps)[0].state.history

    return jax.vmap(one)(keys, hyper, task)


def histories(
    config: Config, more: Sequence[str], variants: Mapping[str, Sequence[str]], keys: Key
) -> dict[str, History]:
    """Lives of the `variants` (name -> the switched components that are on; `expert 0` and so on:
    that task alone), each with every one of `keys` [seeds], all in one program: [seeds] each."""
    members = [(keys[i], name) for name in variants for i in range(len(keys))]
    hyper = [strengths(variants[name]) for _, name in members]
    hyper = {k: jnp.float32([h[k] for h in hyper]) for k in hyper[0]}
    expert = lambda name: int(name.split()[1]) if name.startswith("expert ") else -1
    task = jnp.int32([expert(name) for _, name in members])
    steps = len(config.values) * config.periods * config.rounds
    stacked = _histories(
        life(config, *more), steps, jnp.stack([k for k, _ in members]), hyper, task
    )
    part = lambda i: jax.tree.map(
        lambda x: np.asarray(x[i * len(keys) : (i + 1) * len(keys)]), stacked
    )
    return {name: part(i) for i, name in enumerate(variants)}
