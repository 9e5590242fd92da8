"""The processes of a run, by its options or by what SLURM, Open MPI or Cloud TPU set."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from jaxrl.core.errors import UserError
from jaxrl.runtime.configuration import Experiment

AUTO = "auto"  # the coordinator that JAX finds by itself
TPU_PORT = 8482  # of the coordinator; nothing else listens there on Cloud TPU
FIRST_PORT, PORTS = 61440, 4096  # of which a job's number chooses the coordinator's
_OPTIONS = ("coordinator", "processes", "process")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes of a run, and which one this is."""

    coordinator: str = ""  # HOST:PORT at which process 0 listens, or AUTO
    processes: int = 0
    process: int = -1
    gpu: int | None = None  # the only GPU of its host that this process uses; None for all
    launcher: str = ""  # the program that started them, for messages


def read_group(config: Experiment, variables: Mapping[str, str] = os.environ) -> Group | None:
    """Return the processes that the options of `config` or a launcher's variables describe.

    None for a single process, which `--processes 1` asks for whatever the variables say.

    Raises:
        UserError: for options or variables that are incomplete or contradict each other.
    """
    if config.processes == 1 and not config.coordinator and config.process <= 0:
        return None
    if config.coordinator == AUTO:
        return Group(AUTO)
    unset = Group()
    options = {name: getattr(config, name) for name in _OPTIONS}
    given = {name: x for name, x in options.items() if x != getattr(unset, name)}
    found = read_variables(variables)
    if not given and (found is None or found.processes == 1):
        return None
    group = dataclasses.replace(found or unset, **given)
    missing = [f"--{name}" for name in _OPTIONS if getattr(group, name) == getattr(unset, name)]
    if missing and group.launcher:
        raise UserError(
            f"{group.launcher} started {group.processes} processes without saying where process 0 "
            "is; add --coordinator HOST:PORT, or --processes 1 to run each alone."
        )
    if missing:
        there = " and ".join(f"--{name}" for name in given)
        raise UserError(
            f"{there} without {' and '.join(missing)}; a run in several processes needs "
            "--coordinator HOST:PORT, --processes N and --process I."
        )
    _check(group)
    return group


def _check(group: Group) -> None:
    if group.processes < 1:
        raise UserError(f"processes is {group.processes}; it must be at least 1.")
    if not 0 <= group.process < group.processes:
        raise UserError(
            f"process is {group.process}; of {group.processes} processes it may be 0 to "
            f"{group.processes - 1}."
        )
    host, _, port = group.coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(
            f"coordinator is '{group.coordinator}'; it must be HOST:PORT, the host of process 0 "
            "and a free port there, or auto."
        )


def read_variables(variables: Mapping[str, str]) -> Group | None:
    """Return what a launcher's variables say, as `jax.distributed.initialize` reads them."""
    for read in (_slurm, _open_mpi, _cloud_tpu):
        if (group := read(variables)) is not None:
            host, _, port = group.coordinator.rpartition(":")
            address = variables.get("JAX_COORDINATOR_ADDRESS", "")
            port = variables.get("JAX_COORDINATOR_PORT", port)
            return dataclasses.replace(group, coordinator=address or (host and f"{host}:{port}"))
    return None


def _slurm(variables: Mapping[str, str]) -> Group | None:
    """Read what `srun` sets for each task of a step."""
    names = ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID")
    if not all(f"SLURM_{name}" in variables for name in names):
        return None
    job, step = _number(variables, "SLURM_JOB_ID"), _number(variables, "SLURM_STEP_ID", 0)
    return Group(
        f"{first_host(variables['SLURM_STEP_NODELIST'])}:{FIRST_PORT + (job + 61 * step) % PORTS}",
        # A shell that `salloc` opens is a step of one task, of a job that may have more.
        _number(variables, "SLURM_STEP_NUM_TASKS", _number(variables, "SLURM_NTASKS")),
        _number(variables, "SLURM_PROCID"),
        _gpu(variables, "SLURM_LOCALID", variables.get("SLURM_STEP_TASKS_PER_NODE", "")),
        "SLURM",
    )


def _open_mpi(variables: Mapping[str, str]) -> Group | None:
    """Read what `mpirun` of Open MPI sets. Version 5 does not say where process 0 is."""
    if "OMPI_COMM_WORLD_SIZE" not in variables:
        return None
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")
    job = re.match(r"\d+", uri)
    place = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", uri)
    host = place and (place[1] or place[2])
    return Group(
        f"{host}:{FIRST_PORT + int(job[0]) // PORTS % PORTS}" if job and host else "",
        _number(variables, "OMPI_COMM_WORLD_SIZE"),
        _number(variables, "OMPI_COMM_WORLD_RANK"),
        _gpu(
            variables, "OMPI_COMM_WORLD_LOCAL_RANK", variables.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
        ),
        "Open MPI",
    )


def _cloud_tpu(variables: Mapping[str, str]) -> Group | None:
    """Read what Cloud TPU sets on GKE, for one slice or several."""
    hosts = variables.get("TPU_PROCESS_ADDRESSES") or variables.get("TPU_WORKER_HOSTNAMES")
    if not hosts or "TPU_WORKER_ID" not in variables:
        return None
    names = hosts.split(",")
    slices = _number(variables, "MEGASCALE_NUM_SLICES", 1)
    number = _number(variables, "MEGASCALE_SLICE_ID", 0)
    first = variables.get("MEGASCALE_COORDINATOR_ADDRESS") or names[0]
    return Group(
        f"{first.split(':')[0]}:{TPU_PORT}",
        len(names) * slices,
        _number(variables, "TPU_WORKER_ID") + number * len(names),
        launcher="Cloud TPU",
    )


def _gpu(variables: Mapping[str, str], local: str, tasks: str) -> int | None:
    """Return the GPU of one of several processes on a host, unless the launcher chose it.

    local: the variable with the number of the process on its host.
    tasks: number of processes on a host, if it is known, as in `1` or SLURM's `1(x4)`.
    """
    chosen = any(x and "," not in x for x in map(variables.get, _VISIBLE))
    alone = re.fullmatch(r"1(\(x\d+\))?", tasks)
    if chosen or alone or "JAX_LOCAL_DEVICE_IDS" in variables:
        return None
    return _number(variables, local)


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name, "" if default is None else str(default))
    if not text.isdecimal():
        raise UserError(f"The variable {name} is '{text}'; it must be a whole number.")
    return int(text)


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's list, such as `a01` of `a[01-04,07],b2`."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodes)
    if not found:
        raise UserError(f"The variable SLURM_STEP_NODELIST is '{nodes}'; it names no host.")
    return "".join(part or "" for part in found.groups())
