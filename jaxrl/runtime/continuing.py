"""What goes on from a run that was there before: resuming, forks, warm starts, acting."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import hyper as hyperparameters
from jaxrl.core import metrics as m
from jaxrl.core import settings, shared
from jaxrl.core.divergence import forgive
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.types import Algorithm, Environment, Policy
from jaxrl.runtime import checkpoints, configuration, driver, run_folder
from jaxrl.runtime.building import build, program
from jaxrl.runtime.configuration import Experiment, Trust
from jaxrl.runtime.members import Members, members_of, seeds
from jaxrl.runtime.session import Session

CHANGEABLE = ("devices", "track")  # settings that a run may go on under other values of


def newest(folder: Path, say=warnings.warn) -> Path:
    """The newest whole checkpoint of the run in `folder`; `say` is told of those that are not
    whole. Raises `CheckpointError` if there is none."""
    return checkpoints.latest(run_folder.checkpoints(folder), say)


def restored(checkpoint: Path, shapes: driver.Progress) -> tuple[driver.Progress, dict[str, Any]]:
    """What `checkpoint` holds, with what members share as `shapes` has it, and what the checkpoint
    says of itself. Raises `CheckpointError` where it is of another structure, and `UserError` where
    something shared is not what it was."""
    progress, meta = checkpoints.restore(checkpoint, shared.strip(shapes))
    for name in shared.changed_names(progress):
        raise UserError(
            f"The checkpoint {checkpoint} was made with other numbers in {name}; put them back as "
            "they were, or begin a new run (--warm-start RUN takes over the agent alone)."
        )
    return shared.fill(progress), meta


def is_finished(folder: Path) -> bool:
    return run_folder.summary(folder).get("finished") is True


def check_unchanged(config: Experiment, folder: Path) -> None:
    """Raises `UserError` if the run in `folder` is to go on under other settings than its own."""
    before, now = (
        configuration.to_dict(run_folder.read_config(folder, trusted(config))),
        configuration.to_dict(config),
    )
    for name, old, new in configuration.differences(before, now):
        if name not in CHANGEABLE:
            raise UserError(
                f"{name} is {new!r} here and {old!r} in '{folder}'; --resume goes on unchanged, "
                "--fork starts a new run from there under other settings."
            )


def trusted(*configs: Experiment) -> Trust:
    """The code that may be imported for a folder which these go on from: what they name themselves
    was named by who made them."""
    if any(config.trust for config in configs):
        return True
    named = (configuration.foreign(configuration.to_dict(config)) for config in configs)
    return frozenset().union(*named)


# What a checkpoint's state means, as far as it is not in the state; the rest is about its training.
MOST_NAMED = 3
MEANING = ("algorithm", "env", "env_params", "agent", "generator")


def check_as_saved(
    folder: Path, config: Experiment, checkpoint: Path, only: Collection[str] = ()
) -> None:
    """Raises `UserError` if `config`, from the config.yaml of the run in `folder`, is not what its
    `checkpoint` was made under, naming what differs; of the top-level settings in `only`, or of
    all. `CHANGEABLE` ones may differ, and a checkpoint of an earlier version does not know its
    settings."""
    saved = checkpoints.read_meta(checkpoint).get("settings")
    if not isinstance(saved, dict):
        return
    now = configuration.to_dict(config)
    # What a later version added had its default before.
    default = configuration.to_dict(configuration.experiment({"algorithm": config.algorithm}))
    found = [
        (name, old, new)
        for name, old, new in configuration.differences(_over(default, saved), now)
        if name not in CHANGEABLE and (not only or name.partition(".")[0] in only)
    ]
    if found:
        found.sort(key=lambda item: item[0].count("."))  # an algorithm before its settings
        named = ", ".join(
            f"{name} is {new!r} in config.yaml and {old!r} in its checkpoint"
            for name, old, new in found[:MOST_NAMED]
        )
        more = len(found) - MOST_NAMED
        named += f", and {more} more differ" if more > 0 else ""
        raise UserError(
            f"'{folder}' was changed: {named}; put config.yaml back as it was, and give other "
            "settings to a new run (--fork RUN, and options)."
        )


def _over(default: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """`data`, and where it has no value `default`'s."""
    both = {k: (default[k], data[k]) for k in default.keys() & data.keys()}
    nested = {k: _over(*v) for k, v in both.items() if all(isinstance(x, dict) for x in v)}
    return {**default, **data, **nested}


