"""The place of a run on a mesh of devices: what is split over which of its axes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl.core import settings, shared
from jaxrl.core.devices import AXES, BATCH, FSDP, MODEL, SEEDS
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Algorithm, Tree
from jaxrl.runtime import processes
from jaxrl.runtime.configuration import Experiment

# Parameters of transformers that the axis `model` splits, by the ends of their paths: of pairs of
# layers the first by its outputs and the second by its inputs (Shoeybi et al., 2019, "Megatron-LM",
# arXiv:1909.08053, section 3). Optimizer states are found by the same names. What is communicated
# is left to XLA, which moves more than that paper's one sum for each pair: it also gathers
# activations at each layer, and gradients for their norm.
_BLOCK = r"/blocks_\d+"
MODEL_RULES: tuple[tuple[str, PartitionSpec], ...] = (
    (rf"{_BLOCK}/(projections|grow)/kernel", PartitionSpec(None, MODEL)),
    (rf"{_BLOCK}/(projections|grow)/bias", PartitionSpec(MODEL)),
    (rf"{_BLOCK}/(mix|shrink)/kernel", PartitionSpec(MODEL, None)),
    (r"/embedding/Dense_0/kernel", PartitionSpec(MODEL, None)),
    (r"/head/linear/kernel", PartitionSpec(None, MODEL)),
    (r"/head/linear/bias", PartitionSpec(MODEL)),
    # Language models (`networks.decoder`), and the adapters of their kernels.
    (rf"{_BLOCK}/(q|k|v|gate|up)_proj/(kernel|lora_b)", PartitionSpec(None, MODEL)),
    (rf"{_BLOCK}/(q|k|v)_proj/bias", PartitionSpec(MODEL)),
    (rf"{_BLOCK}/(o|down)_proj/(kernel|lora_a)", PartitionSpec(MODEL, None)),
    (r"/embed_tokens", PartitionSpec(MODEL, None)),
    (r"/lm_head", PartitionSpec(None, MODEL)),
)
_WEIGHTS = re.compile(r"^agent/parts/[^/]+/(params|target|optimizer)/")


def read_mesh(config: Experiment, members: int) -> dict[str, int]:
    """Return the number of devices along each axis of the mesh of `config`; empty for one device.

    With `devices` alone the members are split if they divide evenly, which needs no communication,
    and otherwise the batch.

    Raises `UserError` for a mesh that does not exist.
    """
    mesh = {name: config.mesh[name] for name in AXES if config.mesh.get(name, 1) != 1}
    for name, count in config.mesh.items():
        if name not in AXES:
            raise unknown("axis of the mesh", name, AXES)
        if count < 1:
            raise UserError(f"mesh has {name}={count}; the number of devices must be at least 1.")
    count = math.prod(mesh.values())
    if mesh and config.devices not in (1, count):
        raise UserError(
            f"devices is {config.devices} and mesh has {count} devices; give one of the two."
        )
    if mesh or config.devices == 1:
        return mesh
    return {BATCH if members % config.devices else SEEDS: config.devices}


def with_shards(config: Experiment, algorithm: Algorithm, members: int) -> Experiment:
    """Return `config` with as many logical shards as devices share the batch, if it has one only.

    So `devices` alone is enough, and the run may continue on fewer devices.
    """
    shares = _shares(read_mesh(config, members))
    if algorithm.num_shards == 1 and shares > 1:
        names = settings.candidates(
            "num_shards", [name for name, *_ in settings.walk(config.agent)]
        )
        if len(names) == 1:
            agent = settings.replace(config.agent, {names[0]: shares})
            return dataclasses.replace(config, agent=agent)
    return config


def layout(config: Experiment, algorithm: Algorithm, members: int) -> dict[str, int]:
    """Return what `read_mesh` does. Raises `UserError` also for a mesh that does not fit the run or
    the devices there are."""
    mesh = read_mesh(config, members)
    _check_fits(mesh, algorithm, members, config.algorithm)
    count, available = math.prod(mesh.values()), jax.devices()
    if count > len(available):
        raise UserError(
            f"{_text(mesh)} needs {count} devices, but there are {len(available)} "
            f"({available[0].platform})."
        )
    return mesh


def _shares(mesh: Mapping[str, int]) -> int:
    """Return the number of devices that share a batch."""
    return mesh.get(BATCH, 1) * mesh.get(FSDP, 1)


def _check_fits(mesh: Mapping[str, int], algorithm: Algorithm, members: int, name: str) -> None:
    """Raise `UserError` unless members and batches divide evenly over the devices."""
    if members % mesh.get(SEEDS, 1):
        raise UserError(
            f"{_text(mesh)} does not divide the {members} members of the run; give a number of "
            "seeds that it divides."
        )
    along, shards = _shares(mesh), algorithm.num_shards
    if along > 1 and shards is None:
        raise UserError(f"'{name}' runs on one device, or on several by its seeds, not by a batch.")
    # Otherwise each minibatch would mix rows that lie on several devices.
    if shards is not None and shards % along:
        raise UserError(
            f"{_text(mesh)} splits the batch over {along} devices, which does not divide its "
            f"{shards} shards (num_shards, or the size of the population)."
        )


def make_mesh(layout: Mapping[str, int]) -> Mesh:
    """Return the mesh with all of `AXES`, of the first devices."""
    shape = tuple(layout.get(name, 1) for name in AXES)
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, kinds, devices=jax.devices()[: math.prod(shape)])


def state_shardings(algorithm: Algorithm, mesh: Mesh, state: Tree, members: bool) -> Tree:
    """Return the sharding of each leaf of an algorithm's state, of which shapes are enough.

    members: whether leaves have a leading axis for the members of the run, except shared ones.

    Raises `UserError` if the mesh has an axis by which no parameter can be split.
    """
    spec_of = lambda spec, part: jax.tree.map(lambda _: spec, part)
    specs = jax.tree.map(spec_of, algorithm.partition, state, is_leaf=_is_spec)
    is_member = jax.tree.map(
        lambda part: jax.tree.map(lambda _: members and not shared.is_shared(part), part),
        state,
        is_leaf=shared.is_shared,
    )
    split = dict.fromkeys((FSDP, MODEL), False)

    def place(path: Any, x: Any, spec: PartitionSpec, is_member: bool) -> NamedSharding:
        shape = x.shape[1:] if is_member else x.shape
        axes = [(BATCH, FSDP) if axis == BATCH else axis for axis in spec]
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not axes and _WEIGHTS.match(name):
            axes = _weight_axes(name, shape, mesh)
            split[FSDP] |= FSDP in axes
            split[MODEL] |= MODEL in axes and bool(re.search(_BLOCK, name))
        return NamedSharding(mesh, PartitionSpec(*([SEEDS] if is_member else []), *axes))

    shardings = jax.tree_util.tree_map_with_path(place, state, specs, is_member)
    for axis, found in split.items():
        if mesh.shape[axis] > 1 and not found:
            raise UserError(
                f"'{algorithm.name}' has no parameters that {axis}={mesh.shape[axis]} can split"
                + ("; this axis is for transformers." if axis == MODEL else ".")
            )
    return shardings


def _weight_axes(name: str, shape: tuple[int, ...], mesh: Mesh) -> list[str | None]:
    """Return the axis of the mesh that splits each axis of a parameter or its optimizer state."""
    axes: list[str | None] = [None] * len(shape)
    for end, spec in MODEL_RULES if mesh.shape[MODEL] > 1 else ():
        fits = [not axis or n % mesh.shape[axis] == 0 for axis, n in zip(spec, shape, strict=False)]
        if re.search(f"{end}$", name) and len(spec) == len(shape) and all(fits):
            axes = list(spec)
    free = [i for i, n in enumerate(shape) if not axes[i] and n % mesh.shape[FSDP] == 0]
    if mesh.shape[FSDP] > 1 and free:
        axes[max(free, key=lambda i: shape[i])] = FSDP
    return axes


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def describe(progress: Any, layout: Mapping[str, int]) -> list[str]:
    """Return lines that say what of a run is split over which axes, and the bytes on each device.

    progress: the run (`driver.Progress`) with its shardings; the row of metrics is left out.
    """
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    held = total = 0
    for path, x in jax.tree_util.tree_leaves_with_path(progress.run):
        here = math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        along = tuple(axis for axis in layout if _is_split(x, axis))
        name = ".".join(_names(path))
        group = groups.setdefault(along, {})
        group[name] = group.get(name, 0) + here
        held, total = held + here, total + x.size * x.dtype.itemsize
    platform = jax.devices()[0].platform
    several = f" of {processes.count()} processes" if processes.count() > 1 else ""
    lines = [
        f"Mesh of {math.prod(layout.values())} devices ({platform}){several}: {_text(layout)}. "
        f"Each holds {format_bytes(held)} of the run's {format_bytes(total)}:"
    ]
    for along, parts in groups.items():
        where = f"split over {' and '.join(along)}" if along else "on every device"
        lines.append(f"  {where}: {format_bytes(sum(parts.values()))} ({', '.join(parts)})")
    return lines


def _is_split(x: jax.Array, axis: str) -> bool:
    spec: Any = x.sharding
    return any(axis == names or axis in (names or ()) for names in spec.spec)


def _names(path: tuple[Any, ...]) -> list[str]:
    """Return the names of the first two levels of a run's leaf, without `state`."""
    names = [str(getattr(entry, "name", getattr(entry, "key", entry))) for entry in path]
    names = names[1:] if names[0] == "state" else names
    return names[:2]


def _text(layout: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={count}" for name, count in layout.items())


def format_bytes(count: float) -> str:
    """Return a number of bytes in the unit in which it has at most three digits."""
    return in_units(count, ["bytes", "kB", "MB", "GB", "TB"])


def in_units(number: float, units: list[str]) -> str:
    """Return a number in the one of `units`, each 1,000 times the last, in which it has at most
    three digits."""
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.3g} {units[0]}"
