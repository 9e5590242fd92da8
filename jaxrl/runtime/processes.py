"""Runs in several processes, one on each host: how they start and end, and what they agree on.

All processes run the same program on a mesh of the devices of all of them. Process 0 alone makes
the run's folder and writes to it. What depends on a clock, a signal or a disk is decided by process
0, or by all together, between chunks, since all must start the same programs in the same order.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl.core.errors import UserError
from jaxrl.core.types import Tree
from jaxrl.runtime import configuration, run_folder
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.errors import out_of_memory
from jaxrl.runtime.process_group import AUTO, Group, read_group, read_variables
from jaxrl.runtime.watching import LEAVE_SECONDS, SILENT_SECONDS, Follower, Hub, Watch

START_SECONDS = 300.0  # for all processes to come


def refuse_several(what: str, config: Experiment | None = None) -> None:
    """Raise `UserError` if there are several processes, by the options of `config` or by a
    launcher's variables. `what` cannot run in them."""
    group = read_group(config) if config else read_variables(os.environ)
    several = max(count(), group.processes if group else 1)
    if several > 1 or (group and group.coordinator == AUTO):
        number = f", not in {several}" if several > 1 else ""
        raise UserError(
            f"{what} runs in one process{number}; several processes train one configuration "
            "together (jaxrl train)."
        )


# ---------------------------------------------------------------------------------- start and end

_watch: Watch | None = None


@contextlib.contextmanager
def join(config: Experiment) -> Iterator[Experiment]:
    """Join the run's other processes, if there are any, and leave them together at the end.

    Yields `config`, spread over the devices of all processes. It must come before JAX computes
    anything. In all processes but the first it silences stdout and warnings.

    Raises:
        UserError: if the processes cannot be found, or have other settings or devices.
    """
    group = read_group(config)
    if group is None or jax.distributed.is_initialized():
        yield spread(config)
        return
    _connect(group, _digest(config))
    try:
        yield spread(config)
    except BaseException as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and not out_of_memory(error):
            time.sleep(SILENT_SECONDS + 3)  # the likely cause is a death, which the watch explains
        if not _leave(LEAVE_SECONDS):  # the others go on, or hang
            atexit.register(_end_at_once)  # before JAX would wait for them
        raise
    _leave(None)


def _connect(group: Group, settings: str) -> None:
    """Start JAX's distributed system and the watch."""
    global _watch
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    preemption = "jax_enable_preemption_service"
    if preemption in jax.config.values:  # not in older versions
        jax.config.update(preemption, False)  # it would take SIGTERM
    if group.coordinator == AUTO:
        jax.distributed.initialize()
    else:
        host, _, port = group.coordinator.rpartition(":")
        number, total = group.process, group.processes
        if number == 0:
            _watch = hub = Hub(int(port), total, settings)
            hub.wait_for_all(START_SECONDS, lambda said: print(said, file=sys.stderr))
        else:
            _watch = Follower((host.strip("[]"), int(port)), number, total, settings, START_SECONDS)
        jax.distributed.initialize(
            _watch.jax_address,
            total,
            number,
            None if group.gpu is None else [group.gpu],
            cluster_detection_method="deactivate",
            coordinator_bind_address=_watch.jax_address if number == 0 else None,
        )
    if not is_first():
        warnings.simplefilter("ignore")  # process 0 gives them
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # errors are on stderr


