"""MuZero against PPO at the same number of environment steps, with and without its search."""

from __future__ import annotations

import dataclasses

import jax

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import CARTPOLE, curves, tune
from jaxrl import envs
from jaxrl.agents.planning.muzero import Config, muzero
from jaxrl.core.settings import replace
from jaxrl.systems.policy_gradient.ppo import ppo

PAPER = {
    "title": "Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model",
    "authors": "Schrittwieser et al.",
    "year": 2020,
    "arxiv": "1911.08265",
}
CLAIM = "Search in a learned model learns from fewer environment steps than a model-free agent."
PARTS = (
    "jaxrl/agents/planning/muzero.py",
    "jaxrl/agents/planning/unrolled.py",
    "jaxrl/agents/planning/search.py",
    "jaxrl/networks/world_models.py",
    "jaxrl/losses/models/planning.py",
)

METRIC = "greedy return on CartPole, mean over training, scaled to 0..1"
MARGIN = 0.1
ENV_STEPS, POINTS, EPISODES = 19_200, 5, 8
MUZERO = Config(support=10.0, num_atoms=81)
SIZES = {"num_envs": 8, "num_steps": 32, "epochs": 10, "minibatches": 4}
PPO = replace(ppo.Config(), SIZES)
LEARNING_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
TINY = dataclasses.replace(
    MUZERO, n_step=10, simulations=2, warmup=256, updates=1, batch_size=4, width=8, hidden=(8,)
)
NOTES = (
    "Paper: Atari and board games; here CartPole. PPO's learning rate is the best of 4 on seeds of "
    "their own, its other settings untuned; MuZero's learning rate, length of returns, activation, "
    "width and (after the first recorded attempt) atoms in a few trials on other seeds. Off: no "
    "simulations, in training too; then the policy has nothing better than itself to learn from. "
    "In detail: a quarter of all sequences reanalysed."
)


def check(key: jax.Array, budget: Budget) -> Check:
    """Learning curves of MuZero, PPO, and MuZero without search and with reanalysis."""
    env = envs.make("cartpole")
    config = budget.choose(TINY, MUZERO)
    env_steps = budget.choose(256 + 64, ENV_STEPS)
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 5))
    points, episodes = budget.choose(1, POINTS), budget.choose(2, EPISODES)

    def run(algorithm, keys=keys, hyper=None):
        return curves(env, algorithm, keys, env_steps, points, episodes, hyper)

    baseline = ppo(env, budget.choose(replace(PPO, {"num_steps": 8, "epochs": 1}), PPO))
    score = lambda keys, rate: run(baseline, keys, rate).mean(1)
    rate = tune(score, tuning_key, "learning_rate", LEARNING_RATES[: budget.choose(1, 4)],
                budget.choose(1, 5))  # fmt: skip
    found = {
        "MuZero": run(muzero(env, config)),
        "PPO": run(baseline, hyper={"learning_rate": rate}),
        "MuZero without search": run(muzero(env, dataclasses.replace(config, simulations=0))),
        "MuZero, reanalysed": run(muzero(env, dataclasses.replace(config, reanalyse=0.25))),
    }
    score = lambda curve: CARTPOLE.score(curve.mean(1))  # of returns that are all 0 to 500
    scores = {name: figure(name, score(curve), rate=True) for name, curve in found.items()}
    details = [figure(f"final return: {name}", curve[:, -1]) for name, curve in found.items()]
    details.append(scores.pop("MuZero, reanalysed"))
    measured, against, off = scores.values()
    return compare(CLAIM, METRIC, measured, against, budget, MARGIN, off, details, NOTES)
