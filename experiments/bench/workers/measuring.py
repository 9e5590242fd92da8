"""Measure both sides by one clock and one set of rules, which both workers share.

Only the standard library is imported here: what a library costs to import is part of the result.
A worker gives `load()`, which imports its library, and `work(arguments)`, which builds a `Work`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

WARM_ENOUGH = 20.0  # a first call longer than this is not repeated in a sweep


@dataclasses.dataclass(frozen=True)
class Work:
    """One side of the comparison.

    program(updates): a function of keys for `jax.jit`: a whole run, from initial weights on.
    keys(seeds): what `program` takes, one key or, where `seeds` is a list, a vector of them.
    evaluate(result, seed, episodes): the mean return of the trained policy.
    curve(seed, points, updates, episodes): mean returns before and after each `updates` updates.
    compiled: whether JAX compiles `program`; else it is called as it is.
    """

    program: Callable[[int], Callable[[Any], Any]]
    keys: Callable[[Any], Any]
    evaluate: Callable[[Any, int, int], float]
    curve: Callable[[int, int, int, int], list[float]]
    about: dict[str, Any]
    compiled: bool = True


def main(load: Callable[[], None], work: Callable[[argparse.Namespace], Work]) -> None:
    """Run the task that the command line names, and print its result as one line of JSON."""
    started = time.time()
    arguments = parse()
    result: dict[str, Any] = {"load_before": load_average()}
    clock = time.perf_counter()
    import jax

    load()
    result["device"] = device(jax)  # which starts the backend
    imported, used = time.perf_counter(), time.process_time()
    side = work(arguments)
    result |= {"import_s": imported - clock, "build_s": time.perf_counter() - imported}
    result |= TASKS[arguments.task](jax, side, arguments, started)
    result |= {"about": side.about, "versions": versions(jax)}
    if "xla_s" in result:  # all that is traced and compiled before the first result
        result["compile_s"] = sum(result[k] for k in ("build_s", "keys_s", "trace_s", "xla_s"))
        result["compile_cpu_s"] = result.pop("compiled_at_cpu_s") - used
    result["load_after"] = load_average()
    print("\n" + json.dumps({"bench": result}), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=list(TASKS), required=True)
    parser.add_argument("--envs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="env steps of one run, at least")
    parser.add_argument("--minimum-updates", type=int, default=1)
    parser.add_argument("--minimum-updates-accelerator", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one repetition, at least")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--generator", default="auto")
    parser.add_argument("--shuffle", default="auto")
    return parser.parse_args()


# ------------------------------------------------------------------------------------- tasks


def speed(jax, side: Work, arguments: argparse.Namespace, started: float) -> dict[str, Any]:
    """One run after another of one compiled program, each with a seed of its own."""
    updates = number_of_updates(jax, arguments)
    steps = updates * arguments.envs * arguments.config["num_steps"]
    compiled, key, result = prepare(
        jax, side, side.program(updates), lambda: side.keys(arguments.seed)
    )
    last, first_s = time_run(jax, compiled, key)
    result |= {
        "first_result_at": time.time(),
        "since_start_s": time.time() - started,
        "first_run_s": first_s,
        "updates": updates,
        "steps_per_run": steps,
        **memory(jax, "first_"),
    }
    rates, cpu, runs = [], [], 0
    for _ in range(arguments.repetitions):
        wall, used, count = repetition(jax, side, compiled, arguments, 1 + runs)
        runs += count
        rates.append(count * steps / wall)
        cpu.append(1e6 * used / (count * steps))
    result |= {"steps_per_s": rates, "cpu_us_per_step": cpu, "runs": runs, **memory(jax)}
    result["final_return"] = side.evaluate(last, arguments.seed, arguments.episodes)
    result["median_steps_per_s"] = statistics.median(rates)
    return result


def sweep(jax, side: Work, arguments: argparse.Namespace, started: float) -> dict[str, Any]:
    """Many seeds in one vmapped program; one seed is a program without vmap."""
    updates = number_of_updates(jax, arguments)
    seeds = list(range(arguments.seeds))
    program = side.program(updates)
    if arguments.seeds == 1:
        compiled, keys, result = prepare(jax, side, program, lambda: side.keys(0))
    else:
        compiled, keys, result = prepare(jax, side, jax.vmap(program), lambda: side.keys(seeds))
    _, first_s = time_run(jax, compiled, keys)
    walls = []
    if first_s <= WARM_ENOUGH:
        until = time.perf_counter() + arguments.seconds
        while len(walls) < arguments.repetitions or time.perf_counter() < until:
            walls.append(time_run(jax, compiled, keys)[1])
    steps = updates * arguments.envs * arguments.config["num_steps"]
    wall = statistics.median(walls or [first_s])
    return result | {
        "first_run_s": first_s,
        "walls_s": walls or [first_s],
        "warm": bool(walls),
        "steps_per_seed": steps,
        "seconds_per_seed": wall / arguments.seeds,
        "steps_per_s": steps * arguments.seeds / wall,
        **memory(jax),
    }


def curve(jax, side: Work, arguments: argparse.Namespace, started: float) -> dict[str, Any]:
    """Mean returns of complete episodes of the policy at fixed numbers of steps, untimed."""
    env_steps = arguments.envs * arguments.config["num_steps"]
    updates = max(arguments.steps // env_steps // arguments.points, 1)
    returns = [
        side.curve(arguments.seed + i, arguments.points, updates, arguments.episodes)
        for i in range(arguments.seeds)
    ]
    steps = [i * updates * env_steps for i in range(arguments.points + 1)]
    return {"steps": steps, "returns": returns, "episodes": arguments.episodes}


TASKS = {"speed": speed, "sweep": sweep, "curve": curve}


# ------------------------------------------------------------------------------- measurement


def number_of_updates(jax, arguments: argparse.Namespace) -> int:
    """Updates in one run: at least `steps` environment steps, and the least number of updates."""
    env_steps = arguments.envs * arguments.config["num_steps"]
    on_cpu = jax.default_backend() == "cpu"
    least = arguments.minimum_updates if on_cpu else arguments.minimum_updates_accelerator
    return max(-(-arguments.steps // env_steps), least)


def prepare(jax, side: Work, program, make_keys) -> tuple[Any, Any, dict[str, float]]:
    """Compile `program` ahead of time: the same work as its first call, in parts."""
    clock = time.perf_counter()
    key = jax.block_until_ready(make_keys())
    if not side.compiled:
        return program, key, {}
    made = time.perf_counter()
    lowered = jax.jit(program).lower(key)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    return (
        compiled,
        key,
        {
            "keys_s": made - clock,
            "trace_s": traced - made,
            "xla_s": done - traced,
            "compiled_at_cpu_s": time.process_time(),
        },
    )


def time_run(jax, compiled, keys) -> tuple[Any, float]:
    clock = time.perf_counter()
    result = jax.block_until_ready(compiled(keys))
    return result, time.perf_counter() - clock


def repetition(jax, side: Work, compiled, arguments, first: int) -> tuple[float, float, int]:
    """Whole runs until `seconds` have gone by: wall and CPU seconds, and how many runs."""
    keys = [jax.block_until_ready(side.keys(arguments.seed + first + i)) for i in range(64)]
    wall, cpu, count = time.perf_counter(), time.process_time(), 0
    while count == 0 or time.perf_counter() - wall < arguments.seconds:
        jax.block_until_ready(compiled(keys[count % len(keys)]))
        count += 1
    return time.perf_counter() - wall, time.process_time() - cpu, count


def memory(jax, prefix: str = "") -> dict[str, float]:
    """Peak memory of this process so far in MiB, and of the device where it counts its own."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"ru_maxrss_mib": peak / (2**20 if sys.platform == "darwin" else 2**10)}
    found["peak_mib"] = high_water_mark() or found["ru_maxrss_mib"]
    statistics_of_device = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics_of_device:
        found["device_peak_mib"] = statistics_of_device["peak_bytes_in_use"] / 2**20
    return {prefix + name: value for name, value in found.items()}


def high_water_mark() -> float | None:
    """VmHWM in MiB: unlike ru_maxrss, it does not count what this process was forked from."""
    try:
        with open("/proc/self/status") as lines:
            line = next(line for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) / 2**10


# --------------------------------------------------------------------------- where it was run


def device(jax) -> str:
    first = jax.devices()[0]
    return cpu_model() if first.platform == "cpu" else first.device_kind


def cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.split(":", 1)[1] for line in lines if line.startswith("model name"))
        return " ".join(name.split())
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions(jax) -> dict[str, Any]:
    from importlib import metadata

    def version(name):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    names = ("jax", "jaxlib", "flax", "optax", "distrax", "numpy", "rejax", "gymnax", "navix")
    names += ("stable_baselines3", "torch", "gymnasium")
    return {name: version(name) for name in names} | {
        "python": platform.python_version(),
        "platform": jax.default_backend(),
        "devices": jax.device_count(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": platform.system(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    from importlib import metadata

    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
