"""One attempt at a check, from its declaration to its record.

What is finished, a side in an environment, is kept in a folder, so that an interrupted attempt goes
on from there and ends with the same numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.evidence import sides
from experiments.evidence.declare import Check, Claim, Exact
from experiments.evidence.digests import as_json
from experiments.evidence.parts import Parts
from experiments.evidence.sides import TINY_SEEDS, Looks, Values, keys_of, look
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Key

INCONCLUSIVE, UNTESTABLE = "inconclusive", "untestable"
CORES = 2  # of which `minutes` are


@dataclasses.dataclass(frozen=True)
class Readers:
    """How values [environment][side][metric][seed] are read.

    look(claim, clauses, environments, values on the tuning seeds, seeds, level) -> (looks, why the
        claim is untestable, or nothing): what is to be seen before so many reported seeds are
        spent.
    judge(claim, clauses, environments, values on the reported seeds, level, hours a seed) and
    judge_exact(check, errors {name: [seeds]}, planted {name: largest error [seeds]}) -> verdict,
        why, and clauses, results that are dataclasses, as attributes.
    """

    look: Callable[..., tuple[Looks, str]]
    judge: Callable[..., Any]
    judge_exact: Callable[..., Any]


# ------------------------------------------------------------------------------- what it takes


def allowed(check: Check, cores: int) -> float:
    """The seconds in which a full attempt is to be done; on one core twice as many as on two."""
    return 60 * check.minutes * max(1.0, CORES / cores)


def plan(
    check: Check, digest: str, records: Iterable[Mapping[str, Any]], budget: str, cores: int
) -> float:
    """The seconds that an attempt is expected to take: what the last one of this declaration took
    on as many cores, unless it ended early, and without one what the declaration allows."""
    took = [
        r["seconds"]
        for r in records
        if r.get("event") == "ended"
        and (r["digest"], r["budget"], r["cores"]) == (digest, budget, cores)
        and r["verdict"] != UNTESTABLE
    ]
    return float(took[-1]) if took else allowed(check, cores)


# ------------------------------------------------------------------------------- an attempt


def run(
    check: Check,
    begun: Mapping[str, Any],
    tuning_root: int,
    store: Path,
    readers: Readers,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """The record of an attempt that ended.

    begun: the record of its beginning, of which this reads id, digest, attempt, budget, programs,
        seeds, seed_root (from which the reported seeds come), level and cores.
    tuning_root: the seed from which those of tuning come.
    store: the folder below which parts are kept, those of each attempt in one of its own.
    tell: is given a line about each part that is finished.

    Where the looks say that a claim is untestable, no reported seed is spent. What takes longer
    than allowed is finished, and says so. A tiny attempt has one environment, two seeds and no
    verdict.
    Raises `UserError` for unequal budgets, and for whatever else in a declaration cannot be.
    """
    parts = parts_of(begun, store, f"{begun['attempt']}-{begun['budget']}", clock, tell)
    if isinstance(check, Exact):
        found = exact(check, seeds_of(begun), begun["seed_root"], parts, readers)
    else:
        found = _claim(check, begun, tuning_root, parts, readers)
    found["looks"] += _spent(check, begun, parts.seconds)
    if begun["budget"] == "tiny":
        found |= {"verdict": INCONCLUSIVE, "why": "A tiny attempt only tests that the check runs."}
    return {**begun, "event": "ended", "seconds": round(parts.seconds, 1), **as_json(found)}


def parts_of(begun, store: Path, name: str, clock, tell) -> Parts:
    """The parts called `name` of a declaration, as far as the same programs made them in the same
    place."""
    facts = {
        "programs": begun.get("programs"),
        "jax": jax.__version__,
        "generator": random.default_generator(),
        "device": f"{jax.devices()[0].device_kind} x {jax.device_count()}",
        "cores": os.cpu_count(),
    }
    return Parts(store / f"{begun['id']}-{begun['digest']}" / name, facts, clock, tell)


def seeds_of(begun: Mapping[str, Any]) -> int:
    return min(TINY_SEEDS, begun["seeds"]) if begun["budget"] == "tiny" else begun["seeds"]


def _spent(check: Check, begun: Mapping[str, Any], seconds: float) -> Looks:
    """The look at what a full attempt took; others have no budget of time."""
    if begun["budget"] != "full":
        return []
    most = allowed(check, begun["cores"])
    said = f"It took {seconds:.0f} s on {_count(begun['cores'], 'core')}"
    said += f", more than the {most:.0f} s allowed." if seconds > most else "."
    return [look("budget", seconds <= most, said)]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _claim(claim: Claim, begun, tuning_root, parts, readers: Readers) -> dict[str, Any]:
    tried = sides.trials(claim, begun["budget"])
    environments, seeds, tiny = (
        sides.environments_of(tried),
        seeds_of(begun),
        begun["budget"] == "tiny",
    )
    tuned = sides.tune(claim, tried, tuning_root, parts)
    each = lambda name: sides.by_environment({where: t[name] for where, t in tuned.items()})
    pilot = each("at_best")
    sides.check_metrics(claim, pilot)
    looks = sides.same_steps(tried, pilot)
    looks += [edge for t in tuned.values() for edge in t["edges"]]
    found = {"tuned": each("best"), "grids": sides.grids(tuned), "looks": looks}
    found |= {"values": {}, "clauses": []}
    if not tiny:
        more, untestable = readers.look(
            claim, claim.clauses, environments, pilot, seeds, begun["level"]
        )
        looks += more
        if untestable:
            return found | {"verdict": UNTESTABLE, "why": untestable}
    before = parts.seconds
    values = sides.report(claim, tried, tuned, begun["seed_root"], seeds, parts, "reported")
    sides.same_steps(tried, values)
    found["values"] = values
    if tiny:
        return found
    hours = (parts.seconds - before) / 3600 / seeds
    return found | judged(claim, environments, values, begun["level"], hours, readers)


def judged(claim, environments, values: Values, level, hours, readers: Readers) -> dict[str, Any]:
    """Verdict, why and clauses, as a record has them. A side that has no finite value on some seed
    leaves nothing to judge."""
    metrics = sorted({clause.metric or claim.metric.name for clause in claim.clauses})
    for metric, environment, side in itertools.product(metrics, values, claim.sides):
        lost = sum(not math.isfinite(x) for x in values[environment][side].get(metric, ()))
        if lost:
            why = f"'{side}' has no finite {metric} on {_count(lost, 'seed')} in {environment}."
            return {"verdict": INCONCLUSIVE, "why": why, "clauses": []}
    return _said(readers.judge(claim, claim.clauses, environments, values, level, hours))


def _said(judgement: Any) -> dict[str, Any]:
    clauses = [dataclasses.asdict(result) for result in judgement.clauses]
    return {"verdict": judgement.verdict, "why": judgement.why, "clauses": clauses}


# ------------------------------------------------------------------------------- equalities


def exact(check: Exact, seeds, root, parts, readers: Readers, phase: str = "") -> dict[str, Any]:
    """What a record has of an equality."""
    errors = parts.get(f"{phase}errors", lambda: _errors(check.errors, seeds, root))
    planted = {
        name: parts.get(
            f"{phase}planted {name}", lambda wrong=wrong: _worst(_errors(wrong, seeds, root))
        )
        for name, wrong in check.planted.items()
    }
    found = {"looks": [], "tuned": {}, "grids": {}, "values": {"": {"": errors}}}
    return found | {"planted": planted} | _said(readers.judge_exact(check, errors, planted))


def _errors(function: Callable[[Key], Mapping[str, Any]], seeds: int, root: int) -> dict[str, Any]:
    """What `function` says of each seed, in float64: {name of an error: [seeds]}. Raises
    `UserError` for an error that was computed in less."""
    with jax.enable_x64(True):
        found = [dict(function(key)) for key in keys_of(root, "", seeds)]
    for name, error in found[0].items():
        kind = np.asarray(error).dtype
        if kind.kind == "f" and kind.itemsize < 8:
            raise UserError(f"The error '{name}' is a {kind}; an exact check computes in float64.")
    return {name: [float(x[name]) for x in found] for name in found[0]}


def _worst(errors: Mapping[str, Sequence[float]]) -> list[float]:
    return np.max([*errors.values()], axis=0).tolist()
