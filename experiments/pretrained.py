"""Train the policies that come with jaxrl, evaluate them, and write them to `jaxrl/pretrained`:

    python experiments/pretrained.py [--runs FOLDER] [--only NAME ...]

A run that is finished in FOLDER, by its policy's name, is not trained again.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
from pathlib import Path

import numpy as np

import jaxrl
from jaxrl.commands import train
from jaxrl.evaluation.statistics import metric_interval
from jaxrl.runtime import configuration, continuing, policy_files

EPISODES = 512
# Name -> options of `jaxrl train`.
POLICIES = {
    "ppo-cartpole": "ppo/cartpole",
    "sac-pendulum": "sac/pendulum",
    "dqn-catch": "dqn/catch",
    "r2d2-t_maze": "r2d2/t_maze",
    "spiral-tic_tac_toe": "spiral/tic_tac_toe",
    "pqn-minatar_breakout": "pqn --env minatar_breakout --steps 1000000 --agent.torso.channels 16 "
    "--agent.torso.hidden 128 --agent.optimizer.learning-rate-steps 1000000 "
    "--agent.exploration.steps 200000",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs", "pretrained"))
    parser.add_argument("--only", nargs="+", choices=POLICIES, default=list(POLICIES))
    options = parser.parse_args()
    for name in options.only:
        folder = options.runs / name
        if not (folder.exists() and continuing.is_finished(folder)):
            words = shlex.split(POLICIES[name])
            train.main([*words, "--out", str(options.runs), "--name", name])
        path = write(name, folder)
        print(f"{path}: {path.stat().st_size:,} bytes")


def write(name: str, folder: Path) -> Path:
    """Evaluate the run in `folder` and write its policy; return the file."""
    trained = continuing.load(folder)
    played = jaxrl.evaluate(trained.env, trained.policy, jaxrl.key(0), EPISODES)
    returns = np.asarray(played.returns)
    returns = returns if returns.ndim == 1 else returns[:, 0]  # of the first of several agents
    mean, low, high = metric_interval("return", returns.astype(float))
    about = {
        "command": f"jaxrl train {POLICIES[name]}",
        "env": trained.config.env,
        "algorithm": trained.config.algorithm,
        "step": trained.step,
        "jaxrl": jaxrl.__version__,
        "date": datetime.date.today().isoformat(),
        "evaluation": {"return": mean, "interval": [low, high], "episodes": EPISODES},
        "settings": configuration.to_dict(trained.config) | {"out": "runs", "name": ""},
    }
    path = policy_files.SHIPPED / f"{name}{policy_files.SUFFIX}"
    policy_files.write(trained.env, trained.policy, path, about)
    return path


if __name__ == "__main__":
    main()
