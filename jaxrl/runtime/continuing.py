"""Runs that begin from an earlier run: resuming, forks, warm starts; loading a trained policy."""

from __future__ import annotations

import csv
import dataclasses
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
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.learn import evaluation_policy, restart_source, take_over
from jaxrl.core.types import Algorithm, Environment, Policy
from jaxrl.runtime import checkpoints, configuration, driver, policy_files, processes, run_folder
from jaxrl.runtime.building import build, on_one_device, program
from jaxrl.runtime.configuration import Experiment, Trust
from jaxrl.runtime.members import RANKING, Members, is_sweep, read_members, seed_members
from jaxrl.runtime.session import Session

CHANGEABLE = ("devices", "mesh", "track")  # settings that may change when a run is resumed


def newest_checkpoint(folder: Path, warn=warnings.warn) -> Path:
    """Return the newest undamaged checkpoint of the run in `folder`.

    `warn` is called for each newer one that is damaged. Raises `CheckpointError` if there is none.
    """
    latest = lambda: str(checkpoints.latest(run_folder.checkpoints(folder), warn))
    return Path(processes.from_first(latest))


def restore(checkpoint: Path, shapes: driver.Progress) -> tuple[driver.Progress, dict[str, Any]]:
    """Return the progress in `checkpoint`, sharing what members share in `shapes`, and its meta.

    Raises:
        CheckpointError: if the checkpoint has another structure.
        UserError: if something shared has changed since.
    """
    progress, meta = checkpoints.restore(checkpoint, shared.strip(shapes))
    for name in shared.changed_names(progress):
        raise UserError(
            f"The checkpoint {checkpoint} was made with other numbers in {name}; restore them, or "
            "start a new run (--warm-start RUN takes over only the agent)."
        )
    return shared.fill(progress), meta


def restore_run(
    checkpoint: Path, shapes: driver.Progress
) -> tuple[driver.Progress, dict[str, Any]]:
    """Do what `restore` does for a checkpoint of a run.

    Raises:
        CheckpointError: also if its meta is not that of a run.
    """
    progress, meta = restore(checkpoint, shapes)
    for name, kind in {"step": int, "log_size": int, "diverged": list}.items():
        if not isinstance(meta.get(name), kind):
            raise checkpoints.CheckpointError(
                f"The checkpoint {checkpoint} is not one of a run: its {name} is "
                f"{meta.get(name)!r}."
            )
    return progress, meta


def is_finished(folder: Path) -> bool:
    """Return whether the run in `folder` is finished."""
    return run_folder.summary(folder).get("finished") is True


def check_unchanged(config: Experiment, folder: Path) -> None:
    """Raise `UserError` if `config` differs from the settings of the run in `folder`."""
    before, now = (
        configuration.to_dict(run_folder.read_config(folder, trusted_code(config))),
        configuration.to_dict(config),
    )
    for name, old, new in configuration.differences(before, now):
        if name not in CHANGEABLE:
            raise UserError(
                f"{name} is {new!r} here and {old!r} in '{folder}'; --resume keeps the settings, "
                "--fork starts a new run from there with other settings."
            )


def trusted_code(*configs: Experiment) -> Trust:
    """Return the code that may be imported for a folder from which these configurations continue.

    Whoever wrote a configuration named its code, so that code is trusted.
    """
    if any(config.trust for config in configs):
        return True
    named = (configuration.foreign_code(configuration.to_dict(config)) for config in configs)
    return frozenset().union(*named)


MOST_NAMED = 3  # settings that an error lists
# Settings that the meaning of a checkpoint's state depends on; the others concern its training.
MEANING = ("algorithm", "env", "env_params", "wrappers", "agent", "generator")


def check_matches_checkpoint(
    folder: Path, config: Experiment, checkpoint: Path, only: Collection[str] = ()
) -> None:
    """Raise `UserError` if `config`, read from `folder`, differs from the settings of `checkpoint`.

    The error names what differs. `only` limits the comparison to these top-level settings. Settings
    in `CHANGEABLE` may differ, and settings that an earlier version did not have are not compared.
    """
    saved = checkpoints.read_meta(checkpoint).get("settings")
    if not isinstance(saved, dict):
        return
    now = configuration.to_dict(config)
    # Settings that a later version added had their default before.
    default = configuration.to_dict(configuration.experiment({"algorithm": config.algorithm}))
    found = [
        (name, old, new)
        for name, old, new in configuration.differences(_fill_in(default, saved), now)
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
            f"'{folder}' was changed: {named}; restore config.yaml, and give other settings to a "
            "new run (--fork RUN, and options)."
        )


