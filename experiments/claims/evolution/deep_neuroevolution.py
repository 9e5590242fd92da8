"""A genetic algorithm on reward and on novelty, in a deceptive maze."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

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
)
from jaxrl.algorithms.evolution import genetic
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs.wrappers import reward_components, time_limit
from jaxrl.evaluation.evaluate import evaluate

STEPS, POPULATION, GENERATIONS = 400, 128, 200
SETTINGS = {
    "population": POPULATION, "parents": 20, "max_generations": GENERATIONS + 1,
    "neighbors": 15, "memory": 8192, "memory_rate": 0.05,
}  # fmt: skip
GRID = {"mutation": (0.1, 0.3, 1.0)}
PLACE, SPEED = ("observation.0", "observation.1"), ("observation.2", "observation.3")


@functools.cache
def approach_goal(env: Environment) -> Environment:
    """Reward approaching the goal (m, as the crow flies), for `STEPS` steps."""

    def distance(timestep: TimeStep) -> jax.Array:
        return jnp.sqrt(jnp.square(timestep.observation[:2] - timestep.goal).sum())

    approach = lambda before, action, after: distance(before) - distance(after)
    return time_limit(reward_components(env, {"approach": approach}, {"approach": 1.0}), STEPS)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _evolve(algorithm, keys, hyper, generations):
    one = lambda key, hyper: train(algorithm, start(algorithm, key, hyper), generations)[0].state
    return jax.vmap(one)(keys, hyper)


def from_seeds(trial: Trial, keys, hyper) -> Measured:
    """Measure whether the fittest policy reaches the goal, and how far it comes (m); each [runs].

    The policy is rebuilt from the list of its genome's seeds.
    """
    env, algorithm = measure.build(trial)
    maze, config = approach_goal(env), measure.configure(trial)
    states = _evolve(algorithm, keys, dict(hyper), 2 if trial.tiny else GENERATIONS)
    found = {"solved": [], "approach": [], "env_steps": [trial.env_steps] * len(keys)}
    for i, key in enumerate(keys):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        weights = genetic.reconstruct(maze, config, state, state.own.best_genome)
        own = dataclasses.replace(state.own, best=weights)
        played = evaluate(maze, algorithm.policy(dataclasses.replace(state, own=own)), key, 1)
        found["solved"].append(played.metrics["success"][0])
        found["approach"].append(played.returns[0])
    return {name: np.asarray(x, float) for name, x in found.items()}


def nothing_new(novelty):
    """Make all behaviors equally novel."""
    return lambda *arguments: 0 * novelty(*arguments)


def forget(rebuild):
    return lambda base, genome, space, deviation: rebuild(base, genome, space, 0 * deviation)


GENETIC = Within("genetic", approach_goal)

CLAIM = Claim(
    paper=Paper(
        "Deep Neuroevolution: Genetic Algorithms Are a Competitive Alternative for Training Deep "
        "Neural Networks for Reinforcement Learning",
        "Such, Madhavan, Conti, Lehman, Stanley and Clune",
        2017,
        "1712.06567",
        "A simple genetic algorithm trains networks of four million weights for Atari about as "
        "well as Q-learning, policy gradients and evolution strategies; each network is stored as "
        "the list of its seeds; and with novelty search it solves a deceptive maze in which "
        "algorithms that maximize the reward fail.",
    ),
    claim="A genetic algorithm on novelty solves a maze in which the same one on the reward fails; "
    "lists of seeds rebuild its policies.",
    left_out="Atari, humanoid locomotion, large networks, and other algorithms on the reward.",
    parts=(
        "jaxrl/algorithms/evolution/genetic.py",
        "jaxrl/algorithms/evolution/shared/novelty.py",
        "jaxrl/algorithms/evolution/shared/scoring.py",
    ),
    metric=Metric(
        "solved",
        0.0,
        1.0,
        meaning="whether the fittest policy so far, rebuilt from its list of seeds, reaches the "
        "goal in an episode (1 or 0)",
    ),
    environments=(Arena("point_maze_deceptive", POPULATION * STEPS * GENERATIONS, 0.0, 1.0),),
    sides={
        "novelty": Side(GENETIC, SETTINGS | {"selection": "novelty", "descriptor": PLACE}, GRID),
        "reward": Side(GENETIC, SETTINGS | {"selection": "fitness"}, GRID),
        "novelty of speed": Side(
            GENETIC, SETTINGS | {"selection": "novelty", "descriptor": SPEED}, GRID
        ),
    },
    clauses=(
        better("novelty", "reward", 0.3),
        better("novelty", "novelty of speed", of_mechanism=True),
    ),
    measure=from_seeds,
    tuned_by="approach",
    tuning_seeds=2,
    seeds=16,
    minutes=4.0,
    notes="The hard maze of Lehman and Stanley, for 400 steps; the reward is the decrease of the "
    "distance to the goal. The policy that plays at the end is the one with the largest return so "
    "far (which novelty search does not see), rebuilt from its list of seeds. The behavior of an "
    "episode is where it ends; with the mechanism switched off, it is the speed and direction at "
    "the end. Steps are those of episodes of full length; the mutation is tuned by the approach "
    "(m).",
    mutations=(
        Mutation(
            "nothing is new", "jaxrl.algorithms.evolution.shared.novelty:novelty", nothing_new
        ),
        Mutation(
            "a list forgets its mutations", "jaxrl.algorithms.evolution.genetic:_rebuild", forget
        ),
    ),
)
