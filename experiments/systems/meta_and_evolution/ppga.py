"""PPGA, MAP-Elites and PPO with random restarts: archives filled with the same number of steps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from jaxrl import envs
from jaxrl.core import settings
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers import reward_components, time_limit
from jaxrl.kit.wrapping import params_of
from jaxrl.systems.evolution import archive as archives
from jaxrl.systems.evolution import map_elites, scoring
from jaxrl.systems.evolution import ppga as ppga_
from jaxrl.systems.evolution.descriptors import descriptor
from jaxrl.systems.evolution.policies import policies
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "Proximal Policy Gradient Arborescence for Quality Diversity Reinforcement Learning",
    "authors": "Batra, Tjanaka, Fontaine, Petrenko, Nikolaidis and Sukhatme",
    "year": 2023,
    "arxiv": "2305.13795",
}
CLAIM = (
    "PPGA fills an archive better than MAP-Elites and than PPO with random restarts, at the same "
    "number of environment steps."
)
PARTS = (
    "jaxrl/systems/evolution/ppga.py",
    "jaxrl/systems/evolution/archive.py",
    "jaxrl/systems/evolution/xnes.py",
    "jaxrl/systems/evolution/map_elites.py",
)

METRIC = "QD-score (sum of the elites' returns, at most 1 each) of 256 cells"
MARGIN = 0.0
WHERE = {
    "descriptor": ("observation.0", "observation.1"),
    "low": (-3.25, -3.25),
    "high": (3.25, 3.25),
    "cells": (16, 16),
}
NOTES = (
    "The hard maze of Lehman and Stanley, 100 steps, policies of 64 x 64 units; where an episode "
    "ends is the descriptor, effort saved the return: 1 less the mean of |action|^2 / 2, from 0 to "
    "1. Walls fill part of the cells. Baseline: MAP-Elites (iso+line); PPO from 16 random starts, "
    "offered to the archive 8 times, is in detail. Without annealing: archive_rate 1. Steps that "
    "PPO takes count as well as episodes, which count in full. Settings were chosen beforehand, "
    "without tuning. A smaller problem than the paper's, whose policies move legged bodies."
)


@functools.cache
def world(steps: int) -> Environment:
    """The maze without a goal, paid for sparing the motors."""
    env = envs.make("point_maze_deceptive", continuing=True)
    spared = lambda before, action, after: (1 - jnp.square(jnp.clip(action, -1, 1)).mean()) / steps
    return time_limit(reward_components(env, {"spared": spared}, {"spared": 1.0}), steps)


def algorithms(budget: Budget):
    env = world(budget.choose(10, 100))
    hidden = budget.choose((8,), (64, 64))
    learner = settings.replace(
        ppo.Config(),
        {
            "rollouts.num_envs": budget.choose(2, 16),
            "rollouts.num_steps": budget.choose(5, 100),
            "passes.minibatches": budget.choose(1, 4),
            "torso.hidden": hidden,
            "optimizer.learning_rate": 1e-3,
        },
    )
    branching = ppga_.ppga(
        env,
        ppga_.Config(
            **WHERE,
            ppo=learner,
            population=budget.choose(4, 128),
            gradient_updates=budget.choose(1, 2),
            walk_updates=budget.choose(1, 2),
            branch_sigma=1.0,
        ),
    )
    mutating = map_elites.map_elites(
        env, map_elites.Config(**WHERE, hidden=hidden, population=budget.choose(4, 128))
    )
    return env, branching, mutating, ppo(env, learner)


def summary(archive: archives.Archive):
    best = jnp.where(archive.occupied.any(), archive.fitness.max(), 0.0)
    return archives.qd_score(archive, 0.0), archive.occupied.mean(), best


@functools.partial(jax.jit, static_argnums=(1, 2))
def _filled(keys, algorithm, steps, hyper):
    def one(key, hyper):
        return summary(train(algorithm, start(algorithm, key, hyper), steps)[0].state.archive)

    return jax.vmap(one)(keys, hyper)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _restarts(keys, budget, steps, restarts):
    """The archive of `restarts` runs of PPO that share `steps` updates, each offered in 8 parts."""
    env, _, _, learning = algorithms(budget)
    torso = learning.config.torso
    space = policies(env, torso.hidden, torso.activation)
    describe = descriptor(env, WHERE["descriptor"])
    find, count = map_elites.layout(map_elites.Config(**WHERE))

    def one(key):
        start_key, play_key = jax.random.split(key)
        runs = jax.vmap(lambda key: start(learning, key))(jax.random.split(start_key, restarts))

        def part(carry, key):
            runs, archive = carry
            runs, _ = jax.vmap(lambda run: train(learning, run, max(steps // restarts // 8, 1)))(
                runs
            )
            vectors = jax.vmap(space.vector)(params_of(runs.state.agent)["actor_critic"])
            scores = scoring.score(env, space, vectors, key, 1, describe)
            cell = find(scores.descriptors)
            archive, _ = archives.add(archive, cell, vectors, scores.fitness, scores.descriptors)
            return (runs, archive), None

        empty = archives.empty(count, space.size, 2)
        (_, archive), _ = jax.lax.scan(part, (runs, empty), jax.random.split(play_key, 8))
        return summary(archive)

    return jax.vmap(one)(keys)


def check(key: jax.Array, budget: Budget) -> Check:
    """QD-score, coverage and best return of the three, seed by seed."""
    keys = jax.random.split(key, budget.num_seeds(2, 5, 20))
    _, branching, mutating, learning = algorithms(budget)
    steps = budget.choose(200, 2_000_000, 20_000_000)
    count = lambda algorithm: max(steps // algorithm.frames, 1)
    same = lambda value: {"archive_rate": jnp.full(len(keys), value, jnp.float32)}
    found = {
        "PPGA": _filled(keys, branching, count(branching), same(0.1)),
        "PPGA without annealing": _filled(keys, branching, count(branching), same(1.0)),
        "MAP-Elites": _filled(keys, mutating, count(mutating), {}),
        "PPO restarts": _restarts(keys, budget, count(learning), budget.choose(2, 16)),
    }
    figures = {name: figure(name, np.asarray(x[0])) for name, x in found.items()}
    details = [figures["PPO restarts"], figures["PPGA without annealing"]]
    for name, (_, coverage, best) in found.items():
        details += [figure(f"coverage, {name}", coverage, rate=True)]
        details += [figure(f"best return, {name}", best)]
    baseline = max((figures["MAP-Elites"], figures["PPO restarts"]), key=lambda f: f.value)
    return compare(CLAIM, METRIC, figures["PPGA"], baseline, budget, MARGIN, None, details, NOTES)
