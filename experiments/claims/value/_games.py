"""What the checks of DQN's variants share: environments in which DQN is far from the ceiling at the
end, and settings of all sides."""

from __future__ import annotations

from typing import Any

from experiments.evidence.declare import World

SETTINGS: dict[str, Any] = {"num_envs": 8, "num_steps": 4, "updates": 8, "batch_size": 32}
SETTINGS |= {"warmup": 512, "capacity": 50_000, "target.period": 200, "exploration.steps": 6_000.0}
SETTINGS |= {"hidden": (64, 64), "optimizer.name": "adam", "optimizer.eps": 1e-4}

CARTPOLE = World("cartpole", 30_592, 0.0, 500.0, episodes=8)
BREAKOUT = World(
    "minatar_breakout", 30_592, 0.0, 10.0, params={"time_limit": 500}, episodes=8, name="breakout"
)
