"""Linear policies by evolution strategies against PPO with a network, at equal steps."""

from __future__ import annotations

import jax
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import CARTPOLE, World, curves, tune
from jaxrl.core.settings import replace
from jaxrl.core.types import Algorithm
from jaxrl.kit.groups import LinearTorso
from jaxrl.systems.evolution import evolution_strategy as evolution
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "Solving Deep Reinforcement Learning Benchmarks with Linear Policy Networks",
    "authors": "Wong, de Nobel, Bäck, Plaat and Kononova",
    "year": 2024,
    "arxiv": "2402.06912",
}
CLAIM = "Evolution strategies find linear policies as good as those of PPO with a network."
PARTS = (
    "jaxrl/systems/evolution/evolution_strategy.py",
    "jaxrl/systems/evolution/cma.py",
    "jaxrl/systems/evolution/strategies.py",
)

METRIC = "return at the end, scaled to 0..1, mean of CartPole and Acrobot"
MARGIN = -0.05  # "as good as": not lower by more than this
ACROBOT = World("acrobot", -500.0, -80.0)
STRATEGIES = ("cma", "sep_cma", "csa", "openai")
SIGMAS = (0.1, 0.3, 1.0)
LEARNING_RATES = (3e-4, 1e-3, 3e-3)
NOTES = (
    "Measured: CMA-ES, 16 linear policies a generation, one episode each. Baseline: PPO, 64 x 64 "
    "units for policy and value each. A generation is charged 16 episodes of full length, also "
    "where they end early. First standard deviation (ES) and learning rate (PPO): best of 3 on "
    "seeds of their own, for each algorithm and environment. Steps and grids were chosen "
    "beforehand, without trials. The paper's MuJoCo and Atari results are not part of this."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Final returns of the strategies and of PPO with a network and without, seed by seed."""
    worlds = budget.choose([CARTPOLE], [CARTPOLE, ACROBOT])
    keys = jax.random.split(key, len(worlds))
    scores: dict[str, list[np.ndarray]] = {}
    details = []
    for world, world_key in zip(worlds, keys, strict=True):
        for name, (setting, returns) in _returns(world, world_key, budget).items():
            scores.setdefault(name, []).append(world.score(returns))
            details.append(figure(f"{name}, {world.env}, {setting:g}", returns))
    figures = {name: figure(name, np.mean(values, axis=0)) for name, values in scores.items()}
    return compare(
        CLAIM, METRIC, figures["cma"], figures["PPO"], budget, MARGIN, None, details, NOTES
    )


def _returns(world: World, key: jax.Array, budget: Budget) -> dict[str, tuple[float, np.ndarray]]:
    """Each algorithm's tuned setting and its final returns [seeds]."""
    env = world.make()
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 10, 30))

    def run(algorithm: Algorithm, keys, hyper):
        steps = budget.choose(2 * algorithm.frames, 256_000, 1_024_000)
        return curves(env, algorithm, keys, steps, 1, budget.choose(2, 16), hyper)[:, -1]

    def tuned(algorithm: Algorithm, name: str, grid):
        score = lambda keys, hyper: run(algorithm, keys, hyper)
        return tune(score, tuning_key, name, grid[: budget.choose(2, 3)], budget.choose(1, 3))

    results = {}
    names = budget.choose(STRATEGIES[:1], STRATEGIES)
    for name in names:
        algorithm = evolution.evolution_strategy(
            env, evolution.Config(strategy=name, population=budget.choose(4, 16))
        )
        sigma = tuned(algorithm, "sigma", SIGMAS)
        results[name] = sigma, run(algorithm, keys, {"sigma": sigma})
    sizes = {"num_envs": 64, "num_steps": budget.choose(2, 32)}
    for name, hidden in budget.choose({"PPO": (8,)}, {"PPO": (64, 64), "linear PPO": ()}).items():
        torso = LinearTorso(hidden, activation="tanh")
        algorithm = ppo(env, world.configure(replace(ppo.Config(torso=torso), sizes)))
        rate = tuned(algorithm, "learning_rate", LEARNING_RATES)
        results[name] = rate, run(algorithm, keys, {"learning_rate": rate})
    return results
