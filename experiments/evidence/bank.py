"""Baselines that claims share: a side in an arena, tuned once and run once for a block of seeds.

`experiments/claims/baselines.jsonl` has a line for each entry that was tuned and for each block
that was run. Attempt k at any claim reads block k, so it is fresh for that claim, and sides are
paired by key. What is tuned for all cannot be tuned to be weak for one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.evidence import measure, records, tuning
from experiments.evidence.declare import Claim, Exact, Trial
from experiments.evidence.digests import as_json, short_hash
from experiments.evidence.sides import keys_of
from jaxrl.core.errors import UserError

TUNING_SEEDS = 8
PROSE = ("deviates", "banked")


@dataclasses.dataclass(frozen=True)
class Bank:
    """The file of baselines. facts: what new lines say of their code and machine."""

    path: Path
    facts: Callable[[], Mapping[str, Any]] = dict

    def tune(self, trial: Trial, metric: str) -> dict[str, Any]:
        """Return what `tuning.tune` found for an entry, tuned now if it is new."""
        entry = entry_of(trial, metric)
        found = [
            r["found"]
            for r in records.read(self.path)
            if (r["entry"], r["event"]) == (entry, "tuned")
        ]
        if found:
            return found[-1]
        root = int(short_hash(f"tuning {entry}")[:8], 16) >> 1
        keys = keys_of(root, trial.environment.label, TUNING_SEEDS)
        made = tuning.tune(measure.curve, trial, keys, metric)
        self._append(trial, entry, "tuned", found=made)
        return self.tune(trial, metric)

    def report(
        self, trial: Trial, metric: str, best: Mapping[str, Any], root: int, seeds: int
    ) -> dict[str, list[float]]:
        """Return the values of the first seeds of a block, and run those that are missing.

        root: `block_root` of the block.
        """
        entry = entry_of(trial, metric)
        values: dict[str, list[float]] = {}
        for r in records.read(self.path):
            if (r["entry"], r["event"], r.get("root")) == (entry, "ran", root):
                values = {name: values.get(name, []) + row for name, row in r["values"].items()}
        known = len(next(iter(values.values()), []))
        if known < seeds:
            keys = keys_of(root, trial.environment.label, seeds)[known:]
            more = measure.run(measure.curve, trial, keys, best)
            self._append(trial, entry, "ran", root=root, best=dict(best), values=more)
            return self.report(trial, metric, best, root, seeds)
        return {name: row[:seeds] for name, row in values.items()}

    def _append(self, trial: Trial, entry: str, event: str, **found: Any) -> None:
        names = {"entry": entry, "event": event, "name": trial.name, "side": _side(trial),
                 "arena": as_json(trial.environment)}  # fmt: skip
        records.append(self.path, {**names, **self.facts(), **found})


def _side(trial: Trial) -> dict[str, Any]:
    return {name: x for name, x in as_json(trial.side).items() if name not in PROSE}


def entry_of(trial: Trial, metric: str) -> str:
    """Return the id of an entry: what runs, where, on which budget, and what tuning maximizes."""
    arena = as_json(trial.environment)
    arena = {name: x for name, x in arena.items() if name not in ("low", "high")}
    return short_hash(json.dumps([_side(trial), arena, metric], sort_keys=True))


def block_root(attempt: int) -> int:
    """Return the number from which the seeds of block 1, 2, ... are split, for all claims."""
    return int(short_hash(f"block {attempt} of the baselines")[:8], 16) >> 1


def is_shared(declaration: Claim | Exact) -> bool:
    """Return whether a claim has sides from the bank, so that its seeds are those of a block."""
    return isinstance(declaration, Claim) and any(s.banked for s in declaration.sides.values())


def check(claim: Claim) -> None:
    """Raise `UserError` for sides from the bank in a claim that measures something of its own, or
    that tunes on more seeds than the bank."""
    if not is_shared(claim):
        return
    if claim.tuning_seeds > TUNING_SEEDS:
        raise UserError(
            f"Sides from the bank are tuned on {TUNING_SEEDS} seeds; tuning_seeds is "
            f"{claim.tuning_seeds}."
        )
    if claim.measure is not None or not claim.metric.more_is_better:
        raise UserError(
            "Sides from the bank are measured by the learning curve, and more is better."
        )


def results(path: Path) -> list[dict[str, Any]]:
    """Return the rows of all entries for the table of best results (`scale.table`)."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for r in records.read(path):
        if r["event"] == "ran":
            key = r["entry"], r["root"]
            kept = found.setdefault(key, {"name": r["name"], "arena": r["arena"], "final": [],
                                          "untrained": []})  # fmt: skip
            kept["final"] += r["values"]["final"]
            kept["untrained"] += r["values"]["untrained"]
    return [
        {
            "env": r["arena"]["env"],
            "params": r["arena"]["params"],
            "env_steps": r["arena"]["env_steps"],
            "best": round(float(np.mean(r["final"])), 4),
            "untrained": round(float(np.mean(r["untrained"])), 4),
            "who": f"{r['name']}, a baseline that claims share",
            "seeds": len(r["final"]),
        }
        for r in found.values()
    ]
