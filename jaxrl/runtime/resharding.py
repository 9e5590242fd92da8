"""Weights of a language model between training and generation: a layout for each on one mesh.

Training splits each kernel over many devices; generation is faster with fewer parts and more
replicas. So the weights change their layout twice in every update. Source: Sheng et al., 2024,
"HybridFlow: a flexible and efficient RLHF framework", arXiv:2409.19256, section 5.

    groups = Groups(data=2, tensor=4, generation=2)
    engine = Engine(groups, groups.mesh(jax.devices()))
    weights = engine.place(params)             # each device holds a quarter of each kernel
    weights = engine.to_generation(weights)    # a half
    weights = engine.to_training(weights)      # a quarter, and nothing is sent

There is no pipeline of layers here, so the sizes p and p_g of the paper are 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxrl.core.devices import MODEL
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Tree
from jaxrl.runtime.placement import MODEL_RULES
from jaxrl.runtime.traffic import count_traffic

DATA, PART, MICRO = AXES = ("data", "part", "micro")
GROUPINGS: Mapping[str, tuple[str, ...]] = {
    "all_devices": (DATA, MICRO, PART),
    "consecutive": (MICRO, PART),
    "micro_groups": (PART, MICRO),
}
"""Axes over which training splits a kernel, the slowest first, by the way to group devices. What
generation keeps is the part of the axis `part`, so only with `micro_groups` is each device's share
in training a piece of its share in generation."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """Numbers of devices that share a model.

    data: replicas in training (d). tensor: parts of a kernel in training (t).
    generation: parts of a kernel in generation (t_g), which divides t; each replica of training
        becomes d_g = t / t_g replicas.

    Raises `UserError` for numbers below 1, and where t_g does not divide t.
    """

    data: int = 1
    tensor: int = 1
    generation: int = 1

    def __post_init__(self):
        sizes = dataclasses.asdict(self)
        if min(sizes.values()) < 1 or self.tensor % self.generation:
            raise UserError(
                f"The groups are {sizes}; all must be at least 1, and the parts in generation must "
                "divide those in training."
            )

    @property
    def micro(self) -> int:
        """Replicas in generation of each replica in training (d_g)."""
        return self.tensor // self.generation

    @property
    def devices(self) -> int:
        """Number of all devices."""
        return self.data * self.tensor

    def mesh(self, devices: Sequence[Any], grouping: str = "micro_groups") -> Mesh:
        """Return the mesh of the first of these devices, of which neighbors share a replica.

        Raises `UserError` for too few devices, and for an unknown grouping.
        """
        if len(devices) < self.devices:
            raise UserError(f"{self} needs {self.devices} devices, but there are {len(devices)}.")
        if grouping not in GROUPINGS:
            raise unknown("grouping", grouping, GROUPINGS)
        inner = [axis for axis in GROUPINGS[grouping] if axis != DATA]  # in the order of devices
        sizes = {PART: self.generation, MICRO: self.micro}
        array = np.array(devices[: self.devices]).reshape(self.data, *(sizes[x] for x in inner))
        return Mesh(array, (DATA, *inner), axis_types=(AxisType.Auto,) * 3)


@dataclasses.dataclass(frozen=True)
class Transition:
    """Costs of the change from training to generation, in bytes for each device.

    sent: to other devices. peak: weights that it holds at once, at most, beside its share in
        training. redundant: of its share in training, what generation cannot use, at most over
        devices; it stays in memory for the next update.
    """

    sent: float
    peak: float
    redundant: float


def predict_transition(grouping: str, groups: Groups, size: float) -> Transition:
    """Return the costs of a change of layout of weights of `size` (M) bytes.

    all_devices:  (t d - 1) / (t d) M,      M,        M / (t d)
    consecutive:  (t - 1) / t M,            M,        M / t
    micro_groups: (t - t_g) / (t_g t) M,    M / t_g,  0

    The first is DeepSpeed-Chat, whose training splits weights over all devices, the second
    HybridFlow-V, which gathers a replica's weights and groups neighbors in generation too. What is
    redundant there holds for 1 < t_g < t. Source: Sheng et al., 2024,
    "HybridFlow: a flexible and efficient RLHF framework", table 2.
    """
    t, d, g = groups.tensor, groups.data, groups.generation
    if grouping == "all_devices":
        return Transition((t * d - 1) / (t * d) * size, size, size / (t * d))
    if grouping == "consecutive":
        return Transition((t - 1) / t * size, size, size / t)
    if grouping != "micro_groups":
        raise unknown("grouping", grouping, GROUPINGS)
    return Transition((t - g) / (g * t) * size, size / g, 0.0)


class Engine:
    """Changes of the layout of a model's weights on a mesh of `groups`.

    The weights are a tree with the names of `networks.decoder.LanguageModel` or of
    `networks.transformer.Transformer`. What the rules of `placement.MODEL_RULES` do not name, or
    what does not divide, is held whole by every device and never sent.
    """

    def __init__(self, groups: Groups, mesh: Mesh, grouping: str = "micro_groups"):
        """groups: numbers of devices. mesh: `groups.mesh(devices, grouping)`.
        grouping: one of `GROUPINGS`."""
        self.groups, self.mesh, self.grouping = groups, mesh, grouping

    def shardings(self, tree: Tree, generation: bool = False) -> Tree:
        """Return the sharding of each leaf, in training or in generation."""
        axes = (PART,) if generation else GROUPINGS[self.grouping]

        def of(path: Any, x: Any) -> NamedSharding:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            axis = self._split_axis("/" + name, x.shape)
            spec = [] if axis is None else [None] * axis + [axes]
            return NamedSharding(self.mesh, PartitionSpec(*spec))

        return jax.tree_util.tree_map_with_path(of, tree)

    def batch_sharding(self, generation: bool = False) -> NamedSharding:
        """Return the sharding of texts [T, B] over replicas, in training or in generation."""
        return NamedSharding(self.mesh, PartitionSpec(None, (DATA, MICRO) if generation else DATA))

    def place(self, tree: Tree) -> Tree:
        """Return weights in their layout in training."""
        return jax.device_put(tree, self.shardings(tree))

    def to_generation(self, tree: Tree) -> Tree:
        """Return weights in their layout in generation, from that in training."""
        return self.compile_change(tree, True)(tree)

    def to_training(self, tree: Tree) -> Tree:
        """Return weights in their layout in training, from that in generation: with `micro_groups`
        a piece of what each device holds."""
        return self.compile_change(tree, False)(tree)

    def split_bytes(self, tree: Tree) -> int:
        """Return the bytes of all weights that are split (M)."""
        split = lambda x, s: x.size * x.dtype.itemsize * (not s.is_fully_replicated)
        whole = self.groups.tensor == 1
        sizes = jax.tree.leaves(jax.tree.map(split, tree, self.shardings(tree)))
        return 0 if whole else sum(sizes)

    def measure(self, tree: Tree) -> Transition:
        """Return the costs of `to_generation`, by the compiled program and the places of shards.

        tree: weights or their shapes. The peak is that of what XLA allocates for the weights that
        are split: results, and whatever it holds until they are there.
        """
        compiled = self.compile_change(tree, True)
        own = [jax.tree.leaves(self.shardings(tree, generation)) for generation in (False, True)]
        leaves = jax.tree.leaves(tree)
        lost = np.zeros(self.groups.devices)
        whole = 0
        for x, training, generation in zip(leaves, *own, strict=True):
            before, after = (s.devices_indices_map(x.shape) for s in (training, generation))
            for i, device in enumerate(before):
                shared = count_shared(before[device], after[device], x.shape)
                lost[i] += (count_shared(before[device], (), x.shape) - shared) * x.dtype.itemsize
            whole += x.size * x.dtype.itemsize if training.is_fully_replicated else 0
        memory = compiled.memory_analysis()
        results = memory.output_size_in_bytes - whole
        peak = max(memory.temp_size_in_bytes, results)
        return Transition(count_traffic(compiled.as_text()).total, peak, float(lost.max()))

    def _split_axis(self, name: str, shape: tuple[int, ...]) -> int | None:
        """Return the axis of a leaf that is split; None for none."""
        parts = self.groups.tensor * (self.groups.data if self.grouping == "all_devices" else 1)
        for end, spec in MODEL_RULES:
            if re.search(f"{end}$", name) and len(spec) == len(shape):
                axis = list(spec).index(MODEL)
                return axis if shape[axis] % parts == 0 else None
        return None

    def compile_change(self, tree: Tree, generation: bool) -> Any:
        """Return the compiled program of `to_generation`, or else of `to_training`."""
        leaves, structure = jax.tree.flatten(tree)
        shapes = tuple((x.shape, np.dtype(x.dtype)) for x in leaves)
        return self._compile_for(shapes, structure, generation)

    @functools.cache  # noqa: B019  (an engine lives as long as its model)
    def _compile_for(self, shapes: Any, structure: Any, generation: bool) -> Any:
        tree = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*x) for x in shapes])
        before, after = self.shardings(tree, not generation), self.shardings(tree, generation)
        whole = NamedSharding(self.mesh, PartitionSpec())

        def change(tree: Tree) -> Tree:
            if generation and self.grouping != "micro_groups":
                tree = jax.lax.with_sharding_constraint(tree, whole)  # all of it is gathered first
            return tree

        program = jax.jit(change, in_shardings=(before,), out_shardings=after)
        return program.lower(tree).compile()


def count_shared(index: Sequence[slice], other: Sequence[slice], shape: tuple[int, ...]) -> int:
    """Return the number of elements of an array that are in both of two parts of it.

    index, other: a slice of each axis; `()` for the whole array.
    """
    bounds = lambda index: [x.indices(n)[:2] for x, n in zip(index, shape, strict=True)]
    full = [(0, n) for n in shape]
    ours, theirs = (bounds(x) if len(x) else full for x in (index, other))
    sides = [min(b, d) - max(a, c) for (a, b), (c, d) in zip(ours, theirs, strict=True)]
    return math.prod(max(0, side) for side in sides)


def count_moved(x: jax.Array, sharding: Sharding) -> int:
    """Return the bytes that all devices together receive where an array is laid out anew: what a
    device's shard contains that it does not hold yet."""
    held = x.sharding.devices_indices_map(x.shape)
    moved = 0
    for device, index in sharding.devices_indices_map(x.shape).items():
        own = count_shared(index, (), x.shape)
        moved += own - (count_shared(index, held[device], x.shape) if device in held else 0)
    return moved * x.dtype.itemsize


def held_bytes(tree: Tree) -> dict[Any, int]:
    """Return the bytes of a tree of arrays that each device holds."""
    found: dict[Any, int] = {}
    for x in jax.tree.leaves(tree):
        for shard in x.addressable_shards:
            found[shard.device] = found.get(shard.device, 0) + shard.data.nbytes
    return found
