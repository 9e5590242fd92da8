"""Rate runs of a two-player game against each other and against scripted players.

    python experiments/ladder.py RUN [RUN ...] [--scripted brawler keeper] [--steps 200000]

prints the share of games that each player won against each, its Elo rating, and what a best
response learned by PPO earns against it (`algorithms.games.shared.ladder`). All runs must be in one
environment. The scripted players are those of `duel`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl import load
from jaxrl.algorithms.games.shared.ladder import ladder
from jaxrl.algorithms.policy_gradient.ppo import Config
from jaxrl.core import random, settings
from jaxrl.core.types import Policy
from jaxrl.envs.games import duel_players

EXPLOITER = {
    "num_envs": 64, "num_steps": 64, "learning_rate": 1e-3, "entropy_weight": 0.01,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the ladder of the runs that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--scripted", nargs="*", default=[], help="scripted players of the duel")
    parser.add_argument("--steps", type=int, default=200_000, help="steps of a best response")
    parser.add_argument("--games", type=int, default=256, help="games of each pair; even")
    parser.add_argument("--seed", type=int, default=0, help="seed of games and best responses")
    chosen = parser.parse_args(arguments)
    trained = {path.name: load(path) for path in chosen.runs}
    env = next(iter(trained.values())).env
    players: dict[str, Policy] = {name: run.policy for name, run in trained.items()}
    players |= {name: duel_players.player(name) for name in chosen.scripted}
    config = settings.replace(Config(), EXPLOITER)
    key = random.key(chosen.seed)
    found = ladder(env, players, config, steps=chosen.steps, key=key, games=chosen.games)
    print(" " * 20, *(f"{name[:8]:>8}" for name in players), "     Elo  exploited (won)")
    for i, name in enumerate(players):
        won = " ".join(f"{x:8.2f}" for x in np.asarray(found.results.won[i]))
        payoff, share = found.exploited.payoff[i], found.exploited.won[i]
        print(f"{name[:20]:20} {won} {found.rating[i]:8.0f} {payoff:8.2f} ({share:.2f})")


if __name__ == "__main__":
    main()
