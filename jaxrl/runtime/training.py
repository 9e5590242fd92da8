"""Train an Experiment into a run folder, or go on with one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from jaxrl.core import random, shared
from jaxrl.core.types import Environment
from jaxrl.runtime import configuration, continuing, run_folder, stopping
from jaxrl.runtime.building import build, evaluation_environment, prepare, program
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members, members_of, seeds
from jaxrl.runtime.session import Session


def train(config: Experiment, members: Members | None = None) -> Path:
    """Train as `config` says, or go on with `config.resume`. Returns the run's folder.

    members: what is trained side by side; the configuration's seeds unless said. In a fork they are
        those that are forked, unless they name their `parents` among these.

    Raises `UserError` for input that cannot work, `NotFinite` if the losses of all members are no
    longer finite, and `SystemExit` (128 + signal) after an interrupt, when all is saved.
    """
    display = Display(config.quiet)
    prepare(config)
    if config.resume:
        return _go_on(config, display)
    if config.fork and not (members and members.parents):
        members = continuing.members_of_fork(config, members)
    # The run's folder says which generator it was, whatever device it is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    env, session, keys = _session(config, members or seeds(config), display)

    trust = continuing.trusted(config)
    if configuration.is_file(config.warm_start):
        first = continuing.first_phase(config)
        trust = continuing.trusted(config, first)
        config = dataclasses.replace(config, warm_start=str(_before(first, session, keys)))
        session.config = config
    with session.interrupt.noted(), stopping.explained(None):
        # Everything that can be wrong is known before a folder is made.
        parent = continuing.parent(config, session, keys, trust)
        with run_folder.draft(config.out, config.name) as draft:
            with display.announced("Starting", session.seconds):
                own = session.members.own_hyper()
                progress, step = parent or (session.program.start(keys, own), 0)
                configuration.write(config, draft / "config.yaml")
                session.members.write(draft / "members.json")
                diverged = session.diverged.tolist()
                meta = session.save(draft, shared.strip(progress), step, 0, diverged)
            stem = f"{run_folder.slug(config.algorithm)}-{run_folder.slug(env.name)}"
            folder = run_folder.publish(draft, config.name, stem)
            session.run(folder, progress, meta)
    return folder


def _go_on(config: Experiment, display: Display) -> Path:
    """Go on with the run `config.resume` where it was stopped; a finished one is left alone."""
    folder = run_folder.check(config.resume)
    continuing.check_unchanged(config, folder)
    if continuing.is_finished(folder):
        display.say(f"The run in {folder} is finished; --fork it to train on.")
        return folder
    with run_folder.locked(folder):
        members = members_of(folder)
        checkpoint = continuing.newest(folder, display.warn)
        continuing.check_as_saved(folder, config, checkpoint)
        _, session, keys = _session(config, members, display)
        with session.interrupt.noted(), stopping.explained(folder):
            progress, meta = continuing.restored(checkpoint, session.program.shapes(keys))
            display.say(f"Going on from update {meta['step']} of {folder}.")
            session.run(folder, session.program.place(progress), meta)
    return folder


def _session(
    config: Experiment, members: Members, display: Display
) -> tuple[Environment, Session, jax.Array]:
    """Where `config` trains, what trains there, and the members' keys; all that can be known to be
    wrong before anything runs is refused."""
    env, algorithm = build(config)
    evaluated = evaluation_environment(config, env)
    prog = program(config, algorithm, members)
    session = Session(config, algorithm, evaluated, prog, members, display)
    keys = members.keys(config.generator)
    session.check(keys)
    if config.debug:
        display.say("debug: every number and index is checked, which is slow.")
    return env, session, keys


def _before(first: Experiment, session: Session, keys: jax.Array) -> Path:
    """The finished run that `first` describes; trained, or trained on, if need be."""
    continuing.check_warm_start(first, session, keys)
    folder = Path(first.out) / first.name
    if folder.exists() and continuing.is_finished(folder):
        session.display.say(f"Warm start from the finished run in {folder}.")
    elif folder.exists():
        before = run_folder.read_config(folder, continuing.trusted(first))
        train(dataclasses.replace(before, resume=str(folder), quiet=first.quiet))
    else:
        session.display.say(f"First {first.algorithm}, for the warm start:")
        train(first)
    return folder
