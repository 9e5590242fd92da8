"""Arenas and settings that claims about variants of DQN share.

In these environments DQN ends far from the ceiling.
"""

from __future__ import annotations

from typing import Any

from experiments.evidence.declare import Arena, Side
from jaxrl.algorithms.value.dqn import dqn

SETTINGS: dict[str, Any] = {"num_envs": 8, "num_steps": 4, "updates": 8, "batch_size": 32}
SETTINGS |= {"warmup": 512, "capacity": 50_000, "target.period": 200, "exploration.steps": 6_000.0}
SETTINGS |= {"hidden": (64, 64), "optimizer.name": "adam", "optimizer.eps": 1e-4}

GRID = {"learning_rate": (3e-4, 1e-3, 3e-3)}
DQN = Side(dqn, SETTINGS, GRID, "Its optimizer is Adam.", banked=True)

CARTPOLE = Arena("cartpole", 30_592, 0.0, 500.0, episodes=8)
BREAKOUT = Arena(
    "minatar_breakout", 30_592, 0.0, 10.0, params={"time_limit": 500}, episodes=8, name="breakout"
)
