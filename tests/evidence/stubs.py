"""Algorithms of two lines of NumPy, whose score depends on a key, a side and a rate."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np

from experiments.evidence.attempt import Readers
from experiments.evidence.declare import Arena, Claim, Exact, Metric, Paper, Side, Trial, better
from jaxrl.kit import group, hyper, static

PAPER = Paper("On stubs", "A. Author", 2020, "", "It is better.")
RATES = (0.01, 0.1, 1.0)
STEPS = 600


@group
class Optimizer:
    rate: float = hyper(0.1, low=0, high=50)


@group
class Config:
    optimizer: Optimizer = Optimizer()
    height: float = static(0.0)  # score at the best rate
    best_rate: float = static(0.1)
    width: int = static(4, low=1)


@dataclasses.dataclass(frozen=True)
class Stub:
    Config: type = Config


STUB = Stub()


def mechanism(value: float) -> float:
    """Return the value; tests break this."""
    return value


def of_key(keys) -> np.ndarray:
    """Return a number from 0 to 1 for each of keys [n]."""
    return np.asarray(jax.random.key_data(keys))[:, 0] / 2**32


def measure(trial: Trial, keys, values):
    settings = {"height": 0.0, "best_rate": 0.1, **trial.side.settings}
    rate = np.asarray(values.get("rate", np.full(len(keys), settings["best_rate"])), np.float64)
    off = np.log10(rate / settings["best_rate"])
    score = mechanism(settings["height"]) + 0.1 * of_key(keys) - off**2
    return {"score": score, "untrained": score - 1, "env_steps": np.full(len(keys), STEPS)}


def trial(side: Side | None = None, tiny: bool = False, **environment) -> Trial:
    where = Arena("stub", STEPS, 0.0, 1.0, **environment)
    return Trial("one", side or Side(STUB), where, STEPS, tiny)


def claim(**changes) -> Claim:
    grid = {"rate": RATES}
    said = {
        "paper": PAPER,
        "claim": "One is better than another.",
        "left_out": "",
        "parts": (),
        "metric": Metric("score", -5.0, 2.0),
        "environments": (Arena("meadow", STEPS, 0.0, 1.0), Arena("wood", STEPS, 0.0, 1.0)),
        "sides": {
            "one": Side(STUB, {"height": 0.5}, grid),
            "other": Side(STUB, {}, grid),
        },
        "clauses": (better("one", "other", 0.2, "meadow"), better("one", "other")),
        "seeds": 6,
        "minutes": 1.0,
        "measure": measure,
    }
    return Claim(**(said | changes))


def exact(**changes) -> Exact:
    said = {
        "paper": PAPER,
        "claim": "Two ways are one.",
        "left_out": "",
        "parts": (),
        "errors": lambda key: {"sum": abs(mechanism(1.0) - 1.0)},
        "planted": {"a sign": lambda key: {"sum": 2.0}},
        "seeds": 5,
    }
    return Exact(**(said | changes))


BEGUN = {
    "id": "stub",
    "digest": "0123456789ab",
    "attempt": 1,
    "budget": "full",
    "seeds": 6,
    "seed_root": 7,
    "level": 0.95,
    "cores": 2,
    "code": "c",
}


# ------------------------------------------------------------------------------- stand-ins


def look(claim, clauses, environments, values, seeds, level):
    said = {"name": "power", "ok": True, "said": f"{seeds} seeds are enough."}
    return [said], ""


@dataclasses.dataclass(frozen=True)
class Result:
    text: str
    value: float


def judge(claim, clauses, environments, values, level, hours):
    """Judge by means alone."""
    results = []
    for clause in clauses:
        where = clause.environments or [environment.label for environment in environments]
        mean = lambda side, where=where: np.mean([values[w][side]["score"] for w in where])
        results.append(Result(str(clause), float(mean(clause.one) - mean(clause.other))))
    holds = all(r.value > c.margin for r, c in zip(results, clauses, strict=True))
    verdict = "holds" if holds else "does not hold"
    return SimpleNamespace(verdict=verdict, why="Means say so.", clauses=tuple(results))


def judge_exact(claim, errors, planted):
    unseen = [name for name, x in planted.items() if min(x) <= claim.effect]
    verdict = "does not hold" if max(map(max, errors.values())) > claim.tolerance else "holds"
    if verdict == "holds" and unseen:
        verdict = "inconclusive"
    return SimpleNamespace(verdict=verdict, why=f"Not seen: {', '.join(unseen)}.", clauses=())


READERS = Readers(look, judge, judge_exact)
