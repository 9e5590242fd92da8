"""FightLadder's measures of players, learned best responses and payoffs, against exact ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.claims.games._games import kuhn
from experiments.claims.preferences._regressions import as_float64, shortfall
from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.games.shared.ladder import exploit
from jaxrl.algorithms.policy_gradient.ppo import Config
from jaxrl.core import settings
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.policies import random_policy
from jaxrl.evaluation import matches
from jaxrl.exact import games, trees

PLAYERS, STEPS, GAMES = 6, 40_000, 8192
NOISE = 0.08  # five standard errors of a mean payoff in as many games
EARNED = 0.9  # of what exact best responses earn
CONFIG = settings.replace(
    Config(),
    {"num_envs": 64, "num_steps": 8, "epochs": 4, "minibatches": 4, "hidden": (32,)}
    | {"learning_rate": 3e-3, "discount": 1.0, "entropy_weight": 0.01},
)  # fmt: skip


@functools.cache
def poker() -> Environment:
    """Return Kuhn poker."""
    return envs.make("kuhn_poker")


def exact_results(tables: Array) -> tuple[Array, Array]:
    """Return each player's mean payoff against each, [K, K], and that of the best response against
    each, [K]."""
    game = kuhn(poker())
    reaches = jax.vmap(lambda table: games.reach(game, table))(tables)
    against = lambda table: jax.vmap(lambda reach: games.mean_value(game, table, reach))(reaches)
    best = lambda reach: jnp.stack([games.best_response(game, reach, p)[0] for p in range(2)])
    return jax.vmap(against)(tables), jax.vmap(best)(reaches).mean(1)


@functools.partial(jax.jit, static_argnums=1)
def measure(key: Key, steps: int) -> tuple[Array, Array, Array]:
    """Return the largest error of payoffs between random players, how much a best response that
    learns for so many steps earns above the exact one, and the share of what these earn in all."""
    draw_key, play_key, key = jax.random.split(key, 3)
    game = kuhn(poker())
    bets = jax.random.uniform(draw_key, (PLAYERS, len(game.timesteps.first)))
    tables = jnp.stack([1 - bets, bets], -1)
    players = {str(i): trees.policy(game, table) for i, table in enumerate(tables)}
    results = matches.tournament(poker(), players, key=play_key, games=GAMES)

    def answer(table: Array, key: Key) -> Array:
        """Return the payoff of the response that learns against a player."""
        policy = trees.policy(game, table)
        return exploit(poker(), policy, CONFIG, steps=steps, key=key, games=GAMES).payoff

    payoff, best = exact_results(tables)
    learned = jax.vmap(answer)(tables, jax.random.split(key, PLAYERS))
    error, excess = jnp.abs(results.row - payoff).max(), (learned - best).max()
    return error, excess, learned.sum() / best.sum()


@jax.enable_x64(False)  # the environment and the networks compute in float32
def errors(key: Key) -> Mapping[str, Any]:
    """Return by how much the ladder's measures leave what is claimed."""
    payoff, excess, share = measure(key, STEPS)
    return as_float64({
        "payoff between players, error above 0.08": shortfall(NOISE, payoff),  # pyright: ignore[reportArgumentType]
        "learned response above the best one by more than 0.08": shortfall(NOISE, excess),  # pyright: ignore[reportArgumentType]
        "share of the best responses' payoffs, below nine tenths": shortfall(share, EARNED),
    })  # fmt: skip


@jax.enable_x64(False)
def learn_briefly(key: Key) -> Mapping[str, Any]:
    """Return the error of responses that learned in one rollout."""
    share = measure(key, CONFIG.rollouts.num_envs * CONFIG.rollouts.num_steps)[2]
    return as_float64({"share, below nine tenths": shortfall(share, EARNED)})


def exploit_random_play(against: Callable[..., Environment]) -> Callable[..., Environment]:
    """Learn the best response to random play in place of the player."""
    return lambda env, policy, *rest: against(env, random_policy(env), *rest)


CLAIM = Exact(
    paper=Paper(
        "FightLadder: A Benchmark for Competitive Multi-Agent Reinforcement Learning",
        "Li, Ding, Karten and Jin",
        2024,
        "2406.02081",
        "A platform of fighting games for two players, with baselines of competitive learning, "
        "which are compared by Elo ratings and by the best responses that PPO learns to them; "
        "agents that cannot be exploited remain hard to learn.",
    ),
    claim="Of six random players of Kuhn poker, payoffs by played games are within 0.08 of the "
    "exact ones; best responses that PPO learns in 40,000 steps earn together nine tenths or more "
    "of what exact best responses do, and none earns over 0.08 more.",
    left_out="Fighting games and their baselines; Elo ratings; players that are hard to exploit. "
    "In `duel` a learned response to fictitious self-play won 0.50 where a scripted one wins 0.96 "
    "(configs/league/duel_fsp.yaml), so there the measure is far below the exploitability.",
    parts=(
        "jaxrl/algorithms/games/shared/ladder.py",
        "jaxrl/evaluation/matches.py",
        "jaxrl/envs/games/opponents.py",
        "jaxrl/exact/games.py",
    ),
    errors=errors,
    planted={"responses that learned in one rollout": learn_briefly},
    tolerance=1e-6,
    effect=0.1,
    seeds=10,
    minutes=3.0,
    diagnosis="In one of ten seeds the six responses earned 0.889 of what exact ones do, and in "
    "the others more than 0.9: a response that stops at a local optimum misses enough to show in "
    "the sum of six. No response earned too much, and no payoff was off.",
    mutations=(
        Mutation(
            "responses are to random play",
            "jaxrl.algorithms.games.shared.ladder:against",
            exploit_random_play,
        ),
    ),
    notes="A player bets at each information set with a chance of its own, drawn evenly. In pilots "
    "on three other seeds payoffs were within 0.052 and no response earned over 0.013 more "
    "than the best one; but three of 18 earned 0.12, 0.16 and 0.12 less, two of them by as "
    "much with 40,000 as with 200,000 steps: single responses stop at local optima, even in "
    "the smallest game. So this is a claim about all six; its predecessor, that none misses "
    "over 0.1, was given up.",
)
