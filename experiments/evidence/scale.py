"""The scale of an environment: from random play to the best that this project knows there.

`experiments/claims/best.jsonl` has a line for each environment and budget at which a higher return
was reached than with any smaller budget, by a side of a claim or a cell of a suite. It is written
from their records (`table`), and read wherever a side, a margin or a baseline needs a scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.evidence.clauses import places
from experiments.evidence.declare import Claim, Clause
from jaxrl.core.errors import UserError

Record = Mapping[str, Any]
RANDOM_EPISODES = 256
MORE = 1.1  # times a budget that still counts as that budget
WIDEST = 0.1  # part of the scale that a margin may have without a reason
WEAK = 2 / 3  # part of the scale below which a baseline is weak
FEWEST = 5  # seeds of a best result
HIGHER = 0.02  # part of the scale by which a row exceeds that of the next smaller budget


class Scale(NamedTuple):
    """Returns in an environment: of random play, and the best known after some environment steps.

    who: the algorithm or side that reached the best, and where. untrained: the mean return of its
    policy before learning, None if unknown.
    """

    random: float
    best: float
    who: str
    env_steps: int
    untrained: float | None = None

    def position(self, value: float) -> float:
        """Return where a return lies, 0 at random play and 1 at the best known."""
        return (value - self.random) / ((self.best - self.random) or 1.0)


def table(
    claims: Iterable[Record],
    suites: Mapping[str, Sequence[Record]],
    baselines: Iterable[Record],
    known: Iterable[Record],
) -> list[dict[str, Any]]:
    """Return the rows of the table, by environment and budget.

    claims: records of claims, in today's names. suites: name -> results of its cells. baselines:
        rows of the bank (`bank.results`). known: the table so far, whose returns of random play are
        kept; those of new environments are measured.
    """
    found: dict[str, list[Record]] = {}
    for row in (*_of_claims(claims), *_of_suites(suites), *baselines):
        if row["seeds"] < FEWEST:
            continue
        found.setdefault(_key(row), []).append(row)
    random = {_key(row): row["random"] for row in known}
    rows = []
    for key in sorted(found):
        best = -np.inf
        for row in sorted(found[key], key=lambda r: (r["env_steps"], -r["best"])):
            if key not in random:
                random[key] = _random_return(row["env"], row["params"])
            if row["best"] - best > HIGHER * abs(best - random[key]) or not np.isfinite(best):
                best = row["best"]
                rows.append({**row, "random": random[key]})
    return rows


def _key(row: Record) -> str:
    return json.dumps([row["env"], row["params"]], sort_keys=True)


def _of_claims(records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        if record.get("event") != "ended" or record["kind"] == "exact" or not record["values"]:
            continue
        declared = record["declared"]
        if declared["measure"] is not None or record["seeds"] < FEWEST:
            continue
        arenas = (record["budget"] == "large" and declared["large"]) or declared["environments"]
        for arena in arenas:
            for side, values in record["values"].get(arena["name"] or arena["env"], {}).items():
                if "final" not in values or None in values["final"]:
                    continue
                yield {
                    "env": arena["env"],
                    "params": arena["params"],
                    "env_steps": arena["env_steps"],
                    "best": round(float(np.mean(values["final"])), 4),
                    "untrained": round(float(np.mean(values["untrained"])), 4),
                    "who": f"{side} in the claim {record['id']}",
                    "seeds": record["seeds"],
                }


def _of_suites(suites: Mapping[str, Sequence[Record]]) -> Iterator[dict[str, Any]]:
    for name, cells in suites.items():
        for cell in cells:
            config = cell["config"]
            # Wrappers make another environment, and steps of learning from data are gradient steps.
            other = (
                config.get("evaluate_env")
                or config.get("wrappers")
                or "data" in config.get("agent", {})
            )
            if other or len(cell["returns"]) < FEWEST:
                continue
            returns = np.asarray(cell["returns"], np.float64).mean(0)
            for steps, value in zip(cell["steps"], returns, strict=True):
                yield {
                    "env": config["env"],
                    "params": config["env_params"],
                    "env_steps": steps,
                    "best": round(float(value), 4),
                    "untrained": None,
                    "who": f"{cell['algorithm']} in the suite {name}",
                    "seeds": len(cell["returns"]),
                }


def _random_return(env: str, params: Mapping[str, Any]) -> float:
    """Return the mean return of random play."""
    from jaxrl import envs
    from jaxrl.core import random
    from jaxrl.envs.policies import random_policy
    from jaxrl.evaluation.evaluate import evaluate

    made = envs.make(env, **params)
    played = evaluate(made, random_policy(made), random.key(0), RANDOM_EPISODES)
    return round(float(played.returns.mean()), 4)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the table in a file; none if there is no file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else ()
    return [json.loads(line) for line in lines]


def write(path: Path, rows: Iterable[Record]) -> None:
    """Write the rows of the table to a file, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def scale_of(rows: Iterable[Record], arena: Record) -> Scale | None:
    """Return the scale of an arena, or None where no return is known with as small a budget.

    arena: as a record has it, with `env`, `params` and `env_steps`.
    """
    here = [r for r in rows if (r["env"], r["params"]) == (arena["env"], dict(arena["params"]))]
    here = [r for r in here if r["env_steps"] <= MORE * arena["env_steps"]]
    if not here:
        return None
    best = max(here, key=lambda r: r["best"])
    untrained = best["untrained"]
    return Scale(best["random"], best["best"], best["who"], best["env_steps"], untrained)


