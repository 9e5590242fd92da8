"""Forecasts of what a run needs before it is trained: memory, arithmetic, and time.

Bytes are those of the run's state and, for activations and other scratch memory, of the program
that XLA has compiled for this machine. Arithmetic is counted in what JAX has traced, since XLA
counts the body of a loop once. Time here is measured; on other machines it is a bound of the
roofline model (Williams et al., 2009, "Roofline: an insightful visual performance model for
multicore architectures").
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import jax
import jax.core
import numpy as np

from jaxrl.runtime.building import (
    build,
    check_host,
    configure_jax,
    evaluation_environment,
    plan,
    program,
)
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.driver import Program, Progress
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import seed_members
from jaxrl.runtime.placement import format_bytes, in_units, with_shards
from jaxrl.runtime.traffic import Traffic, count_traffic

LONG_ENOUGH = 1.0  # seconds of training that are measured, at least
UNITS = ["FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"]


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Peak speed of one chip, without sparsity, by its vendor's data sheet.

    products: multiplications and additions in products of matrices per second, by their type;
        float32 as JAX multiplies it there by default (TensorFloat-32 on GPUs, bfloat16 on TPUs).
    bandwidth: bytes per second between the chip and its memory.
    """

    name: str
    products: dict[str, float]
    bandwidth: float


ACCELERATORS = (
    Accelerator("A100 80GB", {"float32": 156e12, "bfloat16": 312e12}, 2.039e12),
    Accelerator("H100 SXM", {"float32": 495e12, "bfloat16": 989e12}, 3.35e12),
    Accelerator("TPU v5e", {"float32": 197e12, "bfloat16": 197e12}, 819e9),
    Accelerator("TPU v6e", {"float32": 918e12, "bfloat16": 918e12}, 1.638e12),
)


@dataclasses.dataclass
class Work:
    """Arithmetic of a traced function, in its products of matrices and its convolutions.

    flops: multiplications and additions, by the type of what is multiplied.
    bytes: of what the products read and write; what is fused with them reads and writes no less.
    is_bounded: False if a loop runs an unknown number of times, whose body is counted once.
    """

    flops: dict[str, float] = dataclasses.field(default_factory=dict)
    bytes: float = 0.0
    is_bounded: bool = True

    @property
    def total(self) -> float:
        return sum(self.flops.values())

    def add(self, other: Work, times: float = 1.0) -> None:
        for kind, count in other.flops.items():
            self.flops[kind] = self.flops.get(kind, 0.0) + times * count
        self.bytes += times * other.bytes
        self.is_bounded &= other.is_bounded

    def seconds_on(self, chip: Accelerator) -> float:
        """Return the least time that the products take there."""
        arithmetic = sum(n / chip.products.get(kind, 1e12) for kind, n in self.flops.items())
        return max(arithmetic, self.bytes / chip.bandwidth)


def count(jaxpr: Any) -> Work:
    """Count the work of a jaxpr: loops of known length as often as they run, of branches the one
    with the most work."""
    found = Work()
    for equation in jaxpr.eqns:
        inside = [count(inner) for inner in jax.core.jaxprs_in_params(equation.params)]
        match equation.primitive.name:
            case "dot_general" | "conv_general_dilated":
                found.add(_product(equation))
            case "scan":
                for one in inside:
                    found.add(one, equation.params["length"])
            case "while":
                for one in inside:
                    found.add(dataclasses.replace(one, is_bounded=not one.total))
            case "cond":
                found.add(max(inside, key=lambda one: one.total))
            case _:
                for one in inside:
                    found.add(one)
    return found


def _product(equation: Any) -> Work:
    """Return the work of one product of matrices or convolution: each number of the result is a sum
    of as many products as an input has numbers that are summed over."""
    x, w = (v.aval for v in equation.invars[:2])
    result = equation.outvars[0].aval
    if equation.primitive.name == "dot_general":
        (summed, _), _ = equation.params["dimension_numbers"]
        terms = math.prod(x.shape[i] for i in summed)
    else:
        out = equation.params["dimension_numbers"].rhs_spec[0]  # the axis of output channels
        terms = w.size // w.shape[out]
    size = sum(v.size * v.dtype.itemsize for v in (x, w, result))
    return Work({x.dtype.name: 2.0 * result.size * terms}, float(size))


