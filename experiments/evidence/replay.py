"""Replays: one recorded seed of every side, run again with today's code.

A record names the version and the commit that made it. Its result is stale only if a replayed seed
leaves the range of the recorded ones: programs change without changing what comes out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.evidence import measure, sides
from experiments.evidence.declare import Declaration, Exact
from experiments.evidence.sides import keys_of

ROUNDING = 0.01  # part of a metric's range by which a seed may lie beyond the recorded ones
SAME = 1e-5  # relative difference of a run that took the same course


@dataclasses.dataclass(frozen=True)
class Replay:
    """The outcome of a replay.

    ok: whether no side left the recorded range. equal: whether every value is the recorded one.
    said: what was found, in one sentence.
    """

    ok: bool
    equal: bool
    said: str


def replay(
    declaration: Declaration,
    ended: Mapping[str, Any],
    tell: Callable[[str], None] = lambda line: None,
) -> Replay:
    """Run the first reported seed of an attempt again, on every side in every environment.

    ended: the record of its end, in today's names. Where the first seed leaves the range, the
    second is run too, and only if that does as well has the side left it: of n seeds that chance
    parts from their recorded course, 2 / (n + 1) do.
    """
    if isinstance(declaration, Exact):
        return _exact(declaration, ended)
    tried = sides.trials(declaration, ended["budget"])
    asked = {c.metric or declaration.metric.name for c in declaration.clauses}
    left, equal, runs = [], True, 0
    for (environment, side), trial in tried.items():
        recorded = ended["values"].get(environment, {}).get(side)
        if recorded is None:
            return Replay(False, False, f"There is no record of '{side}' in {environment}.")
        keys = keys_of(ended["seed_root"], environment, ended["seeds"])
        best = ended["tuned"].get(environment, {}).get(side, {})
        runs += 1
        for seed in range(2):
            run = declaration.measure or measure.curve
            found = measure.run(run, trial, keys[seed : seed + 1], best)
            outside, same = _compare(trial, asked, found, recorded, seed)
            equal &= same
            tell(f"{environment} {side}: {outside or ('as recorded' if same else 'in the range')}")
            if not outside:
                break
        else:
            left.append(f"'{side}' in {environment}: {outside}")
    if left:
        return Replay(False, False, f"Replayed seeds left the recorded range: {'; '.join(left)}.")
    how = "the recorded values" if equal else "values in the range of the recorded seeds"
    return Replay(True, equal, f"The first seed has {how} on all of {runs} sides.")


def _compare(
    trial: Any, asked: set[str], found: Mapping[str, Sequence[float]], recorded, seed: int
) -> tuple[str, bool]:
    """Return which metric of a replayed seed is outside of the recorded range, in words, and
    whether all metrics are as recorded."""
    same = True
    for metric in sorted(asked & (set(recorded) | set(found))):
        if metric not in recorded or metric not in found:
            return f"{metric} was {'not ' * (metric not in recorded)}measured", False
        values = [math.nan if x is None else x for x in recorded[metric]]
        now, before = float(found[metric][0]), values[seed]
        if math.isnan(now) and math.isnan(before):
            continue
        same &= math.isclose(now, before, rel_tol=SAME, abs_tol=SAME)
        room = ROUNDING * (trial.environment.high - trial.environment.low)
        low, high = np.nanmin(values), np.nanmax(values)
        if not (low - room <= now <= high + room):
            said = f"{metric} is {now:.4g}, and was {before:.4g}, of {low:.4g} to {high:.4g}"
            return said, False
    return "", same


def _exact(exact: Exact, ended: Mapping[str, Any]) -> Replay:
    """Replay the first seed of an equality, whose errors must be tolerated today too."""
    with jax.enable_x64(True):
        errors = exact.errors(keys_of(ended["seed_root"], "", 1)[0])
    worst = max(errors, key=lambda name: float(errors[name]))
    error = float(errors[worst])
    if not error <= exact.tolerance:
        said = f"The error '{worst}' of the first seed is {error:.3g}"
        return Replay(False, False, f"{said}, above {exact.tolerance:g}.")
    return Replay(True, True, f"No error of the first seed exceeds {exact.tolerance:g}.")
