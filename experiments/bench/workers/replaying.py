"""Run what both workers of the replay bench do with their library: one clock and one set of rules.

Experience is added in windows [T, B] and drawn in batches, each many times inside one compiled
loop whose state is donated: outside of a loop it is allocation that is measured. Every drawn batch
is written out whole, as the loop's carry, and every window added is another one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import measuring

OBSERVATIONS = {"cartpole": ((4,), "float32"), "minatar": ((10, 10, 4), "bool")}
END = 0.02  # of steps that end an episode, half of them by a clock


@dataclasses.dataclass(frozen=True)
class Buffer:
    """One side of the comparison.

    empty(window) -> state
    add(state, window) -> state
    sample(state, window, key) -> batch
    feedback(state, batch, priority [n]) -> state; None where items have no priority
    """

    empty: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    sample: Callable[[Any, Any, Any], Any]
    feedback: Callable[[Any, Any, Any], Any] | None
    key: Callable[[int], Any]
    about: dict[str, Any]


def main(work: Callable[[dict[str, Any]], Buffer]) -> None:
    """Measure the case that the command line describes, and print it as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=json.loads, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--repetitions", type=int, required=True)
    arguments = parser.parse_args()
    import jax

    result: dict[str, Any] = {"load_before": measuring.load_average()}
    side = work(arguments.config)
    result |= {"device": measuring.device(jax), "versions": measuring.versions(jax)}
    result |= measure(jax, side, arguments)
    result |= {"about": side.about, "load_after": measuring.load_average()}
    print("\n" + json.dumps({"bench": result}), flush=True)


def windows(config: dict[str, Any], seed: int) -> dict[str, Any]:
    """`loop` windows that go on from one another: arrays [loop, T, B, ...], by name."""
    import numpy as np

    rng = np.random.default_rng(seed)
    size = (config["loop"] * config["steps"], config["streams"])
    shape, dtype = OBSERVATIONS[config["items"]]
    draw = lambda rows: rng.normal(size=(rows, size[1], *shape))
    as_dtype = lambda x: (x > 1).astype(bool) if dtype == "bool" else x.astype(dtype)
    observation, last = as_dtype(draw(size[0] + 1)), as_dtype(draw(size[0]))
    done, clock = rng.random(size) < END, rng.random(size) < 0.5
    found = {
        "observation": observation[:-1],
        "next_observation": np.where(done.reshape(*size, *[1] * len(shape)), last, observation[1:]),
        "action": rng.integers(0, 3, size, np.int32),
        "reward": rng.normal(size=size).astype(np.float32),
        "terminated": done & ~clock,
        "truncated": done & clock,
        "first": np.concatenate([np.ones((1, size[1]), bool), done[:-1]]),
    }
    return {k: v.reshape(config["loop"], config["steps"], *v.shape[1:]) for k, v in found.items()}


def measure(jax, side: Buffer, arguments: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of each operation, wall clock and CPU, median of the repetitions."""
    config, loop = arguments.config, arguments.config["loop"]
    given = jax.tree.map(jax.numpy.asarray, windows(config, arguments.seed))
    one = jax.tree.map(lambda x: x[0], given)
    keys = jax.random.split(side.key(arguments.seed), loop)

    def add(state, given, keys):
        return jax.lax.scan(lambda state, x: (side.add(state, x), None), state, given)[0]

    def sample(state, given, keys):
        draw = lambda key: side.sample(state, one, key)
        blank = jax.tree.map(
            lambda x: jax.numpy.zeros(x.shape, x.dtype), jax.eval_shape(draw, keys[0])
        )
        return jax.lax.scan(lambda batch, key: (draw(key), None), blank, keys)[0]

    def feedback(state, given, keys):
        give = side.feedback
        assert give is not None
        batch = side.sample(state, one, keys[0])

        def body(state, key):
            priority = jax.random.uniform(key, (config["batch"],))
            return give(state, batch, priority), None

        return jax.lax.scan(body, state, keys)[0]

    state = jax.jit(side.empty)(one)
    operations: dict[str, Any] = {"add": add, "sample": sample}
    if side.feedback is not None:
        operations["feedback"] = feedback
    programs, clock = {}, time.perf_counter()
    for name, operation in operations.items():
        donated = () if name == "sample" else (0,)
        lowered = jax.jit(operation, donate_argnums=donated).lower(state, given, keys)
        programs[name] = lowered.compile()
    figures = {"compile_s": time.perf_counter() - clock}
    for _ in range(-(-config["capacity"] // (loop * config["steps"] * config["streams"])) + 1):
        state = programs["add"](state, given, keys)
    figures["state_mib"] = sum(x.nbytes for x in jax.tree.leaves(state)) / 2**20
    walls = {name: [] for name in programs}
    used = {name: [] for name in programs}
    for number in range(arguments.repetitions + 1):
        for name, program in programs.items():
            jax.block_until_ready(state)
            wall, cpu = time.perf_counter(), time.process_time()
            result = jax.block_until_ready(program(state, given, keys))
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            state = state if name == "sample" else result
            if number:  # the first is warm-up
                walls[name].append(1e6 * wall / loop)
                used[name].append(1e6 * cpu / loop)
    for name in programs:
        figures[f"{name}_us"] = statistics.median(walls[name])
        figures[f"{name}_cpu_us"] = statistics.median(used[name])
    return figures | measuring.memory(jax)
