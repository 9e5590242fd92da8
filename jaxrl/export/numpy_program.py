"""A policy as a NumPy file: its constants, and a list of operations that `numpy_reader` runs."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.export.acting import Acting
from jaxrl.export.numpy_reader import FUNCTIONS
from jaxrl.export.operations import Operation


def write(acting: Acting, path: Path, about: dict[str, Any]) -> None:
    """Write a policy to `path`, a .npz that `numpy_reader.Policy` reads.

    Raises:
        UserError: if the policy does something that the reader has no function for, such as a
            convolution or a loop, or computes with numbers that NumPy does not have (bfloat16).
    """
    program, memory = acting.program, dict(sorted(acting.memory.items()))
    _check_types(acting)
    operations = [
        (*_describe(operation), operation.inputs, operation.outputs)
        for operation in program.operations
    ]
    found = about | {
        "inputs": {name: str(acting.inputs[name].dtype) for name in sorted(acting.inputs)},
        "memory": list(memory),
        "actions": acting.actions,
        "numbers": program.inputs,
        "operations": operations,
        "outputs": program.outputs,
    }
    arrays: Any = {str(number): np.asarray(x) for number, x in program.constants.items()}
    arrays |= {name: np.asarray(x) for name, x in memory.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, about=json.dumps(found), **arrays)


def _check_types(acting: Acting) -> None:
    """Raise `UserError` for numbers of a type that NumPy does not have."""
    program, (inputs, memory) = acting.program, acting.shapes
    types = [np.asarray(x).dtype for x in program.constants.values()]
    types += [np.dtype(x.dtype) for x in (inputs | memory).values()]
    types += [
        np.dtype(operation.parameters["new_dtype"])
        for operation in program.operations
        if operation.name == "convert_element_type"
    ]
    for kind in types:
        if kind.kind not in "biufc":
            raise UserError(
                f"The policy computes in {kind.name}, which NumPy does not have; export it with "
                "--format stablehlo or onnx."
            )


def _describe(operation: Operation) -> tuple[str, dict[str, Any]]:
    """Return the name of the reader's function for an operation, and its parameters."""
    name, given, shapes = operation.name, operation.parameters, operation.shapes
    found: dict[str, Any] = {}
    if name in ("argmax", "argmin"):
        found = {"axis": given["axes"][0]}
    elif name == "broadcast_in_dim":
        places = [1] * len(given["shape"])
        for place, size in zip(given["broadcast_dimensions"], shapes[0], strict=True):
            places[place] = size
        name, found = "broadcast", {"places": places, "shape": given["shape"]}
    elif name == "concatenate":
        found = {"axis": given["dimension"]}
    elif name == "convert_element_type":
        found = {"dtype": np.dtype(given["new_dtype"]).name}
    elif name == "cumsum" and not given["reverse"]:
        found = {"axis": given["axis"]}
    elif name == "dot_general":
        name, found = "einsum", {"subscripts": _subscripts(given["dimension_numbers"], shapes)}
    elif name == "integer_pow":
        found = {"y": given["y"]}
    elif name.startswith("reduce_") and "axes" in given:
        found = {"axis": given["axes"]}
    elif name in ("reshape", "squeeze"):
        kept = [n for i, n in enumerate(shapes[0]) if i not in (given.get("dimensions") or ())]
        name, found = "reshape", {"shape": given.get("new_sizes", kept)}
    elif name == "rev":
        found = {"axis": given["dimensions"]}
    elif name == "slice":
        strides = given["strides"] or [1] * len(given["start_indices"])
        limits = given["start_indices"], given["limit_indices"], strides
        found = {"ranges": list(zip(*limits, strict=True))}
    elif name == "split":
        found = {"ends": np.cumsum(given["sizes"])[:-1].tolist(), "axis": given["axis"]}
    elif name == "stack":
        found = {"axis": given["axis"]}
    elif name == "transpose":
        found = {"axes": given["permutation"]}
    elif name not in FUNCTIONS or name == "cumsum":
        raise UserError(
            f"The policy uses the operation '{name}', which the NumPy reader has no function for; "
            "export it with --format stablehlo or onnx."
        )
    return name, found


def _subscripts(dimensions: Any, shapes: tuple[tuple[int, ...], ...]) -> str:
    """Return the subscripts of `einsum` for a `dot_general`: batch axes, then those of the left and
    of the right side that are not summed over."""
    (left_summed, right_summed), (left_batch, right_batch) = dimensions
    letters = iter(string.ascii_letters)
    left = [next(letters) for _ in shapes[0]]
    right = [next(letters) for _ in shapes[1]]
    for i, j in [*zip(left_summed, right_summed, strict=True),
                 *zip(left_batch, right_batch, strict=True)]:  # fmt: skip
        right[j] = left[i]
    rest = [x for i, x in enumerate(left) if i not in (*left_summed, *left_batch)]
    rest += [x for i, x in enumerate(right) if i not in (*right_summed, *right_batch)]
    out = [left[i] for i in left_batch] + rest
    return f"{''.join(left)},{''.join(right)}->{''.join(out)}"