# ------------------------------------------------------------------------------- what it shows


def warnings(
    rows: Iterable[Record],
    arenas: Iterable[Record],
    clauses: Iterable[Any],
    values: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
) -> list[str]:
    """Return a sentence for each side that is below random play, and for each weak baseline.

    A baseline, what a side is compared with, is weak below two thirds of the scale.

    arenas: of one attempt. clauses: each with `kind`, `one`, `other`, `of_mechanism`. values:
    [environment][side][metric][seed], of which `final` is compared.
    """
    rows, clauses, said = list(rows), list(clauses), []
    baselines = {c.other for c in clauses if not c.of_mechanism}
    for arena in arenas:
        scale = scale_of(rows, arena)
        label = arena["name"] or arena["env"]
        if scale is None or scale.best <= scale.random:
            continue
        for side, metrics in values.get(label, {}).items():
            final = [x for x in metrics.get("final", ()) if x is not None]
            if not final:
                continue
            mean = float(np.mean(final))
            if mean < scale.random:
                said.append(
                    f"{side} ends at {mean:.3g} in {label}, below random play ({scale.random:.3g})."
                )
            elif side in baselines and scale.position(mean) < WEAK:
                said.append(
                    f"The baseline {side} ends at {mean:.3g} in {label}, below two thirds of the "
                    f"best known there: {scale.best:.4g} ({scale.who}), where random play has "
                    f"{scale.random:.3g}."
                )
    return said


def check_margins(claim: Claim, rows: Sequence[Record]) -> None:
    """Raise `UserError` for a margin of more than a tenth of its scale that gives no reason."""
    for clause in claim.clauses:
        if clause.kind == "better" or clause.margin_reason:
            continue
        for label, arenas in places(clause, claim.environments):
            widest = WIDEST * span(claim, clause, arenas, rows, scaled=not label)
            if clause.margin > widest * (1 + 1e-9):
                where = label or "the mean over environments"
                raise UserError(
                    f"The margin of '{clause}' is {clause.margin:g} in {where}, more than a tenth "
                    f"of the range from random play to the best known ({widest:.3g}); narrow it, "
                    "or give a margin_reason."
                )


def span(claim: Claim, clause: Clause, arenas, rows: Sequence[Record], scaled: bool) -> float:
    """Return the range that a margin is measured by, in its units.

    From random play to the best known, if the clause is about returns; otherwise from the metric's
    lowest to its highest value in the arena.
    """
    ranges = []
    for arena in arenas:
        of_returns = claim.measure is None and (clause.metric or claim.metric.name) in RETURNS
        facts = {"env": arena.env, "params": arena.params, "env_steps": arena.env_steps}
        found = scale_of(rows, facts) if of_returns else None
        whole = arena.high - arena.low
        wide = found.best - found.random if found and found.best > found.random else whole
        ranges.append(wide / whole if scaled else wide)
    return float(np.mean(ranges))


RETURNS = ("score", "final")  # the metrics of the default measuring function that are returns
