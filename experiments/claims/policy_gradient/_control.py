"""Environments and sides that claims about policy gradients share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from experiments.evidence.declare import Arena, Side
from jaxrl.algorithms.policy_gradient.a2c import a2c
from jaxrl.algorithms.policy_gradient.ppo import ppo

GRID = {"learning_rate": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}
# Table 3 of Schulman et al. (2017): windows of 2048 steps, minibatches of 64, 10 epochs.
PPO: dict[str, Any] = {"num_envs": 16, "num_steps": 128, "epochs": 10, "minibatches": 32}
NORMALIZED = {"normalization.observation": True, "normalization.reward": True}
SIDES = {
    "PPO": Side(ppo, PPO, GRID),
    "PPO without clip": Side(ppo, PPO | {"clip": math.inf}, GRID),
    "A2C": Side(a2c, {"num_envs": 16, "num_steps": 5}, GRID),
}


def cartpole(env_steps: int, **more: Any) -> Arena:
    return Arena("cartpole", env_steps, 0.0, 500.0, **more)


def pendulum(env_steps: int, settings: Mapping[str, Any] = {}, **more: Any) -> Arena:
    """Pendulum on a scale from 0, a policy that does not learn, to 1, holding it upright."""
    there = {"discount": 0.9, **NORMALIZED, **settings}
    return Arena("pendulum", env_steps, -1250.0, -150.0, settings=there, **more)
