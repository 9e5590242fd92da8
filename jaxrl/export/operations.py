"""A traced function as a flat list of primitive operations, with only what its outputs need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jaxrl.core.types import Tree

# Primitives that only call another program, and the parameters that may hold it.
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2", "checkpoint")
PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One primitive: the numbers of its inputs and outputs among all values, the shapes of the
    inputs, and its parameters."""

    primitive: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        return self.primitive.name


@dataclasses.dataclass(frozen=True)
class Program:
    """Operations in order. Values are numbered; constants are {number: array}."""

    inputs: tuple[int, ...]
    constants: dict[int, Any]
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]

    @property
    def dependencies(self) -> set[int]:
        """Numbers of the values that the outputs depend on."""
        return set(self.outputs).union(*(operation.inputs for operation in self.operations))

    def run(self, *inputs: Any) -> list[Any]:
        """Return the outputs for these inputs, which JAX may be tracing."""
        values = dict(zip(self.inputs, inputs, strict=True)) | self.constants
        for operation in self.operations:
            arguments = [values[number] for number in operation.inputs]
            found = operation.primitive.bind(*arguments, **operation.parameters)
            several = operation.primitive.multiple_results
            values |= dict(zip(operation.outputs, found if several else [found], strict=True))
        return [values[number] for number in self.outputs]


def trace(function: Callable[..., Tree], *shapes: Tree) -> Program:
    """Return the program of `function` for arguments of these shapes.

    Inputs and outputs are leaves in the order of `jax.tree.leaves`. What does not depend on the
    inputs is computed here and becomes a constant.
    """
    closed = jax.make_jaxpr(function)(*shapes)
    values = _Values()
    inputs = tuple(values.new() for _ in closed.jaxpr.invars)
    outputs = values.add(closed.jaxpr, inputs, [values.constant(x) for x in closed.consts])
    needed, kept = set(outputs), []
    for operation in reversed(values.operations):
        if needed & set(operation.outputs):
            needed |= set(operation.inputs)
            kept.append(operation)
    constants = {number: x for number, x in values.constants.items() if number in needed}
    return Program(inputs, constants, tuple(reversed(kept)), tuple(outputs))


class _Values:
    """The values and the operations of nested programs, as one list."""

    def __init__(self) -> None:
        self.count = 0
        self.constants: dict[int, Any] = {}
        self.operations: list[Operation] = []

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def constant(self, value: Any) -> int:
        number = self.new()
        self.constants[number] = value
        return number

    def add(self, jaxpr: Jaxpr, inputs: Sequence[int], constants: Sequence[int]) -> list[int]:
        """Add the operations of `jaxpr`, and return the numbers of its outputs."""
        known = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= dict(zip(jaxpr.constvars, constants, strict=True))

        def number(x: Any) -> int:
            return self.constant(np.asarray(x.val)) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            found = self._add(equation, [number(x) for x in equation.invars])
            known |= dict(zip(equation.outvars, found, strict=True))
        return [number(x) for x in jaxpr.outvars]

    def _add(self, equation: Any, inputs: Sequence[int]) -> list[int]:
        """Add one equation, and return the numbers of its outputs."""
        primitive, parameters = equation.primitive, equation.params
        if primitive.name in CALLS:
            called = next(parameters[name] for name in PROGRAMS if name in parameters)
            closed = called if isinstance(called, ClosedJaxpr) else ClosedJaxpr(called, ())
            return self.add(closed.jaxpr, inputs, [self.constant(x) for x in closed.consts])
        if all(number in self.constants for number in inputs):
            found = primitive.bind(*(self.constants[number] for number in inputs), **parameters)
            return [self.constant(x) for x in (found if primitive.multiple_results else [found])]
        outputs = [self.new() for _ in equation.outvars]
        shapes = tuple(x.aval.shape for x in equation.invars)
        self.operations.append(
            Operation(primitive, tuple(inputs), tuple(outputs), shapes, parameters)
        )
        return outputs
