"""Measures of competing players: payoffs of all pairs, Elo ratings, and how far each is exploited.

They are those by which FightLadder compares algorithms in two-player games: Elo ratings, and best
responses learned by PPO against each player (Li et al., 2024, "FightLadder: a benchmark for
competitive multi-agent reinforcement learning", arXiv:2406.02081, and the authors' code). Ratings
here are fitted to all results at once. The exploitability is a lower bound, and only as good as the
learner; in games that can be enumerated, `exact.games.exploitability` is the number itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxrl.algorithms.policy_gradient.ppo import Config, ppo
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.core.types import Array, Environment, Key, Policy, struct
from jaxrl.envs.games.opponents import against
from jaxrl.evaluation import matches
from jaxrl.evaluation.evaluate import evaluate


@struct
class Exploited:
    """Mean results of a learned best response, over both sides."""

    payoff: Array
    """Return of the best response in a game: float32."""
    won: Array
    """Share of games that it won, where a draw counts as half a game: float32."""


@struct
class Ladder:
    """Results of K players."""

    results: matches.Results
    """Results of each against each, [K, K]."""
    rating: Array
    """Elo rating of each, 0 on average: float32 [K]."""
    exploited: Exploited
    """Results of the best response against each: float32 [K]."""


def ladder(
    env: Environment,
    players: Mapping[str, Policy],
    config: Config,
    *,
    steps: int,
    key: Key,
    games: int = 256,
) -> Ladder:
    """Measure players, in the order of `players`, who can each play both sides of `env`.

    config: settings of PPO, which learns the best responses.
    steps: environment steps of each best response.
    games: games of each pair, and of each best response; an even number.

    Raises `UserError` where `matches.tournament` and `exploit` do.
    """
    play_key, exploit_key = jax.random.split(key)
    results = matches.tournament(env, players, key=play_key, games=games)
    found = [
        exploit(env, policy, config, steps=steps, key=exploit_key, games=games)
        for policy in players.values()
    ]
    exploited = jax.tree.map(lambda *x: jnp.stack(x), *found)
    return Ladder(results, matches.ratings(results, games), exploited)


def exploit(
    env: Environment, policy: Policy, config: Config, *, steps: int, key: Key, games: int = 256
) -> Exploited:
    """Train PPO against `policy`, which stays as it is, and play against it.

    env: a game for two players. policy: one that plays both sides, such as a league's or a mixture.
    config: settings of PPO.
    steps: environment steps of the training, at least one window.
    games: games that are played afterwards, with actions that are sampled.

    Raises `UserError` for fewer steps than a window, and where `against` and PPO do.
    """
    environment = against(env, policy)
    algorithm = ppo(environment, config)
    windows = int(steps // algorithm.env_steps)
    if windows < 1:
        raise UserError(f"steps is {steps}, less than a window of {algorithm.env_steps:.0f} steps.")
    train_key, play_key = jax.random.split(key)
    learned = jax.jit(lambda key: train(algorithm, start(algorithm, key), windows)[0].state)
    found = algorithm.policy(learned(train_key))
    played = evaluate(environment, found, play_key, games, False)
    return Exploited(played.returns.mean(), played.metrics["won"].mean())
