"""Sweeps: every point of a grid times every seed, as members of one vmapped program."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxrl.core.errors import UserError, unknown
from jaxrl.runtime import configuration, training
from jaxrl.runtime import log as logs
from jaxrl.runtime.configuration import Experiment

Grid = dict[str, list[float]]  # hyper-parameter -> its values


def parse(config: Experiment, words: Sequence[str]) -> Grid:
    """`agent.learning-rate=1e-4,1e-3` and the like as a grid.

    Raises `UserError` for what is no hyper-parameter of the algorithm, no number, or given twice.
    """
    if not words:
        raise UserError("Say what to vary, such as --vary agent.learning-rate=1e-4,1e-3.")
    known = {f.name for f in dataclasses.fields(config.agent) if f.metadata.get("hyper")}
    grid: Grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.replace("-", "_").removeprefix("agent.")
        if not equals:
            raise UserError(f"--vary {word} needs values, such as {word}=1e-4,1e-3.")
        if name not in known:
            if name in configuration.leaves(config.agent):
                raise UserError(
                    f"agent.{name} is part of the program, so it cannot be vmapped; --vary takes "
                    f"{', '.join(sorted(known))}."
                )
            raise unknown("hyper-parameter", f"agent.{name}", [f"agent.{k}" for k in known])
        if name in grid:
            raise UserError(f"agent.{name} is varied twice.")
        grid[name] = [configuration.convert(f"agent.{name}", v, float) for v in values.split(",")]
    return grid


def sweep(config: Experiment, grid: Grid) -> Path:
    """Train the whole grid times `config.seeds` at once; returns the sweep's folder.

    Besides a run's files the folder holds sweep.csv, a row for each member and evaluation (the
    varied values, seed, steps, return), and sweep.png.
    """
    points = list(itertools.product(*grid.values()))
    seeds = range(config.seed, config.seed + config.seeds)
    members = [(point, seed) for point in points for seed in seeds]
    hyper = {
        name: np.asarray([point[i] for point, _ in members], np.float32)
        for i, name in enumerate(grid)
    }
    labels = [{"seed": seed} | dict(zip(grid, point, strict=True)) for point, seed in members]
    folder = training.train(config, training.Members(labels, hyper))
    _write_table(folder, labels)
    _draw(folder, config, grid, points)
    return folder


def _write_table(folder: Path, labels: list[dict[str, float]]) -> None:
    steps, returns = logs.series(logs.read(folder / "metrics.jsonl", "evaluation"), "return")
    with open(folder / "sweep.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*labels[0], "steps", "return"])
        for label, values in zip(labels, returns, strict=True):
            for step, value in zip(steps, values, strict=True):
                table.writerow([*label.values(), int(step), value])


def _draw(folder: Path, config: Experiment, grid: Grid, points: list[tuple[float, ...]]) -> None:
    from jaxrl.evaluation.plots import sweep_picture

    _, returns = logs.series(logs.read(folder / "metrics.jsonl", "evaluation"), "return")
    settings = {f"agent.{name}": [point[i] for point in points] for i, name in enumerate(grid)}
    sweep_picture(
        settings,
        returns[:, -1].reshape(len(points), config.seeds),
        folder / "sweep.png",
        title=f"{config.algorithm} on {config.env}, {config.seeds} seeds",
        ylabel="final return",
    )
