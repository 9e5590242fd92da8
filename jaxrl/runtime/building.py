"""Build the environment, algorithm, plan and program that an Experiment describes."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import jax

from jaxrl import envs
from jaxrl.algorithms import registry as algorithms
from jaxrl.core.errors import UserError
from jaxrl.core.types import Algorithm, Environment
from jaxrl.envs.adapters import wrapping
from jaxrl.envs.check_structure import check_structure
from jaxrl.evaluation.evaluate import check_same_spaces
from jaxrl.networks.compute import PLAIN, find_unused, with_compute
from jaxrl.runtime import processes
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.driver import Plan, Program
from jaxrl.runtime.host_program import HostProgram
from jaxrl.runtime.members import Members
from jaxrl.runtime.placement import layout
from jaxrl.sources.handed import check_played


def configure_jax(config: Experiment) -> None:
    """Set the options of JAX that must be set before it computes anything."""
    if config.deterministic:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "jaxrl" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def build(config: Experiment) -> tuple[Environment, Algorithm]:
    """Return the environment and the algorithm that `config` describes. Raises `UserError`."""
    env = wrapping.wrap(envs.make(config.env, **config.env_params), config.wrappers)
    builder, _ = algorithms.builder(config.algorithm)
    before = getattr(builder, "goes_on_from", "")
    if before and not (config.warm_start or config.fork):
        raise UserError(
            f"'{config.algorithm}' cannot begin with new weights, since it continues {before}; set "
            "warm_start to the folder of such a run, or to a configuration to train first."
        )
    algorithm = builder(env, config.agent)
    if ":" in config.env and not env.host:  # a user's own: say in a sentence what is wrong with it
        check_structure(env)
    if env.host:
        check_played(algorithm.source, config.algorithm)
    if config.compute != PLAIN:
        algorithm = with_compute(algorithm, config.compute)
    return env, algorithm


def check_host(config: Experiment, env: Environment) -> None:
    """Raise `UserError` if `config` sets what concerns environments on the host alone, and `env` is
    compiled."""
    default = type(config.host)()
    for field in () if env.host else dataclasses.fields(default):
        value = getattr(config.host, field.name)
        if value != getattr(default, field.name):
            raise UserError(
                f"host.{field.name} is {value}, but '{env.name}' is compiled and does not run on "
                "the host; leave it out."
            )


def check_compute(config: Experiment, algorithm: Algorithm) -> None:
    """Raise `UserError` if `config` asks its networks to compute in a way that changes nothing in
    `algorithm`, which `build` returned and whose step was traced since."""
    for name in find_unused(algorithm, config.compute) if config.compute != PLAIN else ():
        raise UserError(
            f"{name} is {getattr(config, name)!r}, but with these settings there is nothing in "
            f"'{config.algorithm}' that it would change; leave it out."
        )


def plan(config: Experiment, algorithm: Algorithm) -> Plan:
    """Return the schedule of `config` in whole steps of `algorithm`."""
    updates = lambda steps: max(1, math.ceil(steps / algorithm.env_steps))
    total = updates(config.steps - algorithm.initial_env_steps)

    def every(steps: int, share: int) -> int:
        return 0 if steps < 0 else updates(steps) if steps else max(1, total // share)

    return Plan(
        total,
        every(config.log_every, 100),
        every(config.evaluate_every, 10),
        every(config.checkpoint_every, 10),
        config.record_every and updates(config.record_every),
    )


def evaluation_environment(config: Experiment, env: Environment) -> Environment:
    """Return the environment in which the policy trained in `env` is evaluated.

    Raises:
        UserError: if the policy cannot act there.
    """
    other = other_environment(config, env, config.evaluate_env, config.evaluate_env_params)
    if other.host and not env.host:
        raise UserError(
            f"'{other.name}' runs on the host and '{env.name}' does not, so training in the one "
            "cannot be evaluated in the other; use jaxrl evaluate afterwards."
        )
    return other


def other_environment(
    config: Experiment, env: Environment, name: str, params: dict[str, Any]
) -> Environment:
    """Return the environment `name` with the settings `params`.

    Without a name it is `env`, in which `config` trains, with its settings changed by `params`. It
    has the wrappers of `config`.

    Raises:
        UserError: if a policy of `env` cannot act there.
    """
    if not name and not params:
        return env
    other = envs.make(name or config.env, **({} if name else config.env_params) | params)
    other = wrapping.wrap(other, config.wrappers)
    check_same_spaces(env, other)
    return other


def on_one_device(config: Experiment) -> Experiment:
    """Return `config` for the process at hand alone, such as to read what a run has learned."""
    return dataclasses.replace(config, devices=1, mesh={})


def program(config: Experiment, algorithm: Algorithm, members: Members) -> Program | HostProgram:
    """Return the compiled functions that `algorithm` runs as, for these members."""
    width = len(members) if len(members) > 1 else None
    if config.debug and processes.count() > 1:
        raise UserError("debug checks a run in one process; train with --processes 1.")
    if algorithm.source is None or algorithm.source.host_play is None:
        return Program(algorithm, width, layout(config, algorithm, len(members)), config.debug)
    if processes.count() > 1:
        raise UserError(
            f"'{config.env}' runs on the host, which does not support {processes.count()} "
            "processes; train with --processes 1."
        )
    for refused, given in (
        (f"devices={config.devices}", config.devices > 1),
        ("mesh", bool(config.mesh)),
        ("debug", config.debug),
    ):
        if given:
            raise UserError(
                f"'{config.env}' runs on the host, which does not support {refused}; train on one "
                "device, without debug."
            )
    return HostProgram(Program(algorithm, width), config.host)
