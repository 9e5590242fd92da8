"""A program on several devices, laid out as `partition` says."""

import re
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxrl.core.devices import BATCH
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm


def mesh(devices):
    return jax.make_mesh(
        (devices,), (BATCH,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )


def shardings(mesh, partition, state):
    """A sharding for each leaf of `state` by `partition`, a prefix of its tree."""
    return jax.tree.map(
        lambda spec, part: jax.tree.map(lambda _: NamedSharding(mesh, spec), part),
        partition,
        state,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def compile_steps(algorithm: Algorithm, key, steps: int, devices: int) -> tuple[Run, Any]:
    """A run that has just begun, and the program of `steps` of its steps."""
    on, run = mesh(devices), start(algorithm, key)
    everywhere: Any = NamedSharding(on, PartitionSpec())
    places = Run(shardings(on, algorithm.partition, run.state), everywhere, everywhere)
    run = jax.tree.map(jax.device_put, run, places)
    go = jax.jit(lambda run: train(algorithm, run, steps), out_shardings=(places, None))
    return run, go.lower(run).compile()


def all_gathers(program) -> list[int]:
    """Return the sizes of the results of a program's `all-gather`s."""
    lines = program.as_text().splitlines()
    results = " ".join(line.split(" all-gather(")[0] for line in lines if " all-gather(" in line)
    shapes = re.findall(r"\w+\[([\d,]*)\]", results)
    return [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes]


def numbers(tree):
    """Return the leaves of `tree`, those of keys as numbers."""
    is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(tree)]


def assert_equal(one, other, tolerance=1e-3):
    """Up to rounding."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)
