"""C51 against DQN: what a distribution in place of its mean does to learning."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import wasserstein_distance

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import World, curves, tune
from jaxrl import envs
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.systems.value.c51 import c51
from jaxrl.systems.value.dqn import dqn

PAPER = {
    "title": "A Distributional Perspective on Reinforcement Learning",
    "authors": "Bellemare, Dabney and Munos",
    "year": 2017,
    "arxiv": "1707.06887",
}
CLAIM = "Learning the distribution of returns instead of their mean makes DQN learn better."
PARTS = (
    "jaxrl/systems/value/c51.py",
    "jaxrl/systems/value/dqn.py",
    "jaxrl/systems/value/heads.py",
    "jaxrl/sources/replay.py",
    "jaxrl/losses/distributions/distributional.py",
)

METRIC = "return over training, mean of CartPole and Catch, each from 0 (bad) to 1 (solved)"
MARGIN = 0.0
LEARNING_RATES = (2.5e-4, 1e-3, 4e-3)
SETTINGS: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 4,
    "updates": 8,
    "warmup": 512,
    "hidden": (64, 64),
}
# Both descend as C51 does.
SETTINGS |= {"optimizer.name": "adam", "optimizer.eps": c51.Config().optimizer.eps}
SETTINGS |= {"capacity": 20_000, "target.period": 200, "exploration.steps": 4_000.0}
CATCH = World("catch", -1.0, 1.0, {"lowest_return": -1.0, "highest_return": 1.0})
BALANCE = World("cartpole", 0.0, 500.0, {"lowest_return": 0.0, "highest_return": 100.0})
STEPS = {"catch": 512 + 32 * 5 * 40, "cartpole": 512 + 32 * 5 * 150}
POINTS = 5
NOTES = (
    "Paper: Atari; here CartPole and Catch, 51 atoms between the possible returns (both sides know "
    "nothing else of them). Greedy evaluation at 5 evenly spaced moments. Learning rate: best of 3 "
    "on 3 seeds of their own, for each algorithm and world. DQN is C51 with its distribution "
    "switched off (it descends by Adam too), so there is no other ablation. The details also say "
    "how far C51's distribution of the discounted return at FrozenLake's start is from 4,096 "
    "played episodes of its greedy policy, and how far their mean is from them, which no learner "
    "of means can be closer than."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Learning curves of C51 and DQN, seed by seed, and C51's distribution against play."""
    worlds = budget.choose([CATCH], [BALANCE, CATCH])
    lake_key, *keys = jax.random.split(key, len(worlds) + 1)
    scores: dict[str, list[np.ndarray]] = {"C51": [], "DQN": []}
    details = []
    for world, world_key in zip(worlds, keys, strict=True):
        for name, (rate, curve) in _scores(world, world_key, budget).items():
            scores[name].append(world.score(curve.mean(1)))
            label = f"{name}, {world.env}, learning rate {rate:g}"
            details.append(figure(f"return over training: {label}", curve.mean(1)))
            details.append(figure(f"final return: {label}", curve[:, -1]))
    names = ("of C51's distribution", "of their mean")
    for name, distances in zip(names, _distances(lake_key, budget), strict=True):
        details.append(figure(f"Wasserstein distance to played returns {name}", distances))
    measured, baseline = (figure(name, np.mean(x, axis=0), rate=True) for name, x in scores.items())
    return compare(CLAIM, METRIC, measured, baseline, budget, MARGIN, None, details, NOTES)


def _scores(world: World, key: jax.Array, budget: Budget) -> dict[str, tuple[float, np.ndarray]]:
    """Each algorithm's learning rate and its curves [seeds, POINTS]."""
    env = world.make()
    steps = budget.choose(512 + 32 * POINTS, STEPS[world.env], 512 + 32 * POINTS * 1_000)
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 10, 20))
    found = {}
    for name, system in (("C51", c51), ("DQN", dqn)):
        algorithm = system(env, world.configure(replace(system.Config(), SETTINGS)))
        run = functools.partial(
            curves, env, algorithm, env_steps=steps, points=POINTS, episodes=budget.choose(2, 16)
        )
        score = lambda keys, rates, run=run: run(keys, hyper=rates).mean(1)
        grid = budget.choose(LEARNING_RATES[:2], LEARNING_RATES)
        rate = tune(score, tuning_key, "learning_rate", grid, budget.choose(1, 3))
        found[name] = rate, run(keys, hyper={"learning_rate": rate})
    return found


def _distances(key: jax.Array, budget: Budget) -> tuple[np.ndarray, np.ndarray]:
    """Wasserstein-1 distances from the discounted returns that C51's greedy policy gets from
    FrozenLake's start: of the distribution that it predicts there, and of the returns' own mean;
    both [seeds]. The only reward is 1 at the end, so a return is discount ** (length - 1) or 0."""
    env = envs.make("frozen_lake")
    settings: dict[str, Any] = {
        "lowest_return": 0.0,
        "highest_return": 1.0,
        "discount": 0.9,
        "exploration.end": 0.3,
        "learning_rate": 5e-4,
    }
    config = replace(c51.Config(), SETTINGS | settings)
    algorithm = c51(env, config)
    network = c51.recipe(env, config).parts["q"].network
    updates, episodes = budget.choose(4, 1_000), budget.choose(64, 4_096)

    @jax.jit
    @jax.vmap
    def learnt(key):
        train_key, play_key = jax.random.split(key)
        run, _ = train(algorithm, start(algorithm, train_key), updates)
        policy = algorithm.policy(run.state)
        played = evaluate(env, policy, play_key, episodes)
        _, timestep = env.reset(play_key, env.params)
        logits = network.apply(run.state.agent.parts["q"].params, timestep)
        atoms = jnp.linspace(0.0, 1.0, 51)
        probs = jax.nn.softmax(logits)
        best = (probs @ atoms).argmax()
        returns = played.returns * config.discount ** (played.lengths - 1)
        return probs[best], returns

    keys = jax.random.split(key, budget.num_seeds(2, 10, 20))
    distances = []
    for probs, returns in zip(*map(np.asarray, learnt(keys)), strict=True):
        atoms = np.linspace(0, 1, 51)
        distances.append(
            (
                wasserstein_distance(atoms, returns, probs),
                wasserstein_distance([returns.mean()], returns),
            )
        )
    predicted, mean = np.asarray(distances).T
    return predicted, mean
