"""Training of an Experiment into a run folder, and resuming."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from jaxrl.core import random, shared
from jaxrl.core.types import Environment
from jaxrl.runtime import (
    checkpoints,
    configuration,
    continuing,
    due,
    processes,
    run_folder,
    stopping,
)
from jaxrl.runtime.building import (
    build,
    check_host,
    configure_jax,
    evaluation_environment,
    program,
)
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members, read_members, seed_members
from jaxrl.runtime.placement import with_shards
from jaxrl.runtime.session import Session


def train(config: Experiment, members: Members | None = None) -> Path:
    """Train as `config` says, or resume `config.resume`; return the run's folder.

    members: what is trained side by side; by default the configuration's seeds. In a fork they are
        the forked run's members, unless they name their `parents` among these.

    Raises:
        UserError: for input that cannot work.
        NotFinite: if the losses of all members are no longer finite.
        SystemExit: (128 + signal) after an interrupt, once all is saved.
    """
    display = Display(config.quiet)
    configure_jax(config)
    if config.resume:
        return _resume(config, display)
    if config.fork and not (members and members.parents):
        members = continuing.fork_members(config, members)
    # Recorded, so that the run keeps its generator whatever device it is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    members = members or seed_members(config)
    config = with_shards(config, build(config)[1], len(members))
    env, session, keys = _session(config, members, display)
    check_host(config, env)
    for sentence in due.never_due(config, session.algorithm, session.members.hyper):
        display.warn(f"Warning: {sentence}")

    trust = continuing.trusted_code(config)
    if configuration.is_file(config.warm_start):
        first = continuing.warm_start_experiment(config)
        trust = continuing.trusted_code(config, first)
        config = dataclasses.replace(config, warm_start=str(_train_first(first, session, keys)))
        session.config = config
    with session.interrupt.catch(), stopping.explain_failures(None):
        # All checks come before the folder is made.
        parent = continuing.initial_progress(config, session, keys, trust)
        with processes.first_enters(run_folder.draft(config.out, config.name)) as draft:
            with display.announce("Starting", session.seconds):
                own = session.members.own_hyper()
                progress, step = parent or (session.program.start(keys, own), 0)
                copy = checkpoints.copy_to_host(shared.strip(progress))
                meta = processes.from_first(lambda: session.begin(draft, copy, step))
            stem = f"{run_folder.slug(config.algorithm)}-{run_folder.slug(env.name)}"
            publish = lambda: str(run_folder.publish(draft, config.name, stem))
            folder = Path(processes.from_first(publish))
            session.run(folder, progress, meta)
    return folder


def _resume(config: Experiment, display: Display) -> Path:
    """Resume the run `config.resume` where it was stopped; a finished run is left alone."""
    folder = run_folder.check(config.resume)
    continuing.check_unchanged(config, folder)
    if processes.from_first(lambda: continuing.is_finished(folder)):
        display.say(f"The run in {folder} is finished; to train longer, --fork it.")
        return folder
    with processes.first_enters(run_folder.lock(folder)):
        members = read_members(folder)
        checkpoint = continuing.newest_checkpoint(folder, display.warn)
        continuing.check_matches_checkpoint(folder, config, checkpoint)
        _, session, keys = _session(config, members, display)
        with session.interrupt.catch():
            with stopping.explain_failures(None):
                progress, meta = continuing.restore_run(checkpoint, session.program.shapes(keys))
            display.say(f"Resuming {folder} from update {meta['step']}.")
            session.run(folder, session.program.place(progress), meta)
    return folder


def _session(
    config: Experiment, members: Members, display: Display
) -> tuple[Environment, Session, jax.Array]:
    """Return the training environment, the session in it, and the members' keys.

    Whatever can be found wrong before anything runs is refused.
    """
    env, algorithm = build(config)
    evaluated = evaluation_environment(config, env)
    prog = program(config, algorithm, members)
    session = Session(config, algorithm, evaluated, prog, members, display)
    keys = members.keys(config.generator)
    session.check(keys)
    if config.debug:
        display.say("debug: every number and index is checked, which is slow.")
    return env, session, keys


def _train_first(first: Experiment, session: Session, keys: jax.Array) -> Path:
    """Return the finished run that `first` describes, training it as far as needed."""
    continuing.check_warm_start(first, session, keys)
    folder = Path(first.out) / first.name
    exists, finished = processes.from_first(
        lambda: (folder.exists(), continuing.is_finished(folder))
    )
    if finished:
        session.display.say(f"Warm start from the finished run in {folder}.")
    elif exists:
        before = run_folder.read_config(folder, continuing.trusted_code(first))
        before = dataclasses.replace(before, resume=str(folder), quiet=first.quiet)
        train(processes.spread(before))
    else:
        session.display.say(f"Training {first.algorithm} first, for the warm start:")
        train(processes.spread(first))
    return folder
