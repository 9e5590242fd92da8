"""Sides of a claim in its environments: tuning, and runs on the reported seeds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from experiments.evidence import measure, tuning
from experiments.evidence.course import Course
from experiments.evidence.declare import Arena, Claim, Trial
from experiments.evidence.parts import Parts
from jaxrl.core import random
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Key

TINY_SEEDS = 2

Tried = Mapping[tuple[str, str], Trial]  # by environment and side
# [environment][side][metric][seed]
Values = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
Looks = list[dict[str, Any]]  # {name, ok, said} each


def look(name: str, ok: bool, said: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "said": said}


def trials(claim: Claim, budget: str) -> dict[tuple[str, str], Trial]:
    """Return the trials of a budget, by environment and side.

    A side runs only where a clause is about it. A tiny budget has the first environment alone, and
    two values of each hyperparameter. Raises `UserError` if a clause is about an environment that
    is not run.
    """
    environments = (claim.large if budget == "large" else ()) or claim.environments
    labels = {environment.label for environment in environments}
    for clause in claim.clauses:
        for label in set(clause.environments) - labels:
            raise UserError(
                f"'{clause}' is about '{label}', which a {budget} attempt does not run."
            )
    named = {
        (label, side)
        for clause in claim.clauses
        for label in clause.environments or labels
        for side in (clause.one, clause.other)
    }
    tiny, found = budget == "tiny", {}
    for environment, (name, side) in itertools.product(
        environments[: 1 if tiny else None], claim.sides.items()
    ):
        if (environment.label, name) not in named:
            continue
        if tiny:
            grid = {k: tuple(values)[:2] for k, values in side.grid.items()}
            side = dataclasses.replace(side, grid=grid)
        found[environment.label, name] = Trial(name, side, environment, environment.env_steps, tiny)
    return found


def environments_of(tried: Tried) -> list[Arena]:
    return list({label: trial.environment for (label, _), trial in tried.items()}.values())


def keys_of(root: int, environment: str, count: int) -> Key:
    """Return the keys [count] of the seeds in an environment, the same for all sides."""
    key = jax.random.fold_in(random.key(root), zlib.crc32(environment.encode()))
    return jax.random.split(key, count)


class Shared(Protocol):
    """Baselines that claims share (`bank.Bank`)."""

    def tune(self, trial: Trial, metric: str, /) -> dict[str, Any]: ...

    def report(
        self, trial: Trial, metric: str, best: Mapping[str, Any], root: int, seeds: int, /
    ) -> dict[str, list[float]]: ...


def tune(
    claim: Claim, tried: Tried, root: int, parts: Parts, bank: Shared | None = None
) -> dict[tuple[str, str], Any]:
    """Tune each side in each environment on the tuning seeds (`tuning.tune`)."""
    if claim.measure is None:
        measure.check(tried.values())
    elif isinstance(claim.measure, Course):
        for trial in tried.values():
            claim.measure.check(trial)
    metric = claim.tuned_by or claim.metric.name
    more_is_better = bool(claim.tuned_by) or claim.metric.more_is_better
    tuned = {}
    for (environment, side), trial in tried.items():
        keys = keys_of(root, environment, 1 if trial.tiny else claim.tuning_seeds)
        find = functools.partial(
            tuning.tune, claim.measure or measure.curve, trial, keys, metric, more_is_better
        )
        if bank and trial.side.banked and not trial.tiny:
            find = functools.partial(bank.tune, trial, metric)
        tuned[environment, side] = parts.get(f"tuned {environment} {side}", find)
    return tuned


def report(
    claim: Claim,
    tried: Tried,
    tuned,
    root: int,
    groups: Sequence[int],
    parts: Parts,
    bank: Shared | None = None,
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the values of all sides at their best settings, on seeds split from `root`.

    groups: growing numbers of seeds; those that each adds are run and kept as one part.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    metric = claim.tuned_by or claim.metric.name
    for (environment, side), trial in tried.items():
        keys, best = keys_of(root, environment, groups[-1]), tuned[environment, side]["best"]
        values = found[environment, side] = {}
        for first, last in zip((0, *groups), groups, strict=False):
            run = functools.partial(
                measure.run, claim.measure or measure.curve, trial, keys[first:last], best
            )
            if bank and trial.side.banked and not trial.tiny:
                run = functools.partial(_from_bank, bank, trial, metric, best, root, first, last)
            part = parts.get(f"reported {environment} {side} {first}-{last}", run)
            for name, row in part.items():
                values[name] = values.get(name, []) + row
    return by_environment(found)


def _from_bank(bank: Shared, trial, metric, best, root, first: int, last: int):
    found = bank.report(trial, metric, best, root, last)
    return {name: row[first:] for name, row in found.items()}


def by_environment(found: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    nested: dict[str, dict[str, Any]] = {}
    for (environment, side), value in found.items():
        nested.setdefault(environment, {})[side] = value
    return nested


def first_seeds(values: Values, seeds: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the values of the first seeds alone (the bank tunes on more than a claim may)."""
    return {
        label: {
            side: {metric: row[:seeds] for metric, row in of.items()} for side, of in here.items()
        }
        for label, here in values.items()
    }


def grids(tuned: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, list[float]]]:
    """Return all values tried in any environment, for each side that is tuned."""
    tried: dict[str, dict[str, list[float]]] = {}
    for (_, side), found in tuned.items():
        for name, values in found["grid"].items():
            known = tried.setdefault(side, {}).get(name, [])
            tried[side][name] = sorted({*known, *values})
    return tried


def same_budgets(claim: Claim, tried: Tried, values: Values) -> Looks:
    """Raise `UserError` if sides of an environment had unequal budgets.

    Environment steps, where they are counted, are those of the environment; each other unit of
    `claim.budgets` is the same for all sides and seeds there. If no side counts its steps, return a
    look that says so. (A tiny run takes as much as its side takes at once.)
    """
    looks = []
    for unit in dict.fromkeys(("env_steps", *claim.budgets)):
        counted = {where: values[where[0]][where[1]].get(unit) for where in tried}
        words = unit.replace("env_", "environment ").replace("_", " ")
        if unit not in claim.budgets and not any(counted.values()):
            said = f"{words.capitalize()} were not counted; that all sides took as many is a "
            looks.append(look("budget", True, f"{said}matter of trust."))
            continue
        shares: dict[str, float] = {}
        for (environment, side), trial in tried.items():
            found = counted[environment, side] or [math.nan]
            asked = trial.env_steps if unit == "env_steps" else found[0]
            asked = shares.setdefault(environment, asked)
            wrong = [x for x in found if x != asked]
            if wrong and not trial.tiny:
                raise UserError(
                    f"In {environment} '{side}' took {wrong[0]:.0f} {words}; each side has "
                    f"{asked:.0f}."
                )
    return looks


def check_metrics(claim: Claim, values: Values) -> None:
    """Raise `UserError` if a clause is about a metric that is not measured."""
    for environment, clause in itertools.product(values, claim.clauses):
        if clause.environments and environment not in clause.environments:
            continue
        for side in (clause.one, clause.other):
            metric = clause.metric or claim.metric.name
            if metric not in values[environment][side]:
                raise unknown(
                    f"metric of '{side}' in {environment}", metric, values[environment][side]
                )
