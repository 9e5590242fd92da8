"""One attempt at a claim, from its declaration to its record.

Each finished part, a side in an environment, is kept in a file, so that an interrupted attempt
resumes there and ends with the same numbers.
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
from experiments.evidence.declare import Claim, Declaration, Exact
from experiments.evidence.digests import as_json
from experiments.evidence.history import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    PILOT,
    UNTESTABLE,
    level_of_look,
)
from experiments.evidence.parts import Parts
from experiments.evidence.sides import TINY_SEEDS, Looks, Values, keys_of, look
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Key

CORES = 2  # that `minutes` of a declaration assume
FEWEST, MOST_GROUPS = 8, 4  # seeds of a group after which an attempt is judged; number of these


@dataclasses.dataclass(frozen=True)
class Readers:
    """The functions that read values [environment][side][metric][seed].

    look: `looks.look`, before the reported seeds are spent. judge: `judge.judge`, on the reported
    seeds. judge_exact: `judge.judge_exact`.
    """

    look: Callable[..., tuple[Looks, str]]
    judge: Callable[..., Any]
    judge_exact: Callable[..., Any]


# ------------------------------------------------------------------------------- time


def time_limit(declaration: Declaration, cores: int) -> float:
    """Return the seconds that a full attempt may take; on one core twice as many as on two."""
    return 60 * declaration.minutes * max(1.0, CORES / cores)


def plan(
    declaration: Declaration,
    digest: str,
    records: Iterable[Mapping[str, Any]],
    budget: str,
    cores: int,
) -> float:
    """Return the seconds that an attempt is expected to take.

    That is what the last attempt of this declaration took on as many cores, unless it ended early;
    without one, the time that the declaration allows.
    """
    took = [
        r["seconds"]
        for r in records
        if r.get("event") == "ended"
        and (r["digest"], r["budget"], r["cores"]) == (digest, budget, cores)
        and r["verdict"] != UNTESTABLE
    ]
    return float(took[-1]) if took else time_limit(declaration, cores)


# ------------------------------------------------------------------------------- an attempt


def run(
    declaration: Declaration,
    begun: Mapping[str, Any],
    tuning_root: int,
    store: Path,
    readers: Readers,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda line: None,
    bank: sides.Shared | None = None,
) -> dict[str, Any]:
    """Make an attempt and return the record of its end.

    begun: the record of its beginning. This function reads id, digest, attempt, budget, code,
        seeds, seed_root (from which the reported seeds are split), level and cores.
    tuning_root: the number from which the tuning seeds are split.
    store: the folder that keeps the parts of each attempt in a folder of its own.
    tell: receives a line about each part that is finished.
    bank: has the values of sides that claims share; they are run like others if it is None.

    If the looks find the claim untestable, no reported seed is spent, and none is by a pilot; what
    the tuning seeds came to is kept as `pilot`. An attempt that takes longer
    than allowed is finished, and its record says so. A tiny attempt has one environment, two seeds
    and no verdict. Raises `UserError` for unequal budgets, and for anything else in a declaration
    that cannot be.
    """
    parts = parts_of(begun, store, f"{begun['attempt']}-{begun['budget']}", clock, tell)
    if isinstance(declaration, Exact):
        found = exact(declaration, seeds_of(begun), begun["seed_root"], parts, readers)
    else:
        found = _claim(declaration, begun, tuning_root, parts, readers, bank)
    found["looks"] += _time_look(declaration, begun, parts.seconds)
    if begun["budget"] == "tiny":
        found |= {"verdict": INCONCLUSIVE, "why": "A tiny attempt only tests that the claim runs."}
    return {**begun, "event": "ended", "seconds": round(parts.seconds, 1), **as_json(found)}


def parts_of(begun, store: Path, name: str, clock, tell) -> Parts:
    """Return the parts called `name` that the same code made on the same machine."""
    facts = {
        "code": begun.get("code"),
        "jax": jax.__version__,
        "generator": random.default_generator(),
        "device": f"{jax.devices()[0].device_kind} x {jax.device_count()}",
        "cores": os.cpu_count(),
    }
    return Parts(store / f"{begun['id']}-{begun['digest']}" / name, facts, clock, tell)


def seeds_of(begun: Mapping[str, Any]) -> int:
    return min(TINY_SEEDS, begun["seeds"]) if begun["budget"] == "tiny" else begun["seeds"]


def _time_look(declaration: Declaration, begun: Mapping[str, Any], seconds: float) -> Looks:
    """Return the look at the time of a full attempt; others have no time limit."""
    if begun["budget"] != "full":
        return []
    most = time_limit(declaration, begun["cores"])
    said = f"It took {seconds:.0f} s on {_count(begun['cores'], 'core')}"
    said += f", more than the {most:.0f} s allowed." if seconds > most else "."
    return [look("budget", seconds <= most, said)]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _claim(claim: Claim, begun, tuning_root, parts, readers: Readers, bank) -> dict[str, Any]:
    tried = sides.trials(claim, begun["budget"])
    environments, seeds, tiny = (
        sides.environments_of(tried),
        seeds_of(begun),
        begun["budget"] == "tiny",
    )
    tuned = sides.tune(claim, tried, tuning_root, parts, bank)
    each = lambda name: sides.by_environment({where: t[name] for where, t in tuned.items()})
    pilot = sides.first_seeds(each("at_best"), 1 if tiny else claim.tuning_seeds)
    sides.check_metrics(claim, pilot)
    looks = sides.same_budgets(claim, tried, pilot)
    looks += [edge for t in tuned.values() for edge in t["edges"]]
    found = {"tuned": each("best"), "grids": sides.grids(tuned), "looks": looks}
    found |= {"values": {}, "clauses": [], "pilot": pilot}
    if not tiny:
        more, untestable = readers.look(
            claim, claim.clauses, environments, pilot, seeds, begun["level"]
        )
        looks += more
        if untestable:
            return found | {"verdict": UNTESTABLE, "why": untestable}
        if begun["budget"] == PILOT:
            return found | {"verdict": PILOT, "why": "A pilot spends no reported seed."}
    if tiny:
        values = sides.report(claim, tried, tuned, begun["seed_root"], [seeds], parts, bank)
        return found | {"values": values}
    groups = groups_of(claim, seeds)
    level = level_of_look(begun["level"], len(groups))
    before = parts.seconds
    for i, count in enumerate(groups):
        values = sides.report(claim, tried, tuned, begun["seed_root"], groups[: i + 1], parts, bank)
        sides.same_budgets(claim, tried, values)
        hours = (parts.seconds - before) / 3600 / count
        verdict = verdict_of(claim, environments, values, level, hours, readers)
        if verdict["verdict"] in (HOLDS, FAILS):
            break
    return found | {"values": values, "seeds": count, "groups": len(groups)} | verdict


def groups_of(claim: Claim, seeds: int) -> list[int]:
    """Return the numbers of seeds after which an attempt is judged, the last all of them.

    An attempt ends with the first that decides. Up to four groups of equal size, each as many runs
    as tuning has where that is enough, so that both share a program.
    """
    points = max(side.points for side in claim.sides.values())
    size = max(FEWEST, points * claim.tuning_seeds, math.ceil(seeds / MOST_GROUPS))
    return [*range(size, seeds, size), seeds]


def verdict_of(
    claim, environments, values: Values, level, hours, readers: Readers
) -> dict[str, Any]:
    """Return verdict, why and clauses, as a record has them.

    A side without a finite value on some seed makes the claim inconclusive.
    """
    metrics = sorted({clause.metric or claim.metric.name for clause in claim.clauses})
    for metric, environment, side in itertools.product(metrics, values, claim.sides):
        measured = values[environment].get(side, {}).get(metric, ())
        lost = sum(not math.isfinite(x) for x in measured)
        if lost:
            why = f"'{side}' has no finite {metric} on {_count(lost, 'seed')} in {environment}."
            return {"verdict": INCONCLUSIVE, "why": why, "clauses": []}
    return _as_dict(readers.judge(claim, claim.clauses, environments, values, level, hours))


def _as_dict(judgement: Any) -> dict[str, Any]:
    clauses = [dataclasses.asdict(result) for result in judgement.clauses]
    return {"verdict": judgement.verdict, "why": judgement.why, "clauses": clauses}


# ------------------------------------------------------------------------------- equalities


def exact(claim: Exact, seeds, root, parts, readers: Readers) -> dict[str, Any]:
    """Return what a record has of an equality."""
    errors = parts.get("errors", lambda: errors_of(claim.errors, seeds, root))
    planted = {
        name: parts.get(
            f"planted {name}", lambda wrong=wrong: _worst(errors_of(wrong, seeds, root))
        )
        for name, wrong in claim.planted.items()
    }
    found = {"looks": [], "tuned": {}, "grids": {}, "values": {"": {"": errors}}}
    return found | {"planted": planted} | _as_dict(readers.judge_exact(claim, errors, planted))


def errors_of(
    function: Callable[[Key], Mapping[str, Any]], seeds: int, root: int
) -> dict[str, Any]:
    """Return the errors of each seed in float64: {name of an error: [seeds]}.

    Raises `UserError` for an error that was computed in less.
    """
    with jax.enable_x64(True):
        found = [dict(function(key)) for key in keys_of(root, "", seeds)]
    for name, error in found[0].items():
        kind = np.asarray(error).dtype
        if kind.kind == "f" and kind.itemsize < 8:
            raise UserError(f"The error '{name}' is a {kind}; an exact claim computes in float64.")
    return {name: [float(x[name]) for x in found] for name in found[0]}


def _worst(errors: Mapping[str, Sequence[float]]) -> list[float]:
    return np.max([*errors.values()], axis=0).tolist()
