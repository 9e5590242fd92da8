"""Sweeps: every point of a grid times every seed, as members of one vmapped program."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import check, hypers
from jaxrl.runtime import configuration, training
from jaxrl.runtime import log as logs
from jaxrl.runtime.configuration import Experiment
from jaxrl.runtime.display import Display
from jaxrl.runtime.members import Members, members_of

Grid = dict[str, list[float]]  # hyper-parameter -> its values


def parse(config: Experiment, words: Sequence[str]) -> Grid:
    """`agent.learning-rate=1e-4,1e-3` and the like as a grid; empty for a sweep that is resumed.

    Raises `UserError` for what is no hyper-parameter of the algorithm, no number, out of its range,
    or given twice.
    """
    if config.resume:
        if words:
            raise UserError("A resumed sweep knows what it varies; --vary cannot be said again.")
        return {}
    if not words:
        raise UserError("Say what to vary, such as --vary agent.learning-rate=1e-4,1e-3.")
    known = [f"agent.{name}" for name in hypers(config.agent)]
    static = [f"agent.{name}" for name in configuration.leaves(config.agent)]
    grid: Grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise UserError(f"--vary {word} needs values, such as {word}=1e-4,1e-3.")
        name = configuration.resolved(name, known)
        if name not in known:
            name = configuration.resolved(name, static)
            if name in static:
                raise UserError(
                    f"{name} is part of the program, so it cannot be vmapped; --vary takes "
                    f"{', '.join(sorted(known))}."
                )
            raise unknown("hyper-parameter", name, known)
        name = name.removeprefix("agent.")
        if name in grid:
            raise UserError(f"agent.{name} is varied twice.")
        grid[name] = [configuration.convert(f"agent.{name}", v, float) for v in values.split(",")]
        for value in grid[name]:
            check(settings.replace(config.agent, {name: value}), "agent.")
        if len(set(grid[name])) < len(grid[name]):
            raise UserError(f"agent.{name} is varied over a value twice: {values}.")
    return grid


def sweep(config: Experiment, grid: Grid) -> Path:
    """Train the whole grid times `config.seeds` at once, or go on with the sweep `config.resume`,
    which knows its grid; returns the sweep's folder.

    Besides a run's files the folder holds sweep.csv, a row for each member and evaluation (the
    varied values, seed, steps, return), and sweep.png.
    """
    if config.evaluate_every < 0:
        raise UserError("A sweep compares evaluations; evaluate_every must not be -1.")
    points = list(itertools.product(*grid.values()))
    seeds = range(config.seed, config.seed + config.seeds)
    members = [(point, seed) for point in points for seed in seeds]
    hyper = {
        name: np.asarray([point[i] for point, _ in members], np.float32)
        for i, name in enumerate(grid)
    }
    labels = [{"seed": seed} | dict(zip(grid, point, strict=True)) for point, seed in members]
    folder = training.train(config, None if config.resume else Members(labels, hyper))
    labels = members_of(folder).labels
    display = Display(config.quiet)
    rows = logs.read(folder / "metrics.jsonl", "evaluation", display.warn)
    steps, returns = logs.series(rows, "return")
    if not steps.size:
        raise UserError(f"The log of '{folder}' has no evaluations to compare.")
    _write_table(folder, labels, steps, returns)
    _draw(folder, config, labels, returns[:, -1])
    _report(folder, display, labels, returns[:, -1].reshape(-1, config.seeds))
    return folder


def _report(
    folder: Path, display: Display, labels: list[dict[str, float]], final: np.ndarray
) -> None:
    """Say each setting's final return, final [settings, seeds], the best first."""
    means = np.where(np.isfinite(final).all(1), final.mean(1), -np.inf)
    for i in np.argsort(-means, kind="stable")[:10]:
        setting = labels[i * final.shape[1]].items()
        named = ", ".join(f"{name} {value:.6g}" for name, value in setting if name != "seed")
        display.say(f"{named}: final return {final[i].mean():.5g}")
    display.say(f"Table and picture: {folder / 'sweep.csv'}, {folder / 'sweep.png'}")


def _write_table(
    folder: Path, labels: list[dict[str, float]], steps: np.ndarray, returns: np.ndarray
) -> None:
    """One row for each member and evaluation."""
    with open(folder / "sweep.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*labels[0], "steps", "return"])
        for label, values in zip(labels, returns, strict=True):
            for step, value in zip(steps, values, strict=True):
                table.writerow([*label.values(), int(step), value])


def _draw(
    folder: Path, config: Experiment, labels: list[dict[str, float]], final: np.ndarray
) -> None:
    """The final return of each setting; its seeds follow each other in `labels`."""
    from jaxrl.evaluation.plots import sweep_picture

    varied = {name: [x[name] for x in labels[:: config.seeds]] for name in labels[0]}
    del varied["seed"]
    sweep_picture(
        varied,
        final.reshape(-1, config.seeds),
        folder / "sweep.png",
        title=f"{config.algorithm} on {config.env}",
    )
