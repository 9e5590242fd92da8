"""Compiled versions of `jaxrl.losses`, `diffusion`, `gradients` and `solvers`.

A plain call compiles every operation of a function separately, which would take most of the time of
its tests; here each function is one program: `from tests.losses.compiled import losses`. Inside
another program (`jax.jit`, `jax.vmap`, `jax.grad`) the plain function is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from tests.losses.contract import ROOMS


def is_array(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def one_program(function: Callable) -> Callable:
    @functools.lru_cache(8)
    def program(structure: Any, static: tuple[Any, ...]) -> Callable:
        def run(arrays):
            leaves = iter(arrays)
            filled = [next(leaves) if x is ARRAY else x[1] for x in static]
            args, kwargs = jax.tree.unflatten(structure, filled)
            return function(*args, **kwargs)

        return jax.jit(run)

    @functools.wraps(function)
    def compiled_call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [x for x in leaves if is_array(x)]
        if not arrays or any(isinstance(x, jax.core.Tracer) for x in arrays):
            return function(*args, **kwargs)
        # Include the type: 1 and 1.0 are equal, but make different programs.
        static = tuple(ARRAY if is_array(x) else (type(x), x) for x in leaves)
        return program(structure, static)(arrays)

    return compiled_call


ARRAY = "array"
losses, diffusion, gradients, solvers = (
    SimpleNamespace(
        **{
            name: one_program(value) if inspect.isfunction(value) else value
            for name, value in vars(room).items()
            if not name.startswith("_")
        }
    )
    for room in ROOMS.values()
)
