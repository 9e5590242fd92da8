"""Options, data, clock and judge of the workers that learn from a dataset."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring

LIBRARIES = ("jax", "torch", "d3rlpy", "optax", "flax", "numpy")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=("td3_bc", "iql"), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    return parser.parse_args()


def finish(arguments: argparse.Namespace, train: Callable[[], Callable[[Any], Any]]) -> None:
    """Train by the clock, judge the policy that `train` returns, and print one line of JSON.

    train: does all gradient steps, and returns a function from observations [B, 3] to greedy
        actions [B, 1] in [-2, 2].
    """
    clock, used = time.perf_counter(), time.process_time()
    act = train()
    seconds = time.perf_counter() - clock
    steps = arguments.config["steps"]
    found = {
        "gradient_steps_per_s": steps / seconds,
        "cpu_us_per_gradient_step": [1e6 * (time.process_time() - used) / steps],
        "final_return": play(act, 10_000 + arguments.seed, arguments.config["episodes"]),
        "device": measuring.cpu_model(),
        "load_after": measuring.load_average(),
        "versions": measuring.versions_of(LIBRARIES),
    }
    print("\n" + json.dumps({"bench": found}), flush=True)


def play(act: Callable[[Any], Any], seed: int, episodes: int) -> float:
    """Return the mean return of Gymnasium's Pendulum-v1, whose rules are these."""
    import numpy as np

    generator = np.random.default_rng(seed)
    angle = generator.uniform(-math.pi, math.pi, episodes)
    speed = generator.uniform(-1.0, 1.0, episodes)
    total = np.zeros(episodes)
    for _ in range(200):
        observation = np.stack([np.cos(angle), np.sin(angle), speed], -1).astype(np.float32)
        torque = np.clip(np.asarray(act(observation), np.float64)[:, 0], -2.0, 2.0)
        wrapped = (angle + math.pi) % (2 * math.pi) - math.pi
        total -= wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        angle = angle + speed * 0.05
    return float(total.mean())
