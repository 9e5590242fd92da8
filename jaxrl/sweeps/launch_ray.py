"""Parts of a sweep as tasks of Ray (extra `ray`)."""

from __future__ import annotations

import logging
from typing import Any

from jaxrl.core import plugins
from jaxrl.core.errors import UserError
from jaxrl.sweeps import tasks
from jaxrl.sweeps.launching import Launch, Resources, first_sentence
from jaxrl.sweeps.tasks import Outcome, Task


def make(launch: Launch) -> Ray:
    """Connect to the cluster that RAY_ADDRESS names, or that runs here; otherwise start one here.

    Raises:
        UserError: if Ray is not installed, or there is no cluster at RAY_ADDRESS.
    """
    return Ray(plugins.package("ray", "ray"))


class Ray:
    """A cluster of Ray. Ray queues the tasks; each has a process of its own."""

    at_once = None
    poll_seconds = 0.2

    def __init__(self, ray: Any):
        self._ray = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"Ray cannot be reached ({first_sentence(error)}); set RAY_ADDRESS to a "
                    "cluster's address, or unset it to start one here."
                ) from error

    def check(self, needed: Resources) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        wanted = {"CPU": needed.cpus, "GPU": needed.gpus, "memory": needed.ram}
        if not any(all(node.get(k, 0) >= n for k, n in wanted.items()) for node in nodes):
            there = "; ".join(str(_resources(node)) for node in nodes)
            raise UserError(f"No node of the Ray cluster has {needed}; there are: {there}.")

    def submit(self, task: Task, needed: Resources) -> RayJob:
        # A fresh process for each task: what JAX holds of a GPU is freed, and flags are read anew.
        remote = self._ray.remote(max_calls=1, max_retries=0)(tasks.run).options(
            name=task.name,
            num_cpus=needed.cpus,
            num_gpus=needed.gpus,
            memory=needed.ram,
        )
        return RayJob(self._ray, remote.remote(task))

    def close(self) -> None:
        if self._is_own:
            self._ray.shutdown()


class RayJob:
    """A task that was submitted to Ray."""

    def __init__(self, ray: Any, reference: Any):
        self._ray, self._reference = ray, reference

    def poll(self) -> Outcome | None:
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        failures = self._ray.exceptions
        try:
            return self._ray.get(self._reference)
        except failures.TaskCancelledError:
            return Outcome("interrupted")
        except (failures.RayTaskError, failures.RuntimeEnvSetupError) as error:
            # `tasks.run` catches everything, so this happened before it, such as in an import.
            cause = getattr(error, "cause", None) or error
            return Outcome("failed", f"{type(cause).__name__}: {first_sentence(cause)}")
        except failures.RayError as error:
            return Outcome("lost", first_sentence(error))

    def cancel(self) -> None:
        self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def _resources(node: dict[str, float]) -> Resources:
    return Resources(*(int(node.get(name, 0)) for name in ("CPU", "GPU", "memory")))
