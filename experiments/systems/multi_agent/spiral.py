"""Self-play by one policy in Kuhn poker: a baseline for each role against one shared by both."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.systems.check import Budget, Check, compare, figure
from experiments.systems.compare import tune
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train
from jaxrl.envs import make
from jaxrl.envs.games import kuhn_poker
from jaxrl.exact import games
from jaxrl.systems.games.spiral import spiral

PAPER = {
    "title": "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent "
    "Multi-Turn Reinforcement Learning",
    "authors": "Liu et al.",
    "year": 2025,
    "arxiv": "2506.24119",
}
CLAIM = "Self-play by one policy is steadier with a baseline for each role than with a shared one."
PARTS = (
    "jaxrl/systems/games/spiral.py",
    "jaxrl/envs/games/",
    "jaxrl/exact/games.py",
    "jaxrl/losses/advantages/groups.py",
)

METRIC = "minus the exploitability of the last policy in Kuhn poker (0 at an equilibrium)"
MARGIN = 0.0
ENTROPY_WEIGHTS = (0.1, 0.2, 0.3)
NOTES = (
    "Paper: a language model and benchmarks of reasoning; here a small network and the game "
    "itself, where exploitability is exact (a uniform policy's is 0.458). Baseline and what is "
    "switched off are the same thing, the roles' own averages. Entropy weight: best of 3 on seeds "
    "of their own for each. In detail: the first player's value (-1/18 at equilibrium) and the "
    "advantages' mean square over training, in Kuhn poker and in three games at once, where a "
    "shared baseline is one for both players of a game."
)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def trained(name: str, baseline: str, keys: Any, entropy_weight: Any, updates: int):
    """Runs [K]: the last policies' weights and the mean square of all advantages."""
    algorithm = _algorithm(name, baseline)

    def one(key, weight):
        run = start(algorithm, key, {"entropy_weight": weight})
        run, row = train(algorithm, run, updates)
        return run.state, row["advantage_square"].value()

    return jax.vmap(one)(keys, entropy_weight)


def _algorithm(name: str, baseline: str):
    settings = {"baseline": baseline, "hidden": (32,), "learning_rate": 1e-3}
    return spiral(make(name), replace(spiral.Config(), settings))


@functools.cache
def _measure(baseline: str):
    """Learner's states [K] -> minus exploitability and the first player's value, [K] each."""
    game, algorithm = games.enumerate_game(kuhn_poker.RULES), _algorithm("kuhn_poker", baseline)

    def of(state):
        reaches = games.reach(game, games.behaviour(game, algorithm.policy(state)))
        return -games.exploitability(game, reaches), games.value(game, reaches)[0]

    return jax.jit(jax.vmap(of))


def check(key: jax.Array, budget: Budget) -> Check:
    """Self-play with both baselines, seed by seed."""
    tuning_key, key = jax.random.split(key)
    keys = jax.random.split(key, budget.num_seeds(2, 10))
    updates = budget.choose(3, 2000)
    figures, details = {}, []
    for baseline in ("role", "shared"):

        def score(keys, hyper, baseline=baseline):
            weights = jnp.asarray(hyper["entropy_weight"])
            states, _ = trained("kuhn_poker", baseline, keys, weights, updates)
            return _measure(baseline)(states)[0]

        grid = budget.choose(ENTROPY_WEIGHTS[:1], ENTROPY_WEIGHTS)
        weight = tune(score, tuning_key, "entropy_weight", grid, budget.choose(2, 4))
        spread = jnp.full(len(keys), weight)
        states, square = trained("kuhn_poker", baseline, keys, spread, updates)
        found, value = (np.asarray(x) for x in _measure(baseline)(states))
        figures[baseline] = figure(f"{baseline} baseline, entropy weight {weight:g}", found)
        details.append(figure(f"first player's value, {baseline}", value))
        details.append(figure(f"advantages' mean square, {baseline}", np.asarray(square)))
        _, square = trained("three_games", baseline, keys, spread, updates // 10 + 1)
        details.append(
            figure(f"advantages' mean square in three games, {baseline}", np.asarray(square))
        )
    return compare(
        CLAIM, METRIC, figures["role"], figures["shared"], budget, MARGIN, None, details, NOTES
    )
