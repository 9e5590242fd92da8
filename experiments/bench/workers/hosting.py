"""Options and the clock of the workers in environments on the host."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Iterator

import measuring

LIBRARIES = ("gymnasium", "mujoco", "jax", "torch", "sbx-rl", "stable_baselines3")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", choices=("sac", "ppo"), required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--library", default="jaxrl")
    return parser.parse_args()


@contextlib.contextmanager
def time_steps(steps: int) -> Iterator[None]:
    """Print the steps per second of what is done inside, as one line of JSON."""
    clock, used = time.perf_counter(), time.process_time()
    yield
    seconds = time.perf_counter() - clock
    found = {
        "steps_per_s": steps / seconds,
        "cpu_us_per_step": [1e6 * (time.process_time() - used) / steps],
        "device": measuring.cpu_model(),
        "load_after": measuring.load_average(),
        "versions": measuring.versions_of(LIBRARIES),
    }
    print("\n" + json.dumps({"bench": found}), flush=True)
