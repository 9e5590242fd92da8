"""Compare runs in `team_battle` that trained with different numbers of teams.

    for n in 1 4 16 64; do
        jaxrl train configs/league/team_battle_self_play.yaml --env-params teams=$n --name teams-$n
    done
    python experiments/team_tests.py runs/teams-*

prints two tables: the share of games that each run won against each with the teams that all of them
trained on (performance test), and with teams that none of them trained on (generalization test;
`algorithms.games.shared.team_tests`). Shares are means over the runs' seeds; the first seed of a
run meets the first seed of another. All runs must have one order of teams and one length of games.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.games.shared.team_tests import team_tests
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.games import team_battle_players
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.continuing import load_all

NAME = "team_battle"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tests of the runs that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--scripted", nargs="*", default=["knowing"], help="scripted players")
    parser.add_argument("--games", type=int, default=256, help="games of each pair; even")
    parser.add_argument("--seed", type=int, default=0, help="seed of the games")
    chosen = parser.parse_args(arguments)
    found = {path.name: load_all(path) for path in chosen.runs}
    settings = {name: played_in(runs[0].config) for name, runs in found.items()}
    rules = {(x["order"], x["turns"]) for x in settings.values()}
    if len(rules) > 1:
        raise UserError(f"The runs have different orders of teams or turns: {sorted(rules)}.")
    ((order, turns),) = rules
    trained = {name: x["teams"] for name, x in settings.items()} | dict.fromkeys(chosen.scripted, 0)
    scripted: dict[str, Policy] = {n: team_battle_players.player(n) for n in chosen.scripted}
    seeds = min(len(runs) for runs in found.values())
    results = [
        team_tests(
            {name: runs[i].policy for name, runs in found.items()} | scripted,
            trained,
            key=jax.random.fold_in(random.key(chosen.seed), i),
            games=chosen.games,
            order=order,
            turns=turns,
        )
        for i in range(seeds)
    ]
    for test in ("performance", "generalization"):
        shares = np.stack([np.asarray(getattr(x, test)) for x in results])
        print(f"\n{test} test: mean, least and most of {seeds} seeds")
        print(" " * 12, *(f"{name[:14]:>15}" for name in trained))
        for i, name in enumerate(trained):
            low, mean, high = shares.min(0)[i], shares.mean(0)[i], shares.max(0)[i]
            cells = zip(mean, low, high, strict=True)
            print(f"{name[:12]:12}", *(f"{m:.2f} {a:.2f}-{b:.2f}".rjust(15) for m, a, b in cells))


def played_in(config: Experiment) -> dict[str, int]:
    """Return the teams, order and turns of a run's environment."""
    if config.env != NAME or config.env_params.get("unseen"):
        raise UserError(f"All runs must have trained on the first teams of {NAME}.")
    found = {**envs.settings(NAME), **config.env_params}
    return {name: int(found[name]) for name in ("teams", "order", "turns")}


if __name__ == "__main__":
    main()
