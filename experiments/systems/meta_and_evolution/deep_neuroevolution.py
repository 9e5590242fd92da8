"""A genetic algorithm on reward and on novelty, in a maze that deceives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from jaxrl import envs
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment, TimeStep
from jaxrl.envs.wrappers import reward_components, time_limit
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.systems.evolution import genetic

PAPER = {
    "title": "Deep Neuroevolution: Genetic Algorithms Are a Competitive Alternative for Training "
    "Deep Neural Networks for Reinforcement Learning",
    "authors": "Such, Madhavan, Conti, Lehman, Stanley and Clune",
    "year": 2017,
    "arxiv": "1712.06567",
}
CLAIM = (
    "A genetic algorithm with novelty search solves a deceptive maze in which the same algorithm "
    "on the reward fails; a list of seeds stands for all of a network's weights."
)
PARTS = (
    "jaxrl/systems/evolution/genetic.py",
    "jaxrl/systems/evolution/novelty.py",
    "jaxrl/systems/evolution/scoring.py",
)

METRIC = "part of the seeds whose best policy reaches the goal"
MARGIN = 0.0
GENERATIONS = 180
NOTES = (
    "The hard maze of Lehman and Stanley, 400 steps; reward: what a step takes off the distance to "
    "the goal, so that a return is less final distance. The baseline is the mechanism switched "
    "off: parents chosen by return. Both: 256 policies of 16 x 16 units, 20 parents, the same "
    "mutation. The best policy is the one with the largest return, which novelty search does not "
    "see. A weight that its seeds do not rebuild to the bit fails the check. Settings were chosen "
    "in trials on other seeds. The paper's Atari results are not part of this."
)


@functools.cache
def world(steps: int) -> Environment:
    """The deceptive maze, paid for approaching the goal (m, as the crow flies)."""
    env = envs.make("point_maze_deceptive")

    def distance(timestep: TimeStep) -> jax.Array:
        return jnp.sqrt(jnp.square(timestep.observation[:2] - timestep.goal).sum())

    approach = lambda before, action, after: distance(before) - distance(after)
    return time_limit(reward_components(env, {"approach": approach}, {"approach": 1.0}), steps)


def config(selection: str, budget: Budget) -> genetic.Config:
    return genetic.Config(
        population=budget.choose(16, 256, 1024),
        parents=budget.choose(4, 20, 40),
        max_generations=budget.choose(8, 400),
        selection=selection,
        descriptor=("observation.0", "observation.1"),
        neighbours=15,
        memory=8192,
        memory_rate=0.05,
        mutation=0.3,
    )


@functools.partial(jax.jit, static_argnums=(1, 2))
def _evolve(keys: jax.Array, selection: str, budget: Budget):
    env = world(budget.choose(20, 400))
    algorithm = genetic.genetic(env, config(selection, budget))

    def one(key):
        train_key, play_key = jax.random.split(key)
        run, _ = train(algorithm, start(algorithm, train_key), budget.choose(3, GENERATIONS))
        played = evaluate(env, algorithm.policy(run.state), play_key, 1)
        return run.state, played.metrics["success"][0], played.returns[0]

    return jax.vmap(one)(keys)


def check(key: jax.Array, budget: Budget) -> Check:
    """Successes of both, seed by seed, and the elites' weights rebuilt from their seeds."""
    keys = jax.random.split(key, budget.num_seeds(2, 5, 20))
    found, details, wrong = {}, [], []
    for selection in ("novelty", "fitness"):
        states, success, progress = _evolve(keys, selection, budget)
        found[selection] = figure(f"GA on {selection}", success, rate=True)
        details.append(figure(f"approach to the goal (m), {selection}", progress))
        wrong.append(_mismatches(states, selection, budget))
    details.append(figure("weights that seeds do not rebuild", np.sum(wrong, axis=0)))
    measured = found["novelty"]
    if np.any(wrong):
        measured = figure(measured.name, np.zeros_like(measured.per_seed), rate=True)
    return compare(CLAIM, METRIC, measured, found["fitness"], budget, MARGIN, None, details, NOTES)


def _mismatches(states: genetic.State, selection: str, budget: Budget) -> np.ndarray:
    """How many weights of each seed's best policy differ from those that its genome stands for."""
    env, counts = world(budget.choose(20, 400)), []
    for i in range(states.best.shape[0]):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        rebuilt = genetic.reconstruct(env, config(selection, budget), state, state.best_genome)
        counts.append(int((rebuilt != state.best).sum()))
    return np.asarray(counts, float)
