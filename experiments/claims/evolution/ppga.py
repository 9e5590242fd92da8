"""PPGA, MAP-Elites and PPO with random restarts: archives of swing-ups after as many steps."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from experiments.claims.evolution._within import Within
from experiments.evidence import measure
from experiments.evidence.declare import (
    Arena,
    Claim,
    Measured,
    Metric,
    Mutation,
    Paper,
    Side,
    Trial,
    better,
    not_worse,
)
from jaxrl import envs
from jaxrl.algorithms.evolution import map_elites
from jaxrl.algorithms.evolution.shared import archive as archives
from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs.wrappers import action_repeat, reward_components, time_limit
from jaxrl.kit.wrapping import params_of

STEPS, REPEATS = 400, 4  # of the body per episode and per decision
BUDGET = 3_200_000
RESTARTS, OFFERS = 8, 10  # of PPO; offers of each restart to the archive
HIDDEN = (32, 32)
# Where the cart ends (m) and how fast (m/s).
WHERE = {
    "descriptor": ("observation.0", "observation.3"),
    "low": (-1.8, -2.0),
    "high": (1.8, 2.0),
    "cells": (16, 16),
}
PPO = {"num_envs": 16, "num_steps": STEPS // REPEATS, "minibatches": 4, "torso.hidden": HIDDEN}


@functools.cache
def mean_reward(env: Environment) -> Environment:
    """Limit episodes to `STEPS` steps, with their mean reward as the return."""
    paid = lambda before, action, after: after.reward / STEPS
    limited = time_limit(env, STEPS)
    return action_repeat(reward_components(limited, {"mean": paid}, {"mean": 1.0}), REPEATS)


def measure_archives(trial: Trial, keys, hyper) -> Measured:
    """Measure the archives at the end, [runs] each.

    qd: mean over all cells of the elites' returns, 0 in an empty cell. untrained: the same for as
    many random policies as PPO offers. coverage: share of cells that are occupied. best: the
    largest return.
    """
    algorithm = measure.build(trial)[1]
    steps = 2 if trial.tiny else measure.schedule(trial, algorithm)[1]
    run = _restart if trial.side.algorithm.name == "ppo" else _train
    found = run(algorithm, keys, dict(hyper), steps)
    return found | {"env_steps": jnp.full(len(keys), trial.env_steps)}


@functools.partial(jax.jit, static_argnums=(0, 3))
def _train(algorithm, keys, hyper, steps):
    def one(key, hyper):
        key, random_key = jax.random.split(key)
        archive = train(algorithm, start(algorithm, key, hyper), steps)[0].state.archive
        return summary(archive, random_key)

    return jax.vmap(one)(keys, hyper)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _restart(algorithm, keys, hyper, steps):
    """Train PPO from `RESTARTS` starts that share `steps` updates."""
    updates = max(steps // RESTARTS // OFFERS, 1)

    def one(key, hyper):
        start_key, random_key, play_key = jax.random.split(key, 3)
        begin = lambda key: start(algorithm, key, hyper)
        runs = jax.vmap(begin)(jax.random.split(start_key, RESTARTS))

        def part(carry, key):
            runs, archive = carry
            runs = jax.vmap(lambda run: train(algorithm, run, updates)[0])(runs)
            vectors = jax.vmap(space().vector)(params_of(runs.state.agent)["actor_critic"])
            return (runs, offer(archive, vectors, key)), None

        play_keys = jax.random.split(play_key, OFFERS)
        (_, archive), _ = jax.lax.scan(part, (runs, empty()), play_keys)
        return summary(archive, random_key)

    return jax.vmap(one)(keys, hyper)


def body() -> Environment:
    return mean_reward(envs.make("cartpole_swingup"))


def space():
    return policies(body(), HIDDEN, "tanh")


def empty() -> archives.Archive:
    count = archives.cells_of(map_elites.Config(**WHERE))[1]
    return archives.empty(count, space().size, len(WHERE["descriptor"]))


def offer(archive: archives.Archive, vectors, key) -> archives.Archive:
    """Add policies [P, D] to an archive, after an episode of each."""
    describe = descriptor(body(), WHERE["descriptor"])
    scores = scoring.score(body(), space(), vectors, key, 1, describe)
    cell = archives.cells_of(map_elites.Config(**WHERE))[0](scores.descriptors)
    return archives.add(archive, cell, vectors, scores.fitness, scores.descriptors)[0]


def summary(archive: archives.Archive, key):
    draw_key, play_key = jax.random.split(key)
    drawn = jax.vmap(space().init)(jax.random.split(draw_key, RESTARTS * OFFERS))
    qd = lambda archive: archives.qd_score(archive, 0.0) / archive.fitness.shape[0]
    return {
        "qd": qd(archive),
        "untrained": qd(offer(empty(), drawn, play_key)),
        "coverage": archive.has_elite.mean(),
        "best": archive.fitness.max(),
    }


def ignore(tell):
    return lambda state, normal, fitness: state


RATE = (1e-3, 3e-3, 1e-2)
PPGA = PPO | WHERE | {"population": 64, "gradient_updates": 4, "walk_updates": 4}

CLAIM = Claim(
    paper=Paper(
        "Proximal Policy Gradient Arborescence for Quality Diversity Reinforcement Learning",
        "Batra, Tjanaka, Fontaine, Petrenko, Nikolaidis and Sukhatme",
        2023,
        "2305.13795",
        "PPGA outperforms other quality-diversity algorithms for reinforcement learning in best "
        "return and QD-score (except the QD-score of an ant), on a humanoid more than four times, "
        "and is the first of them whose best return equals that of standard reinforcement "
        "learning.",
    ),
    claim="PPGA fills an archive with better policies than MAP-Elites does, and its best is no "
    "worse than that of PPO with random restarts.",
    left_out="Legged bodies, large networks, and the paper's baselines: PGA-ME, QDPG, CMA-MAEGA.",
    parts=(
        "jaxrl/algorithms/evolution/ppga.py",
        "jaxrl/algorithms/evolution/shared/archive.py",
        "jaxrl/algorithms/evolution/shared/xnes.py",
        "jaxrl/algorithms/evolution/map_elites.py",
        "jaxrl/algorithms/policy_gradient/ppo.py",
    ),
    metric=Metric(
        "qd",
        0.0,
        1.0,
        meaning="the mean over all cells of the archive of the return of the best policy in each, "
        "0 where a cell is empty",
    ),
    environments=(Arena("cartpole_swingup", BUDGET, 0.0, 1.0, points=1),),
    sides={
        "PPGA": Side(Within("ppga", mean_reward), PPGA, {"learning_rate": RATE}),
        "MAP-Elites": Side(
            Within("map_elites", mean_reward),
            WHERE | {"population": 64, "hidden": HIDDEN},
            {"mutation": (0.01, 0.03, 0.1)},
        ),
        "PPO restarts": Side(Within("ppo", mean_reward), PPO, {"learning_rate": RATE}),
    },
    clauses=(
        better("PPGA", "MAP-Elites", 0.02),
        not_worse("PPGA", "PPO restarts", 0.1, metric="best"),
        better("PPGA", "PPO restarts", 0.02, of_mechanism=True),
    ),
    measure=measure_archives,
    seeds=32,
    minutes=20.0,
    notes="Episodes of 4 s begin with the pole hanging; the return, the mean reward, is near 0 "
    "unless the pole is swung up and held. A cell is where the cart ends, and how fast, so that "
    "most cells need a skill of their own. PPO is the mechanism switched off: 8 starts share the "
    "steps, and each is offered to the archive 10 times, by episodes that are not charged to it. "
    "The other sides are charged for all steps of PPO and of full episodes.",
    diagnosis="Led by PPO's gradients, an archive fills far better than from restarts of PPO, but "
    "mutation alone fills it better still. PPGA spends a fifth of its steps on episodes that are "
    "offered to the archive, MAP-Elites all of them, and mutation finds these policies of 1,300 "
    "weights. A guess, not tested: it would not find the paper's, of larger networks and bodies.",
    mutations=(
        Mutation("xNES does not learn", "jaxrl.algorithms.evolution.shared.xnes:tell", ignore),
    ),
)
