"""REINFORCE, A2C and PPO through one loop: what each reaches, and what regularisation does."""

from __future__ import annotations

import jax
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import CARTPOLE, PENDULUM, World, curves, tune
from jaxrl.core.settings import replace
from jaxrl.core.types import Algorithm
from jaxrl.systems.policy_gradient.a2c import a2c
from jaxrl.systems.policy_gradient.ppo import ppo
from jaxrl.systems.policy_gradient.reinforce import reinforce

PAPER = {
    "title": "The Definitive Guide to Policy Gradients in Deep Reinforcement Learning: "
    "Theory, Algorithms and Implementations",
    "authors": "Lehmann",
    "year": 2024,
    "arxiv": "2401.13662",
}
CLAIM = "Of REINFORCE, A2C and PPO on one shared loop, PPO ends at least as high as the others."
PARTS = (
    "jaxrl/systems/policy_gradient/",
    "jaxrl/core/learn.py",
    "jaxrl/losses/",
    "jaxrl/kit/normalization.py",
)

METRIC = "return at the end, scaled to 0..1, mean of CartPole and Pendulum"
MARGIN = -0.02  # "at least as high": not lower by more than this
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# Both are windows of 2048 steps; tuning and what is compared differ in the learning rate only.
PPO = {
    "cartpole": {"num_envs": 64, "num_steps": 32, "epochs": 4, "minibatches": 4},
    "pendulum": {"num_envs": 16, "num_steps": 128, "epochs": 10, "minibatches": 32},
}
# REINFORCE with PPO's optimizer.
ADAM = {"optimizer.name": "adam", "optimizer.eps": 1e-5, "optimizer.max_grad_norm": 0.5}
# What is switched for the table of regularisation, at PPO's tuned learning rate.
VARIANTS = {
    "PPO without clip": {"clip": np.inf},
    "PPO with entropy bonus 0.01": {"entropy_weight": 0.01},
}
NOTES = (
    "TRPO and V-MPO of the paper are not part of this comparison. Baseline: the better of "
    "REINFORCE and A2C by its mean. Learning rate: best of 5 on seeds of their own, for each "
    "algorithm and environment. REINFORCE pays for all steps simulated, also after an episode's "
    "end. The variants keep PPO's learning rate. Steps and grid were chosen in "
    "trials on other seeds."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Final returns of the three algorithms and of PPO's variants, seed by seed."""
    worlds = budget.choose([CARTPOLE], [CARTPOLE, PENDULUM])
    keys = jax.random.split(key, len(worlds))
    scores: dict[str, list[np.ndarray]] = {}
    details = []
    for world, world_key in zip(worlds, keys, strict=True):
        for name, (rate, returns) in _returns(world, world_key, budget).items():
            scores.setdefault(name, []).append(world.score(returns))
            details.append(figure(f"{name}, {world.env}, learning rate {rate:g}", returns))
    figures = {name: figure(name, np.mean(values, axis=0)) for name, values in scores.items()}
    best = max((figures["REINFORCE"], figures["A2C"]), key=lambda f: f.value)
    return compare(CLAIM, METRIC, figures["PPO"], best, budget, MARGIN, None, details, NOTES)


def _algorithms(world: World, budget: Budget) -> dict[str, Algorithm]:
    env = world.make()
    sizes, episodes = PPO[world.env], 8 if world.env == "cartpole" else 16
    if budget.name == "tiny":
        sizes, episodes = sizes | {"num_envs": 16, "num_steps": 5, "minibatches": 2}, 2
    changes = {ppo: sizes, a2c: {}, reinforce: ADAM | {"num_envs": episodes}}
    configured = lambda system: world.configure(replace(system.Config(), changes[system]))
    return {system.name.upper(): system(env, configured(system)) for system in changes}


def _returns(world: World, key: jax.Array, budget: Budget) -> dict[str, tuple[float, np.ndarray]]:
    """Each variant's learning rate and its final returns [seeds]."""
    env = world.make()
    env_steps = budget.choose(
        4_000, {"cartpole": 256_000, "pendulum": 204_800}[world.env], 1_024_000
    )
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 20, 32))

    def run(algorithm, keys, hyper):
        return curves(env, algorithm, keys, env_steps, 1, budget.choose(2, 32), hyper)[:, -1]

    def tuned(algorithm, hyper):
        score = lambda keys, rates: run(algorithm, keys, {**hyper, **rates})
        grid = budget.choose(LEARNING_RATES[:2], LEARNING_RATES)
        return tune(score, tuning_key, "learning_rate", grid, budget.choose(1, 5))

    results = {}
    for name, algorithm in _algorithms(world, budget).items():
        # PPO is told what its variants change, so that all of them are one program.
        changed = {k for variant in VARIANTS.values() for k in variant} if name == "PPO" else set()
        hyper = {k: algorithm.hyper[k] for k in changed}
        rate = tuned(algorithm, hyper)
        hyper["learning_rate"] = rate
        results[name] = rate, run(algorithm, keys, hyper)
        for variant, change in VARIANTS.items() if name == "PPO" else ():
            results[variant] = rate, run(algorithm, keys, {**hyper, **change})
    return results