def _fill_in(default: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return `data`, with `default`'s values where it has none."""
    both = {k: (default[k], data[k]) for k in default.keys() & data.keys()}
    nested = {k: _fill_in(*v) for k, v in both.items() if all(isinstance(x, dict) for x in v)}
    return {**default, **data, **nested}


def fork_members(config: Experiment, members: Members | None) -> Members:
    """Return the members of the run that is forked; they keep what sets them apart.

    Raises:
        UserError: if the configuration asks for other members.
    """
    folder = run_folder.check(config.fork)
    parents, before = read_members(folder), run_folder.read_config(folder, trusted_code(config))
    if members is not None:
        raise UserError("A sweep cannot be forked; --warm-start takes over one run's agent.")
    for name in ("seed", "seeds"):
        if getattr(config, name) != getattr(before, name):
            raise UserError(f"A fork keeps the seeds of '{folder}'; {name} cannot be changed.")
    for name in parents.hyper:
        if settings.lookup(config.agent, name) != settings.lookup(before.agent, name):
            raise UserError(f"agent.{name} is varied in '{folder}'; a fork cannot change it.")
    return parents


def initial_progress(
    config: Experiment, session: Session, keys: jax.Array, trust: Trust
) -> tuple[driver.Progress, int] | None:
    """Return where a forked or warm-started run begins (progress, step); None for other runs."""
    if config.fork and config.warm_start:
        raise UserError("A run can be forked or warm-started, not both.")
    if config.fork:
        return _fork(run_folder.check(config.fork), session, keys, trust)
    if config.warm_start:
        return _warm_start(run_folder.check(config.warm_start), session, keys, trust), 0
    return None


def warm_start_experiment(config: Experiment) -> Experiment:
    """Return the run that `config.warm_start`, a YAML file, describes, as `first_of` names it."""
    return first_of(config, configuration.experiment(configuration.read(config.warm_start)))


def first_of(config: Experiment, first: Experiment) -> Experiment:
    """Return `first` as the run from which that of `config` is warm-started.

    It has the seeds, generator and `out` of `config`, and a folder named for its settings, so that
    it is trained only once.
    """
    for name in ("seed", "seeds", "generator", "out", "trust", "quiet"):
        first = dataclasses.replace(first, **{name: getattr(config, name)})
    settings = configuration.to_dict(first) | {"out": "", "name": ""}
    del settings["track"]  # does not affect what is trained
    if configuration.is_file(first.warm_start):  # its content counts, not its path
        settings["warm_start"] = warm_start_experiment(first).name
    return dataclasses.replace(first, name=run_folder.name_by_settings(settings))


def _fork(
    folder: Path, session: Session, keys: jax.Array, trust: Trust
) -> tuple[driver.Progress, int]:
    """Return the progress of the run in `folder` with the new hyperparameters, and its step."""
    prog, algorithm, members = session.program, session.algorithm, session.members
    config, checkpoint = (
        run_folder.read_config(folder, trust),
        newest_checkpoint(folder, session.display.warn),
    )
    check_matches_checkpoint(folder, config, checkpoint)
    _, before = build(config)
    shapes = prog.shapes(keys)
    if members.parents:
        others = read_members(folder)
        shapes = program(on_one_device(config), algorithm, others).shapes(
            others.keys(config.generator)
        )
    refused = f"'{folder}' cannot be forked under this configuration:"
    if before.env_steps != algorithm.env_steps:
        raise UserError(
            f"{refused} an update takes {before.env_steps} environment steps there and "
            f"{algorithm.env_steps} here. --warm-start takes over only the agent."
        )
    try:
        progress, meta = restore_run(checkpoint, shapes)
    except checkpoints.CheckpointError as error:
        raise UserError(f"{refused} {error} --warm-start takes over only the agent.") from error
    if meta["step"] >= session.plan.total:
        raise UserError(
            f"'{folder}' has already done {session.env_steps(meta['step'])} environment steps; "
            "give a larger total with --steps."
        )
    if members.parents and jnp.ndim(progress.run.step):  # a single member needs no selection
        chosen = members.parents[0] if len(members) == 1 else np.asarray(members.parents)
        progress = shared.member(progress, chosen)
    hyper = {**algorithm.hyper, **members.own_hyper()}
    state = hyperparameters.replace_hyper(progress.run.state, hyper)
    run = dataclasses.replace(progress.run, state=forgive(state), key=keys)
    return prog.place(driver.Progress(run, m.empty(progress.row))), meta["step"]


def _warm_start(folder: Path, session: Session, keys: jax.Array, trust: Trust) -> driver.Progress:
    """Return a new run with the agent state of the run in `folder`, except for hyperparameters."""
    config, others = run_folder.read_config(folder, trust), read_members(folder)
    _check_members(len(others), session, f"'{folder}'")
    checkpoint = newest_checkpoint(folder, session.display.warn)
    check_matches_checkpoint(folder, config, checkpoint, MEANING)
    shapes, hand_over = _donor(config, others)
    progress, _ = restore(checkpoint, shapes)
    new = processes.localize(session.program.start(keys, session.members.own_hyper()))
    take = _transfer(session, hand_over, f"'{folder}'")
    state = take(progress.run.state, new.run.state)
    state = _play_again(session, state, keys)
    return session.program.place(
        driver.Progress(dataclasses.replace(new.run, state=state), new.row)
    )


def _play_again(session: Session, state: Any, keys: jax.Array) -> Any:
    """Return `state` with all that its source played before learning played again, by the agent in
    it: the warm-up of a replay buffer, pairs that are drawn once. Sources with parts that members
    share, such as a dataset in a file, stay as they are."""
    algorithm, source = session.algorithm, session.algorithm.source
    if source is None or source.host_play or not (source.warmup or source.plays_in_init):
        return state
    if shared.has_shared(state):
        return state

    def play(state, key, hyper):
        hyper = hyperparameters.override(algorithm.hyper, hyper)
        return restart_source(algorithm, state, jax.random.fold_in(key, 0), hyper)

    play = play if session.program.members is None else jax.vmap(play)
    own = {name: jnp.asarray(x) for name, x in session.members.own_hyper().items()}
    return processes.localize(jax.jit(play)(state, keys, own))


def check_warm_start(config: Experiment, session: Session, keys: jax.Array) -> None:
    """Raise `UserError` unless the session's run can be warm-started from a run of `config`."""
    others = seed_members(config)
    what = f"a run of '{config.algorithm}' on '{config.env}'"
    _check_members(len(others), session, what)
    shapes, hand_over = _donor(config, others)
    new = session.program.shapes(keys).run.state
    jax.eval_shape(_transfer(session, hand_over, what), shapes.run.state, new)


def _donor(config: Experiment, members: Members) -> tuple[driver.Progress, Callable[[Any], Any]]:
    """Return the shapes of a run of `config`, and what its agent hands over in a warm start."""
    _, algorithm = build(config)
    prog = program(on_one_device(config), algorithm, members)
    hand_over = algorithm.agent.hand_over if algorithm.agent else lambda state: state
    hand_over = jax.vmap(hand_over) if prog.members is not None else hand_over
    return prog.shapes(members.keys(config.generator)), hand_over


def _check_members(count: int, session: Session, what: str) -> None:
    if count not in (1, len(session.members)):
        raise UserError(
            f"{what} has {count} members; a run of {len(session.members)} can be warm-started "
            "from as many or from one."
        )


def _transfer(
    session: Session, hand_over: Callable[[Any], Any], what: str
) -> Callable[[Any, Any], Any]:
    """Return take(old, new): the state `new` with what the agent of `old` hands over, except for
    hyperparameters."""

    agent = session.algorithm.agent

    def take(old, new):
        if agent is None or not hasattr(old, "agent"):
            raise UserError("Only an algorithm made of an agent and a source can be warm-started.")
        adopted = agent.adopt(new.agent, hand_over(old.agent))
        return take_over(new, adopted, f"The agent in {what}")

    return take


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained run: its environment, its policy, and everything they were made from."""

    env: Environment
    policy: Policy
    config: Experiment
    algorithm: Algorithm
    state: Any  # the algorithm's state
    step: int  # the algorithm's step
    members: Members


def load(
    folder: str | Path,
    member: int | None = None,
    trust: Trust = False,
    *,
    point: str | None = None,
) -> Trained:
    """Load the newest undamaged checkpoint of a run's folder, ready to act.

        jaxrl.load("runs/ppo-cartpole-0001")  # the first seed
        jaxrl.load("runs/sweep", point="best")  # the first seed of the best point
        jaxrl.load("policy.zip")  # written by `jaxrl export`: its policy and env alone
        jaxrl.load("pretrained/ppo-cartpole")  # comes with jaxrl (`jaxrl list pretrained`)
        jaxrl.load("runs/sweep", point="optimizer.learning_rate 0.001", member=2)

    Args:
        member: index among those trained side by side, by default 0 for the first seed; among the
            seeds of the point, if one is given.
        point: `best`, or the name of a point, as `jaxrl sweep` prints it and ranking.csv has it. A
            sweep of several points needs it, or `member`.
        trust: whether to import code outside of jaxrl that the folder names, such as an
            environment `my_package.environments:maze`; or a frozenset of the names to import.

    Raises:
        UserError: if `folder` is no run's folder, has no undamaged checkpoint, no such member or no
            such point, if it is a sweep and neither is given, if its config.yaml was changed, or
            (before anything is imported) if it names code that is not trusted.
    """
    if policy_files.is_policy(folder):
        return policy_files.load(folder, trust)  # type: ignore[return-value]
    if point is not None or (member is None and is_sweep(run_folder.check(folder))):
        folder, member = _place(Path(folder), point, member or 0)
    member = member or 0
    trained = load_all(folder, trust)
    if not 0 <= member < len(trained):
        raise UserError(f"member is {member}; '{folder}' has members 0 to {len(trained) - 1}.")
    return trained[member]


def _place(folder: Path, point: str | None, seed: int) -> tuple[Path, int]:
    """Return the run and the member of a point of the sweep in `folder`, by its ranking."""
    if not is_sweep(folder) and not (folder / RANKING).is_file():
        raise UserError(f"'{folder}' is no sweep, so it has no point '{point}'; give a member.")
    names: dict[str, list[str]] = {}
    try:
        with open(folder / RANKING) as file:
            for row in csv.DictReader(file):
                names.setdefault(row["name"], row["members"].split())
        best = next(iter(names))
    except (OSError, KeyError, StopIteration) as error:
        raise UserError(
            f"'{folder}' is a sweep without {RANKING}, which names its points; give a member, or "
            f"write it with: jaxrl sweep --resume {folder}"
        ) from error
    if point is None and len(names) > 1:
        raise UserError(
            f"'{folder}' is a sweep of {len(names)} points; choose one with point=\"best\" "
            f"(that is '{best}') or another of the names in {RANKING}, or give a member."
        )
    chosen = best if point in (None, "best") else point
    if chosen not in names:
        raise unknown("point of the sweep", chosen, names)
    places = names[chosen]
    if not 0 <= seed < len(places):
        raise UserError(
            f"member is {seed}; '{chosen}' has members 0 to {len(places) - 1}, one for each seed."
        )
    run, _, index = places[seed].rpartition("/")
    return folder / run, int(index)


def load_all(folder: str | Path, trust: Trust = False) -> list[Trained]:
    """Load all members. As `load`."""
    folder = run_folder.check(folder)
    config = run_folder.read_config(folder, trust)
    members = read_members(folder)
    checkpoint = newest_checkpoint(folder)
    check_matches_checkpoint(folder, config, checkpoint, MEANING)
    env, algorithm = build(config)
    prog = program(on_one_device(config), algorithm, members)
    progress, meta = restore_run(checkpoint, prog.shapes(members.keys(config.generator)))
    states = [progress.run.state]
    if prog.members is not None:
        states = [shared.member(states[0], i) for i in range(prog.members)]
    return [
        Trained(
            env,
            evaluation_policy(algorithm, state),
            config,
            algorithm,
            state,
            meta["step"],
            members,
        )
        for state in states
    ]
