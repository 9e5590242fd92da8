"""Train Stable-Baselines3 in cells of suites, as figures that stand beside ours.

python experiments/beside_sb3.py [CELL ...] [--seeds N]

A cell is SUITE/ALGORITHM/ENVIRONMENT of `CELLS` below; without any, all are trained. Each seed is
trained with the settings of RL Baselines3 Zoo (`hyperparams/*.yml`, commit 22e3ff2450fd), or, in
the suite `mujoco`, with those of the suite, and evaluated once, greedily, after the last step. The
returns are written into docs/suites/published/stable_baselines3.yaml, from which `jaxrl suite SUITE
--pages` takes them.

It needs an environment of its own:

    pip install torch stable-baselines3==2.9.2 sb3-contrib==2.9.2 "gymnasium[box2d,mujoco]" \\
        "mujoco<4" pyyaml
"""

# It runs in an environment of its own, so a type checker finds none of it here.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

FILE = (
    Path(__file__).resolve().parents[1] / "docs" / "suites" / "published" / "stable_baselines3.yaml"
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """An algorithm in an environment.

    linear: whether the step size falls linearly to 0.
    episodes: number of episodes in the evaluation of each seed.
    """

    env: str
    steps: int
    settings: dict[str, Any]
    seeds: int = 5
    num_envs: int = 1
    linear: bool = False
    episodes: int = 20


# The suite `mujoco` begins with 5,000 random steps, and its buffer holds all steps of a run.
MUJOCO: dict[str, Any] = {"seeds": 3, "episodes": 10}
SAC: dict[str, Any] = {"learning_starts": 5_000, "buffer_size": 100_000}
WIDE: dict[str, Any] = {"net_arch": [256, 256]}
CELLS = {
    "gymnasium_classic/DQN/cartpole": Cell(
        "CartPole-v1",
        50_000,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": WIDE,
        },
    ),
    "gymnasium_classic/DQN/mountain_car": Cell(
        "MountainCar-v0",
        120_000,
        {
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1_000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "policy_kwargs": WIDE,
        },
    ),
    "gymnasium_classic/A2C/lunar_lander": Cell(
        "LunarLander-v3",
        200_000,
        {"gamma": 0.995, "n_steps": 5, "learning_rate": 8.3e-4, "ent_coef": 1e-5},
        num_envs=8,
        linear=True,
    ),
    "gymnasium_classic/TRPO/lunar_lander": Cell(
        "LunarLander-v3",
        200_000,
        {"n_steps": 512, "cg_damping": 0.01, "gae_lambda": 0.98, "n_critic_updates": 15},
        num_envs=2,
    ),
    "mujoco/SAC/halfcheetah": Cell("HalfCheetah-v5", 100_000, SAC, **MUJOCO),
    "mujoco/SAC/hopper": Cell("Hopper-v5", 100_000, SAC, **MUJOCO),
    "mujoco/SAC/walker2d": Cell("Walker2d-v5", 100_000, SAC, **MUJOCO),
}


def train(algorithm: str, cell: Cell, seed: int) -> float:
    """Train one seed, and return the mean return of its greedy policy."""
    import sb3_contrib
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    settings = dict(cell.settings)
    if cell.linear:
        first = settings["learning_rate"]
        settings["learning_rate"] = lambda left: left * first
    builder = getattr(stable_baselines3, algorithm, None) or getattr(sb3_contrib, algorithm)
    environments = make_vec_env(cell.env, cell.num_envs, seed=seed)
    model = builder("MlpPolicy", environments, seed=seed, device="cpu", **settings)
    model.learn(cell.steps)
    fresh = make_vec_env(cell.env, 1, seed=10_000 + seed)
    return float(evaluate_policy(model, fresh, cell.episodes, deterministic=True)[0])


def write(suite: str, algorithm: str, environment: str, cell: Cell, returns: list[float]) -> None:
    """Put the returns of a cell into the file of published figures."""
    import yaml

    data = yaml.safe_load(FILE.read_text())
    for result in data["results"]:
        if (result["suite"], result["algorithm"]) == (suite, algorithm):
            break
    else:
        result = {"suite": suite, "algorithm": algorithm, "seeds": len(returns)}
        result |= {name: {} for name in ("steps", "episodes", "returns", "versions")}
        data["results"].append(result)
    result["seeds"] = len(returns)
    result["steps"][environment] = cell.steps
    result["episodes"][environment] = cell.episodes
    result["returns"][environment] = [round(x, 2) for x in returns]
    result["versions"][environment] = cell.env
    FILE.write_text(yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("cells", nargs="*", metavar="CELL", help="SUITE/ALGORITHM/ENVIRONMENT")
    parser.add_argument("--seeds", type=int, help="another number of seeds, which is not written")
    arguments = parser.parse_args()
    if unknown := [x for x in arguments.cells if x not in CELLS]:
        parser.error(f"unknown cell {unknown[0]!r}; there are {', '.join(CELLS)}")
    for name in arguments.cells or CELLS:
        cell = CELLS[name]
        suite, algorithm, environment = name.split("/")
        returns = []
        for seed in range(arguments.seeds or cell.seeds):
            began = time.perf_counter()
            returns.append(train(algorithm, cell, seed))
            print(
                f"{name} seed {seed}: {returns[-1]:.1f} after {time.perf_counter() - began:.0f} s",
                flush=True,
            )
        if arguments.seeds is None:
            write(suite, algorithm, environment, cell, returns)


if __name__ == "__main__":
    main()
