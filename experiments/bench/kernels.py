"""Print which kernels an update of PPO in CartPole, or of SAC in Pendulum, takes its time for.

    python experiments/bench/kernels.py [ppo|sac] [--envs 16384] [--updates 8]

For each line of JAX's profile (on a GPU: each of its streams): how long it was busy, of how long,
and its longest kernels, per update. PPO has windows of 128 steps, 4 minibatches and 4 epochs; SAC
the sizes of `configs/sac/pendulum.yaml`, with one gradient for each of its 4 environments.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import start, train

PPO = {"num_steps": 128, "epochs": 4, "minibatches": 4}
SAC = {"num_envs": 4, "num_steps": 1, "updates": 4, "batch_size": 128, "warmup": 1000}
SETTINGS = {"ppo": ("cartpole", PPO), "sac": ("pendulum", SAC)}
LONGEST = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithm", choices=SETTINGS, nargs="?", default="ppo")
    parser.add_argument("--envs", type=int, default=16_384, help="number of environments of PPO")
    parser.add_argument("--updates", type=int, default=8)
    arguments = parser.parse_args()
    name, updates = arguments.algorithm, arguments.updates
    environment, settings = SETTINGS[name]
    settings = settings | {"hidden": (64, 64)}
    settings |= {"num_envs": arguments.envs} if name == "ppo" else {"capacity": 20_000}
    build, Config = registry.builder(name)
    algorithm = build(envs.make(environment), replace(Config(), settings))
    advance: Any = jax.jit(train, static_argnums=(0, 2))
    run = jax.jit(lambda key: start(algorithm, key))(random.key(0))
    run = jax.block_until_ready(advance(algorithm, run, updates)[0])  # compiles
    begun = time.perf_counter()
    run = jax.block_until_ready(advance(algorithm, run, updates)[0])
    print(f"{name}: {(time.perf_counter() - begun) / updates * 1e3:.2f} ms an update")
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(advance(algorithm, run, updates)[0])
        [path] = Path(folder).rglob("*.xplane.pb")
        report(ProfileData.from_file(str(path)), updates)


def report(profile: Any, updates: int) -> None:
    """Print the lines of `profile` with at least one event per update."""
    for plane in profile.planes:
        for line in plane.lines:
            events = list(line.events)
            if len(events) < updates:
                continue
            begun = min(event.start_ns for event in events)
            ended = max(event.start_ns + event.duration_ns for event in events)
            spent, count = collections.Counter(), collections.Counter(e.name for e in events)
            for event in events:
                spent[event.name] += event.duration_ns
            each = updates * 1e6  # nanoseconds of all updates to milliseconds of one
            busy = f"{sum(spent.values()) / each:.3f} of {(ended - begun) / each:.3f} ms"
            print(f"{plane.name} {line.name}: {busy}, {len(events) / updates:.0f} events")
            for name, nanoseconds in spent.most_common(LONGEST):
                print(f"  {nanoseconds / each:8.4f} ms {count[name] / updates:8.1f}  {name[:100]}")


if __name__ == "__main__":
    main()
