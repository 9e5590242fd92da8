"""Every algorithm that the contracts and the probes are held against. A new one adds a line."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxrl.algorithms.policy_gradient.a2c import a2c
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.algorithms.policy_gradient.reinforce import reinforce
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.algorithms.value.rainbow import rainbow
from jaxrl.core import metrics as m
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import advance, empty_row, start
from jaxrl.core.types import Algorithm
from jaxrl.kit.wrapping import params_of
from tests.learning.probes import DISCOUNT, PROBES, probe


@dataclasses.dataclass(frozen=True)
class Entry:
    """Settings by which one algorithm is tested: small, and quick to learn a probe."""

    build: Callable[[Any], Algorithm]  # environment -> algorithm
    continuous: bool = False
    steps: int = 150  # in which it learns any probe
    # (state, timestep [B], memory [B] before it) -> value [B]; None where no value is known
    value: Callable[[Algorithm, Any, Any, Any], jax.Array] | None = None
    sharded: bool = True  # whether its config has num_shards


def actor_critic_value(algorithm, state, timestep, memory):
    network = policy_network(probe(False), algorithm.config.torso, algorithm.config.memory)
    return value_of(network, params_of(state.agent)["actor_critic"], timestep, memory)


def value_of(network, params, timestep, memory):
    return network.apply(params, timestep, memory, method=_value)


def _value(network, timestep, memory):
    from jaxrl.networks import encoders

    x = encoders.features(network.observation_space, timestep)
    if network.recurrent:
        x, _ = network.core(network.embedding(x), memory)
    return network._value(x, timestep)


ON_POLICY = {
    "num_envs": 16, "num_steps": 8, "num_shards": 4, "hidden": (16,), "learning_rate": 0.01,
    "max_grad_norm": 1.0, "discount": DISCOUNT,
}  # fmt: skip
NORMALIZED = {"normalization.observation": True, "normalization.reward": True}
ADAM = {"optimizer.name": "adam", "optimizer.eps": 1e-5}
EPISODES = {"num_envs": 32, "hidden": (16,), "learning_rate": 0.02, "discount": DISCOUNT}
EPISODES |= {"max_grad_norm": 0.5}


def _entry_of(builder, **changes):
    return lambda env: builder(env, replace(builder.Config(), changes))


def _ppo(**changes):
    return _entry_of(ppo, **ON_POLICY, epochs=2, minibatches=2, **changes)


# Few transitions, so that those of the default probe, from the warm-up, are soon gone.
OF_VALUES = {
    "num_envs": 8, "num_steps": 1, "updates": 2, "batch_size": 16, "capacity": 256, "warmup": 8,
    "hidden": (16,), "period": 10, "learning_rate": 0.01, "discount": DISCOUNT,
}  # fmt: skip


def _dqn(env):
    changes = OF_VALUES | {"num_shards": 4, "exploration.steps": 1000.0}
    return dqn(env, replace(dqn.Config(), changes))


def _rainbow(env):
    changes = OF_VALUES | {"num_atoms": 25, "lowest_return": -6.0, "highest_return": 6.0}
    return rainbow(env, replace(rainbow.Config(), changes))


ALGORITHMS: dict[str, Entry] = {
    "ppo": Entry(_ppo(), value=actor_critic_value),
    "ppo continuous": Entry(_ppo(), continuous=True, value=actor_critic_value),
    "ppo recurrent": Entry(_ppo(recurrent=8), value=actor_critic_value, steps=500),
    "ppo normalized": Entry(_ppo(**NORMALIZED)),
    "a2c": Entry(_entry_of(a2c, **ON_POLICY, **ADAM), value=actor_critic_value, steps=300),
    "reinforce": Entry(_entry_of(reinforce, **EPISODES, **ADAM), sharded=False),
    "dqn": Entry(_dqn, steps=500),
    "rainbow": Entry(_rainbow, steps=500, sharded=False),
}


@functools.cache
def environment(continuous: bool):
    return probe(continuous)


@functools.cache
def algorithm(name: str) -> Algorithm:
    entry = ALGORITHMS[name]
    return entry.build(environment(entry.continuous))


@functools.cache
def members(name: str) -> int:
    """Number of runs vmapped together, always the same so that all tests share a program."""
    return max(len(algorithm(name).hyper) + 1, len(PROBES))


@functools.cache
def starter(name: str):
    """One jitted function: keys and hyperparameters, each [members] -> runs and empty rows."""

    def begin(key, hyper):
        run = start(algorithm(name), key, hyper)
        return run, empty_row(algorithm(name), run)

    return jax.jit(jax.vmap(begin))


@functools.cache
def driver(name: str):
    """One jitted function: runs and rows [members], and a number of steps."""

    def drive(run, row, steps):
        def body(_, carry):
            run, row = carry
            run, metrics = advance(algorithm(name), run)
            return run, m.merge(row, metrics)

        return jax.lax.fori_loop(0, steps, body, (run, row))

    return jax.jit(jax.vmap(drive, in_axes=(0, 0, None)))


def keys(name: str, seed: int = 0):
    return jax.random.split(random.key(seed), members(name))
