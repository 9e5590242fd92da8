"""Train an Experiment into a run folder, or go on with one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax

from jaxrl.core import random
from jaxrl.runtime import configuration, earlier, run_folder, stopping
from jaxrl.runtime.building import build, evaluation_environment, prepare, program
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members, members_of, seeds
from jaxrl.runtime.session import Session


def train(config: Experiment, members: Members | None = None) -> Path:
    """Train as `config` says, or go on with `config.resume`. Returns the run's folder.

    members: what is trained side by side; the configuration's seeds unless said.

    Raises `UserError` for input that cannot work, `NotFinite` if the losses of all members are no
    longer finite, and `SystemExit` (128 + signal) after an interrupt, when all is saved.
    """
    display = Display(config.quiet)
    prepare(config)
    if config.resume:
        folder = run_folder.check(config.resume)
        earlier.check_unchanged(config, folder)
        members = members_of(folder)
    elif config.fork:
        members = earlier.members_of_fork(config, members)
    members = members or seeds(config)
    # The run's folder says which generator it was, whatever device it is resumed on.
    generator = random.generator_name(random.key(0, config.generator))
    config = dataclasses.replace(config, generator=generator)
    env, algorithm = build(config)
    prog = program(config, algorithm, members)
    keys = members.keys(generator)
    session = Session(
        config, algorithm, evaluation_environment(config, env), prog, members, display
    )
    session.check(keys)
    if config.debug:
        display.say("debug: every number and index is checked, which is slow.")

    if not config.resume and earlier.is_configuration(config.warm_start):
        config = dataclasses.replace(config, warm_start=str(_before(config, session, keys)))
    with session.interrupt.noted(), stopping.explained(None):
        if config.resume:
            if earlier.is_finished(folder):
                display.say(f"The run in {folder} is finished; --fork it to train on.")
                return folder
            with run_folder.locked(folder):
                progress, meta = earlier.restore(folder, prog.shapes(keys), display.warn)
                display.say(f"Going on from update {meta['step']} of {folder}.")
                session.run(folder, prog.place(progress), meta)
            return folder

        # Everything that can be wrong is known before a folder is made.
        parent = earlier.parent(config, session, keys)
        with run_folder.draft(config.out, config.name) as draft, run_folder.locked(draft):
            with display.announced("Starting", session.seconds):
                progress, step = parent or (prog.start(keys, members.own_hyper()), 0)
                configuration.write(config, draft / "config.yaml")
                members.write(draft / "members.json")
                meta = session.save(draft, progress, step, log_size=0)
            stem = f"{config.algorithm}-{run_folder.slug(env.name)}"
            folder = run_folder.publish(draft, config.name, stem)
            session.run(folder, progress, meta)
    return folder


def _before(config: Experiment, session: Session, keys: jax.Array) -> Path:
    """The finished run that `config.warm_start` describes; trained, or trained on, if need be."""
    first = earlier.first_phase(config)
    earlier.check_warm_start(first, session, keys)
    folder = Path(first.out) / first.name
    if folder.exists() and earlier.is_finished(folder):
        session.display.say(f"Warm start from the finished run in {folder}.")
    elif folder.exists():
        train(dataclasses.replace(run_folder.read_config(folder), resume=str(folder)))
    else:
        session.display.say(f"First {first.algorithm}, for the warm start:")
        train(first)
    return folder