def lines(config: Experiment) -> list[str]:
    """Return lines that say what the run of `config` needs; a second of it is trained for this.

    Raises `UserError` as `training.train` does for settings that cannot work.
    """
    configure_jax(config)
    members = seed_members(config)
    config = with_shards(config, build(config)[1], len(members))
    env, algorithm = build(config)
    check_host(config, env)
    evaluation_environment(config, env)
    made = program(config, algorithm, members)
    on_host = isinstance(made, HostProgram)
    own: Program = made.learner if on_host else made
    keys = members.keys(config.generator)
    shapes = made.shapes(keys)
    groups = _bytes_by_group(shapes.run.state)
    together = f", all {len(members)} seeds together" if len(members) > 1 else ""
    found = [f"Bytes of the state{together}:"]
    found += [f"  {name:22} {format_bytes(size):>9}" for name, size in groups.items()]
    work = count(jax.make_jaxpr(own._advance)(shapes.run).jaxpr)
    steps = algorithm.env_steps * len(members)
    least = "" if work.is_bounded else "at least "
    text = ", ".join(f"{in_units(n, UNITS)} in {kind}" for kind, n in sorted(work.flops.items()))
    found.append(
        f"An update is {steps:,} environment steps, and {least}{in_units(work.total, UNITS)} in "
        f"products of matrices ({text or 'none'})."
    )
    updates = plan(config, algorithm).total
    if on_host:
        found.append("Its environments run on the host, so nothing is measured.")
    else:
        found += _measure(own, own.start(keys, members.own_hyper()), steps, updates)
    found.append(
        "Estimates by the roofline model for the products alone, each of which reads its inputs "
        "from memory; everything else, and latency, comes on top:"
    )
    for chip in ACCELERATORS:
        one = work.seconds_on(chip)
        each, whole = _time(one), _time(one * updates)
        found.append(f"  {chip.name:10} {each:>9} for an update, {whole:>9} for the run")
    return found


def _measure(own: Program, progress: Progress, steps: int, updates: int) -> list[str]:
    """Compile the program, run it for a second, and return what was measured."""
    began = time.perf_counter()
    compiled = own._compile_chunk(progress)
    compiling = time.perf_counter() - began
    stats: Any = compiled.memory_analysis()
    chunk = lambda progress, size: compiled(progress.run, progress.row, np.int32(size))
    progress = jax.block_until_ready(chunk(progress, 1))
    done, size, seconds = 0, 1, 0.0
    began = time.perf_counter()
    while seconds < LONG_ENOUGH and done < updates:
        progress = jax.block_until_ready(chunk(progress, size))
        done, seconds = done + size, time.perf_counter() - began
        size = max(1, min(2 * size, updates - done))
    each = seconds / done
    device = jax.devices()[0].device_kind
    return [
        f"Activations and other scratch memory of an update: "
        f"{format_bytes(stats.temp_size_in_bytes)} on {device}.",
        *([] if own.mesh is None else [_traffic_line(count_traffic(compiled.as_text()))]),
        f"Measured here: {_time(compiling)} of compilation, {_time(each)} for an update "
        f"({steps / each:,.0f} steps/s), {_time(each * updates)} for the {updates:,} updates of "
        "the run without its evaluations.",
    ]


def _traffic_line(traffic: Traffic) -> str:
    """Return a line that says what devices send each other in an update."""
    if not traffic.total:
        return "Devices send each other nothing."
    # The loop over updates has no known length, and its body is an update.
    least = "at least " if traffic.open_loops > 1 else ""
    kinds = sorted(traffic.bytes.items(), key=lambda item: -item[1])
    text = ", ".join(f"{format_bytes(size)} by {kind}" for kind, size in kinds if size)
    return f"Each device sends {least}{format_bytes(traffic.total)} in an update ({text})."


def _bytes_by_group(state: Any) -> dict[str, int]:
    """Return the bytes of a run's state by what they are for."""
    sizes: dict[str, int] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(state):
        names = [str(getattr(entry, "name", getattr(entry, "key", ""))) for entry in path]
        size = x.size * x.dtype.itemsize
        if "params" in names[:4]:
            group = "parameters"
        elif "target" in names[:4]:
            group = "target networks"
        elif "optimizer" in names[:4]:
            group = "optimizers"
        elif names[0] == "source":
            group = "replay, data, episodes"
        else:
            group = "other"
        sizes[group] = sizes.get(group, 0) + size
    return sizes


def _time(seconds: float) -> str:
    """Return a time in a unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= (size if unit in ("s", "ms") else 2 * size):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