def members_of_fork(config: Experiment, members: Members | None) -> Members:
    """The members of the run that is forked; what sets them apart stays theirs.

    Raises `UserError` if the configuration would have others.
    """
    folder = run_folder.check(config.fork)
    parents, before = members_of(folder), run_folder.read_config(folder, trusted(config))
    if members is not None:
        raise UserError(
            "A sweep cannot be forked into another; --warm-start takes one run's agent."
        )
    for name in ("seed", "seeds"):
        if getattr(config, name) != getattr(before, name):
            raise UserError(f"A fork keeps the seeds of '{folder}'; {name} cannot be changed.")
    for name in parents.hyper:
        if settings.lookup(config.agent, name) != settings.lookup(before.agent, name):
            raise UserError(f"agent.{name} is varied in '{folder}'; a fork cannot change it.")
    return parents


def parent(
    config: Experiment, session: Session, keys: jax.Array, trust: Trust
) -> tuple[driver.Progress, int] | None:
    """Where a forked or warm-started run begins; None for a run from nothing."""
    if config.fork and config.warm_start:
        raise UserError("A run can be forked or warm-started, not both.")
    if config.fork:
        return _fork(run_folder.check(config.fork), session, keys, trust)
    if config.warm_start:
        return _warm_start(run_folder.check(config.warm_start), session, keys, trust), 0
    return None


def first_phase(config: Experiment) -> Experiment:
    """The run that `config.warm_start`, a YAML file, describes: with the seeds, generator and `out`
    of `config`, in a folder named for its settings, so that it is trained once."""
    first = configuration.experiment(configuration.read(config.warm_start))
    for name in ("seed", "seeds", "generator", "out", "trust", "quiet"):
        first = dataclasses.replace(first, **{name: getattr(config, name)})
    settings = configuration.to_dict(first) | {"out": "", "name": ""}
    del settings["track"]  # says nothing about what is trained
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    name = f"{run_folder.slug(first.algorithm)}-{run_folder.slug(first.env)}-{digest}"
    return dataclasses.replace(first, name=name)


def _fork(
    folder: Path, session: Session, keys: jax.Array, trust: Trust
) -> tuple[driver.Progress, int]:
    """The state of the run in `folder` with the new hyperparameters, and its step."""
    prog, algorithm, members = session.program, session.algorithm, session.members
    config, checkpoint = run_folder.read_config(folder, trust), newest(folder, session.display.warn)
    check_as_saved(folder, config, checkpoint)
    _, before = build(dataclasses.replace(config, devices=1))
    shapes = prog.shapes(keys)
    if members.parents:
        others = members_of(folder)
        shapes = program(config, algorithm, others).shapes(others.keys(config.generator))
    refused = f"'{folder}' cannot be forked under this configuration:"
    if before.env_steps != algorithm.env_steps:
        raise UserError(
            f"{refused} an update takes {before.env_steps} environment steps there and "
            f"{algorithm.env_steps} here. --warm-start takes over the agent alone."
        )
    try:
        progress, meta = restored(checkpoint, shapes)
    except checkpoints.CheckpointError as error:
        raise UserError(f"{refused} {error} --warm-start takes over the agent alone.") from error
    if meta["step"] >= session.plan.total:
        raise UserError(
            f"'{folder}' has done {session.env_steps(meta['step'])} environment steps already; "
            "say --steps with more than that, these included."
        )
    if members.parents and jnp.ndim(progress.run.step):  # of a single one there is no choice
        chosen = members.parents[0] if len(members) == 1 else np.asarray(members.parents)
        progress = shared.member(progress, chosen)
    hyper = {**algorithm.hyper, **members.own_hyper()}
    state = hyperparameters.replace_hyper(progress.run.state, hyper)
    run = dataclasses.replace(progress.run, state=forgive(state), key=keys)
    return prog.place(driver.Progress(run, m.empty(progress.row))), meta["step"]


