"""What the checks of token methods share: a transformer that was warmed up on sums and is not yet
sure of them, from which every method goes on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from experiments.systems.check import Budget, Figure, figure
from jaxrl import envs
from jaxrl.core import metrics as m
from jaxrl.core.learn import take_over
from jaxrl.core.settings import replace
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Key, Tree
from jaxrl.evaluation.pass_at_k import pass_at_k
from jaxrl.kit import System
from jaxrl.systems.tokens.token_supervised import token_supervised

ENV = envs.make("addition", digits=2)  # 10,000 prompts
SIZES = {"recurrent": 32, "transformer": 2, "attention_heads": 2}
WARM_UP = {"num_envs": 128, "learning_rate": 3e-3}
WARM_UP_UPDATES = 600
KS = (1, 8)
REPORTED = ("episode_return", "entropy", "kl_to_reference")


def built(system: System, settings: Mapping[str, Any]) -> Algorithm:
    """A token policy of the checks' size with these settings, by unique endings of their names."""
    return system(ENV, replace(system.Config(), SIZES | dict(settings)))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _warmed_up(keys: Key, algorithm: Algorithm, updates: int) -> Tree:
    one = lambda key: train(algorithm, start(algorithm, key), updates)[0].state.agent
    return jax.vmap(one)(keys)


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _went_on(keys, agents, algorithm, updates, prompts, samples):
    def one(key, agent):
        key, test_key = jax.random.split(key)
        run = start(algorithm, key)
        run = Run(take_over(run.state, agent), run.key, run.step)
        run, row = train(algorithm, run, updates)
        found = pass_at_k(ENV, algorithm.policy(run.state), test_key, KS, prompts, samples)
        values = m.values(row)
        return run.state.agent, {f"pass@{k}": x for k, x in found.items()} | {
            name: values[name] for name in REPORTED
        }

    return jax.vmap(one)(keys, agents)


def warmed_up(keys: Key, budget: Budget) -> Tree:
    """Agent states after supervised learning, [seeds]."""
    return _warmed_up(keys, built(token_supervised, WARM_UP), budget.choose(2, WARM_UP_UPDATES))


def went_on(
    keys: Key, agents: Tree, algorithm: Algorithm, updates: int, budget: Budget
) -> tuple[Tree, dict[str, np.ndarray]]:
    """Agent states [seeds] after `updates` more of `algorithm`, and by name, [seeds]: pass@1 and
    pass@8 at the end, and means over the training of what an update reports. Seed i has the same
    keys whatever the method, so that methods are paired."""
    prompts, samples = budget.choose((4, 8), (256, 16))
    agents, found = _went_on(keys, agents, algorithm, updates, prompts, samples)
    return agents, {name: np.asarray(x, np.float64) for name, x in found.items()}


def warm_up_details(keys: Key, agents: Tree, algorithm: Algorithm, budget: Budget) -> list[Figure]:
    """pass@1 and pass@8 [seeds] of the agents that all methods go on from, `algorithm` among
    them."""
    found = went_on(keys, agents, algorithm, 0, budget)[1]
    return [figure(f"pass@{k}: warm-up", found[f"pass@{k}"], rate=True) for k in KS]
