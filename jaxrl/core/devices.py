"""The axes of the mesh of devices over which a run is spread."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxrl.core.types import Tree

SEEDS = "seeds"
"""The axis over which the members of a run are split: its seeds, and the points of a sweep."""
BATCH = "batch"
"""The axis over which environments, batches and populations are split."""
FSDP = "fsdp"
"""The axis over which batches and, by their size, parameters and optimizer states are split."""
MODEL = "model"
"""The axis over which the parameters of transformers are split, by their names."""
AXES = (SEEDS, BATCH, FSDP, MODEL)


def spread(tree: Tree) -> Tree:
    """Split the leading axis of the arrays of `tree` over the devices that share a batch.

    This is for what no state holds and so nothing has split before: the policies of a population,
    the episodes of an evaluation. It leaves alone what is traced without a mesh (`jax.set_mesh`),
    and arrays whose leading axis the number of devices does not divide.
    """
    mesh: Any = jax.sharding.get_abstract_mesh()
    names = tuple(name for name in (BATCH, FSDP) if name in mesh.axis_names)
    count = math.prod(mesh.shape[name] for name in names)
    if count == 1:
        return tree

    def split(x: Any) -> Any:
        if x.ndim == 0 or x.shape[0] % count:
            return x
        return jax.lax.with_sharding_constraint(x, PartitionSpec(names))

    return jax.tree.map(split, tree)


def gather(params: Tree) -> Tree:
    """Gather parameters that the axis `fsdp` alone splits, where a network is applied to them.

    So each device computes its share of the batch by whole kernels, as in ZeRO (Rajbhandari et
    al., 2020, arXiv:1910.02054). Left to itself, XLA also splits activations by the kernels' axes
    and exchanges those, which is many times as much. With the axis `model` it is left to itself.
    """
    mesh: Any = jax.sharding.get_abstract_mesh()
    size = {name: mesh.shape[name] for name in (FSDP, MODEL) if name in mesh.axis_names}
    if size.get(FSDP, 1) == 1 or size.get(MODEL, 1) > 1:
        return params
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), params)