def _warm_start(folder: Path, session: Session, keys: jax.Array, trust: Trust) -> driver.Progress:
    """A new run whose agent state is that of the run in `folder`, but for the hyperparameters."""
    config, others = run_folder.read_config(folder, trust), members_of(folder)
    _check_members(len(others), session, f"'{folder}'")
    checkpoint = newest(folder, session.display.warn)
    check_as_saved(folder, config, checkpoint, MEANING)
    shapes, hand_over = _first(config, others)
    progress, _ = restored(checkpoint, shapes)
    new = session.program.start(keys, session.members.own_hyper())
    take = _taking_over(session, hand_over, f"'{folder}'")
    state = take(progress.run.state, new.run.state)
    return session.program.place(
        driver.Progress(dataclasses.replace(new.run, state=state), new.row)
    )


def check_warm_start(config: Experiment, session: Session, keys: jax.Array) -> None:
    """Raises `UserError` unless the session's run can be warm-started from a run of `config`."""
    others = seeds(config)
    what = f"a run of '{config.algorithm}' on '{config.env}'"
    _check_members(len(others), session, what)
    shapes, hand_over = _first(config, others)
    new = session.program.shapes(keys).run.state
    jax.eval_shape(_taking_over(session, hand_over, what), shapes.run.state, new)


def _first(config: Experiment, members: Members) -> tuple[driver.Progress, Callable[[Any], Any]]:
    """The shapes of a run of `config`, and what its agent hands over to a warm-started one."""
    _, algorithm = build(dataclasses.replace(config, devices=1))
    prog = program(config, algorithm, members)
    hand_over = algorithm.agent.hand_over if algorithm.agent else lambda state: state
    hand_over = jax.vmap(hand_over) if prog.members is not None else hand_over
    return prog.shapes(members.keys(config.generator)), hand_over


def _check_members(count: int, session: Session, what: str) -> None:
    if count not in (1, len(session.members)):
        raise UserError(
            f"{what} has {count} members; a run of {len(session.members)} can be warm-started "
            "from as many or from one."
        )


def _taking_over(
    session: Session, hand_over: Callable[[Any], Any], what: str
) -> Callable[[Any, Any], Any]:
    """take(old, new): the state `new` of the session's algorithm with what the agent of `old` hands
    over in it, but for its hyperparameters."""

    agent = session.algorithm.agent

    def take(old, new):
        if agent is None or not hasattr(old, "agent"):
            raise UserError("Only algorithms that are an agent with a source can be warm-started.")
        adopted = agent.adopt(new.agent, hand_over(old.agent))
        return take_over(new, adopted, f"The agent in {what}")

    return take


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run that was trained: its environment, its policy, and all that it was made from."""

    env: Environment
    policy: Policy
    config: Experiment
    algorithm: Algorithm
    state: Any  # the algorithm's
    step: int  # of the algorithm
    members: Members


def load(folder: str | Path, member: int = 0, trust: Trust = False) -> Trained:
    """The newest whole checkpoint in a run's folder, ready to act.

    member: which of those that were trained side by side, such as the first seed.
    trust: whether to import code from outside of jaxrl that the folder names, such as an
        environment `my_package.environments:maze`; or what of it (a frozenset of such names).

    Raises `UserError` if `folder` is no run folder, has no whole checkpoint or no such member, if
    it names code that is not trusted, before that is imported, and if its config.yaml was changed.
    """
    trained = load_all(folder, trust)
    if not 0 <= member < len(trained):
        raise UserError(f"member is {member}; '{folder}' has members 0 to {len(trained) - 1}.")
    return trained[member]


def load_all(folder: str | Path, trust: Trust = False) -> list[Trained]:
    """As `load`, of all members."""
    folder = run_folder.check(folder)
    config = run_folder.read_config(folder, trust)
    members = members_of(folder)
    checkpoint = newest(folder)
    check_as_saved(folder, config, checkpoint, MEANING)
    env, algorithm = build(dataclasses.replace(config, devices=1))
    prog = program(config, algorithm, members)
    progress, meta = restored(checkpoint, prog.shapes(members.keys(config.generator)))
    states = [progress.run.state]
    if prog.members is not None:
        states = [shared.member(states[0], i) for i in range(prog.members)]
    return [
        Trained(env, algorithm.policy(state), config, algorithm, state, meta["step"], members)
        for state in states
    ]