def _digest(config: Experiment) -> str:
    """Return a digest of the settings in which the processes of a run must agree."""
    settings = configuration.to_dict(config, saved_only=False)
    own = {"process": 0, "coordinator": "", "processes": 0, "quiet": False}
    text = json.dumps(settings | own, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _leave(seconds: float | None) -> bool:
    """Leave once all processes do; return whether they did within `seconds`."""
    leaving = threading.Thread(target=_shut_down, daemon=True)
    leaving.start()
    leaving.join(seconds)
    if leaving.is_alive():
        return False
    if _watch is not None:
        _watch.leave()
    return True


def _shut_down() -> None:
    with contextlib.suppress(RuntimeError):  # of a process that was lost, which the watch reports
        jax.distributed.shutdown()


def _end_at_once() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def advise(folder: Path) -> None:
    """Let the sentence at the death of another process say how the run in `folder` continues."""

    def advice() -> str:
        there = (folder / "config.yaml").is_file()
        return f"Continue with {run_folder.resume_command(folder)}" if there else ""

    if _watch is not None:
        _watch.advice = advice


def spread(config: Experiment) -> Experiment:
    """Return `config` on the devices of all processes.

    Raises:
        UserError: if the configuration asks for other devices, or the processes have unequal ones.
    """
    if count() == 1:
        return config
    total, local = len(jax.devices()), len(jax.local_devices())
    if least(local) * count() != total:
        raise UserError(
            f"The {count()} processes have {total} devices, not all equally many (process "
            f"{jax.process_index()} has {local}); start them on equal hosts."
        )
    if config.mesh:
        asked = math.prod(config.mesh.values())
        if asked != total:
            raise UserError(
                f"mesh has {asked} devices, but the {count()} processes have {total}, all of which "
                "are used; give a mesh of as many."
            )
        return dataclasses.replace(config, devices=1)
    if config.devices not in (1, total) and not config.resume:
        raise UserError(
            f"devices is {config.devices}, but the {count()} processes have {total}, all of which "
            "are used; leave devices out."
        )
    return dataclasses.replace(config, devices=total)


# ------------------------------------------------------------------------------- what they agree on


def count() -> int:
    """Return the number of processes of the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Return whether this process writes: process 0, or the only one."""
    return count() == 1 or jax.process_index() == 0


def largest(number: int) -> int:
    """Return the largest of the numbers that all processes call this with."""
    if count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def least(number: int) -> int:
    """Return the least of the numbers that all processes call this with."""
    return -largest(-number)


def of_first(number: int) -> int:
    """Return the number that process 0 calls this with; all processes call it."""
    return number if count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def align() -> None:
    """Wait until all processes have come here."""
    of_first(0)


def from_first(function: Callable[[], Any]) -> Any:
    """Return what `function`, called by process 0 alone, returns there; all processes call this.

    The result must be JSON. A `UserError` is raised in all processes.
    """
    if count() == 1:
        return function()
    text = b""
    if is_first():
        try:
            text = json.dumps({"result": function()}).encode()
        except UserError as error:
            text = json.dumps({"error": str(error)}).encode()
    content = np.zeros(of_first(len(text)), np.uint8)
    if is_first():
        content = np.frombuffer(text, np.uint8)
    found = json.loads(multihost_utils.broadcast_one_to_all(content).astype(np.uint8).tobytes())
    if "error" in found:
        raise UserError(found["error"])
    return found["result"]


@contextlib.contextmanager
def first_enters(context: AbstractContextManager[Any]) -> Iterator[Any]:
    """Enter a context in process 0 alone; all processes get the path that it yields, if any.

    A `UserError` is raised in all processes.
    """
    with contextlib.ExitStack() as stack:
        enter = lambda: str(stack.enter_context(context) or "")
        path = from_first(enter)
        yield Path(path) if path else None


def fetch(tree: Tree) -> Tree:
    """Return a tree of arrays as NumPy arrays, whole in every process; all processes call this.

    Keys are not allowed.
    """
    leaves, structure = jax.tree.flatten(tree)
    split = [
        i
        for i, x in enumerate(leaves)
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)
    ]
    if split:  # one program for all of them
        arrays = [leaves[i] for i in split]
        whole = tuple(NamedSharding(x.sharding.mesh, PartitionSpec()) for x in arrays)
        gathered = _resharding(whole)(tuple(arrays))
        for i, x in zip(split, gathered, strict=True):
            leaves[i] = x
    return jax.tree.unflatten(structure, jax.device_get(leaves))


def localize(tree: Tree) -> Tree:
    """Return a tree of arrays and keys, whole on one device of each process; all call this."""
    if count() == 1:
        return tree

    def one(x: Any) -> Any:
        if _is_key(x):
            data = jnp.asarray(fetch(jax.random.key_data(x)))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        return jnp.asarray(fetch(x))

    return jax.tree.map(one, tree)


def put(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return an array or keys with a sharding; every process holds `x` whole, or the parts of it
    that belong to its devices."""
    if count() == 1:
        return jax.device_put(x, sharding)
    if x.sharding.is_equivalent_to(sharding, x.ndim):
        return x
    if not x.is_fully_addressable:
        return _resharding(sharding)(x)
    if _is_key(x):
        data = put(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


@functools.cache
def _resharding(shardings: Any) -> Callable[[Any], Any]:
    """Return a compiled function that lays out its arguments by `shardings`."""
    return jax.jit(lambda x: x, out_shardings=shardings)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
