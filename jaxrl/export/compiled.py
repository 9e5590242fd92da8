"""A policy as StableHLO or ONNX: one program for any number of episodes side by side."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Policy
from jaxrl.envs.adapters import wrapping
from jaxrl.export.acting import Acting, Arrays, channels

PLATFORMS = ("cpu", "cuda", "tpu")
PROGRAM, ABOUT, MEMORY = "policy.bin", "about.json", "memory.npz"  # in a file of StableHLO


def write_stablehlo(acting: Acting, path: Path, about: dict[str, Any]) -> None:
    """Write a policy to `path`, a zip that `load` reads: its program, for CPU, CUDA and TPU and any
    number of episodes, a description, and the memory at the start of an episode.

    Raises:
        UserError: if the package flatbuffers is not installed.
    """
    _need("flatbuffers")
    (number,) = export.symbolic_shape("episodes")
    many = lambda x: jax.ShapeDtypeStruct((number, *x.shape), x.dtype)
    inputs, memory = jax.tree.map(many, acting.shapes)
    function = jax.jit(jax.vmap(acting.function))
    program = export.export(function, platforms=PLATFORMS)(inputs, memory)
    kinds = {name: [list(x.shape), str(x.dtype)] for name, x in acting.inputs.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(PROGRAM, bytes(program.serialize()))
        file.writestr(ABOUT, json.dumps(about | {"inputs": kinds, "actions": acting.actions}))
        with file.open(MEMORY, "w") as held:
            arrays: Any = {name: np.asarray(x) for name, x in acting.memory.items()}
            np.savez(held, **arrays)


def write_onnx(acting: Acting, path: Path, about: dict[str, Any]) -> None:
    """Write a policy to `path` as an ONNX model for any number of episodes.

    Call it last in a process: jax2onnx replaces functions of JAX, and leaves some of them replaced.

    Its inputs and outputs have the names of `acting`; those of the memory begin with `memory`, and
    the next memory's with `next_memory`. The model's metadata hold `about`.

    Raises:
        UserError: if the package jax2onnx is not installed, or has no counterpart of an operation.
    """
    _need("jax2onnx")
    from jax2onnx import to_onnx

    program, (inputs, memory) = acting.program, acting.shapes
    names = [*sorted(inputs), *sorted(memory)]
    function = jax.vmap(lambda *x: tuple(program.run(*x)))
    shapes = [("episodes", *(inputs | memory)[name].shape) for name in names]
    dtypes = [(inputs | memory)[name].dtype for name in names]
    try:
        model: Any = to_onnx(
            function,
            [jax.ShapeDtypeStruct(x, dtype) for x, dtype in zip(shapes, dtypes, strict=True)],
            model_name="policy",
            input_names=names,
            output_names=[*acting.actions, *(f"next_{name}" for name in sorted(memory))],
        )
    except Exception as error:  # whatever it cannot convert
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"jax2onnx cannot convert the policy ({type(error).__name__}: {reason}); export it "
            "with --format stablehlo."
        ) from error
    for name, value in about.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, json.dumps(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


@dataclasses.dataclass(frozen=True)
class Exported:
    """A policy that was read from a file of StableHLO. It always acts greedily."""

    policy: Policy
    about: dict[str, Any]

    @property
    def env(self) -> Environment:
        """The environment that the policy was trained in."""
        env = envs.make(self.about["env"], **self.about["env_params"])
        return wrapping.wrap(env, self.about["wrappers"])


def load(path: Path) -> Exported:
    """Read a policy that `write_stablehlo` wrote.

    Raises:
        UserError: if `path` is no such file, or the package flatbuffers is not installed.
    """
    _need("flatbuffers")
    try:
        with zipfile.ZipFile(path) as file:
            about = json.loads(file.read(ABOUT))
            program = export.deserialize(bytearray(file.read(PROGRAM)))
            with file.open(MEMORY) as held:
                start = {name: jnp.asarray(x) for name, x in np.load(held).items()}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' is no policy that jaxrl exported ({error}).") from error

    def act(state, timestep, memory, key, greedy):
        found = channels(timestep)
        actions, memory = program.call({name: found[name] for name in about["inputs"]}, memory)
        return _action(actions), memory, {}

    def memory(number: int) -> Arrays:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), start)

    return Exported(Policy(act, memory), about)


def _action(actions: Arrays) -> Any:
    """Return an action from its leaves by dotted name: an array, or nested dicts and tuples."""
    if "action" in actions:
        return actions["action"]
    parts: dict[str, Arrays] = {}
    for name, value in actions.items():
        _, part, *rest = name.split(".")
        parts.setdefault(part, {})[".".join(["action", *rest])] = value
    tree = {part: _action(leaves) for part, leaves in parts.items()}
    if all(part.isdigit() for part in tree):
        return tuple(tree[part] for part in sorted(tree, key=int))
    return tree


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(f"This needs the package {package}: pip install 'jaxrl-research[export]'.")
