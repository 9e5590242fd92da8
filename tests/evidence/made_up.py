"""Made-up checks and records with every verdict and every mark, for the tests of the pages."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from experiments.evidence import declare, digests, history

PAPER = declare.Paper(
    "On Made-up Claims", "Doe and Roe", 2026, "2601.00001", "It is better <everywhere>."
)
WORLDS = (
    declare.World("catch", 50_000, -1.0, 1.0),
    declare.World("key_corridor", 1_200_000, 0.0, 1.0, name="corridor of three keys"),
)
LONG = (
    "A claim of one hundred and forty characters is what a paper of many words needs, so that it "
    "must be cut before it is listed with others"
)


def claim():
    """A claim about two environments with a mechanism that can be switched off."""
    grid = {"learning_rate": (1e-4, 3e-4, 1e-3)}
    return declare.Claim(
        paper=PAPER,
        claim=LONG,
        left_out="Atari.",
        parts=("jaxrl/losses/", "jaxrl/core/errors.py"),
        metric=declare.Metric("score", 0.0, 1.0),
        environments=WORLDS,
        sides={
            "IQN": declare.Side(object, grid=grid, deviates="No LSTM."),
            "DQN": declare.Side(object, grid=grid),
            "one quantile": declare.Side(object),
        },
        clauses=(
            declare.better("IQN", "DQN", 0.05, "catch", "corridor of three keys"),
            declare.not_worse("IQN", "DQN", 0.1),
            declare.better("IQN", "one quantile", 0.0, of_mechanism=True),
        ),
        seeds=10,
        minutes=5.0,
        notes="A | in a note.",
        diagnosis="Too few | episodes.",
        mutations=(declare.Mutation("the sign is flipped", "jaxrl.losses:gae", lambda f: f),),
    )


def exact():
    """A claim of equality."""
    return declare.Exact(
        paper=dataclasses.replace(PAPER, title="On Equalities"),
        claim="Two ways to write one gradient are one.",
        left_out="",
        parts=("jaxrl/losses/",),
        errors=lambda key: {},
        planted={"a sign": lambda key: {}},
    )


def clause(text, kind, environment, margin, value, half, verdict, **more):
    """A clause's result, its interval `half` to both sides."""
    return {
        "text": text, "kind": kind, "metric": "", "environment": environment,
        "margin": margin, "value": value,
        "low": value - half, "high": value + half, "verdict": verdict, "seeds_needed": None,
        "hours_needed": None, "estimator": "mean", "of_mechanism": False,
    } | more  # fmt: skip


def look(name, ok, said):
    return {"name": name, "ok": ok, "said": said}


def values(seed, seeds=10):
    """Scores of every side in both environments, by seed."""
    rng = np.random.default_rng(seed)
    means = {"IQN": 0.7, "DQN": 0.4, "one quantile": 0.5}
    return {
        w.label: {
            side: {
                "score": rng.normal(mean, 0.08, seeds).round(4).tolist(),
                "untrained": rng.normal(0.1, 0.02, seeds).round(4).tolist(),
            }
            for side, mean in means.items()
        }
        for w in WORLDS
    }


def begun(id, check, attempt=1, changed=(), **more):
    """The record with which an attempt begins."""
    return {
        "format": 2, "event": "begun", "id": id, "track": "value", "kind": "claim",
        "attempt": attempt, "digest": f"{attempt:012x}",
        "declared": digests.as_json(check) | {"seeds": 10 * attempt},
        "changed": list(changed), "level": 0.975, "seeds": 10, "seed_root": 7, "jax": "0.12.0",
        "jaxrl": "0.1.0", "generator": "pcg", "cores": 2, "device": "cpu x 1", "seconds": 0.0,
        "commit": "0123456789ab", "date": f"2026-12-0{attempt}T10:00:00+00:00", "budget": "full",
    } | more  # fmt: skip


def ended(id, check, verdict, why, clauses, looks=(), attempt=1, changed=(), **more):
    """The record with which it ends."""
    tried = [1e-4, 3e-4, 1e-3, 3e-3]
    rate = lambda x: {"learning_rate": x}
    return begun(id, check, attempt, changed) | {
        "event": "ended", "verdict": verdict, "why": why, "clauses": clauses, "looks": list(looks),
        "values": values(attempt), "programs": {}, "seconds": 312.4,
        "tuned": {w.label: {"IQN": rate(best), "DQN": rate(3e-4)}
                  for w, best in zip(WORLDS, (1e-3, 3e-3), strict=True)},
        "grids": {"IQN": rate(tried), "DQN": rate(tried[:3])},
    } | more  # fmt: skip


def clauses(a=0.3, b=0.25, c=0.28, off=0.2, half=0.05, names=("holds",) * 4):
    """Results of the clauses of `claim`."""
    first, second, third = (str(c) for c in claim().clauses)
    return [
        clause(first, "better", "catch", 0.05, a, half, names[0]),
        clause(first, "better", "corridor of three keys", 0.05, b, half, names[1]),
        clause(second, "not worse", "", 0.1, c, half, names[2], estimator="interquartile mean"),
        clause(third, "better", "", 0.0, off, half, names[3], of_mechanism=True),
    ]


LONG_NAME = "the method with all of its parts in_one_long_word_that_no_line_holds"


def renamed(value):
    """The same with a side of a long name."""
    return json.loads(json.dumps(value).replace('"IQN', f'"{LONG_NAME}'))


def judged(records):
    """The verdict of the latest; replicated if it held before, unrevised."""
    last = records[-1]
    twice = [r["verdict"] for r in records[-2:]] == ["holds"] * 2
    return history.Standing(last["verdict"], last["why"], twice and not last["changed"])


def old(id):
    """A record from before the harness."""
    figure = {"name": "it", "value": 0.5, "low": 0.4, "high": 0.6, "per_seed": [0.5]}
    return {
        "id": id, "track": "value", "verdict": "holds", "claim": "C", "metric": "score",
        "measured": figure, "baseline": figure, "difference": None, "ablation": None,
        "margin": 0.1, "notes": "N", "seeds": 5, "date": "2026-11-21T10:00:00+00:00",
        "commit": "abcdef0123-dirty", "seconds": 100.0, "budget": "full",
    }  # fmt: skip


# fmt: off
def everything():
    """Checks (id, track, declaration), records, and what is stale."""
    c, e, yes, no, undecided = claim(), exact(), "holds", "does not hold", "inconclusive"
    held, doubt = "Every clause holds.", (undecided,) * 4
    fine = look("ceiling", True, "No side is within 5 % of the top.")
    edge = look("edge", False, "learning_rate of the method is best at 0.003, the end of its grid.")
    far = clauses(-3.0, 0.02, 5.0, 0.0, 0.03, (no, undecided, yes, undecided))
    near = clauses(0.06, 0.04, 0.05, 0.01, 0.3, doubt)
    two = {"DQN": {"score": [0.0, 1.0, 1.0, None, 0.0]}, "one quantile": {"score": [0.5] * 12}}
    errors = {"error": [3e-12, 1e-11, 0.0, 2e-12], "another error": [1e-15] * 4}
    records = [
        old("waiting"),
        ended("held", c, yes, held, clauses(), [fine]),
        ended("held", c, yes, held, clauses(half=0.04), [fine], 2),
        ended("held", c, no, "Tiny.", clauses(), attempt=9, budget="tiny"),
        ended("revised", c, no, "It is worse in catch.", clauses(-0.1, names=(no, yes, yes, yes))),
        ended("revised", c, yes, held, clauses(half=0.19), [edge], 2,
              ["The learning rate of the method was 0.001 and is tuned now."]),
        begun("revised", c, 3, ["seeds were 10 and are 30."], seeds=30),
        renamed(ended("far-off", c, no, "The method is far worse in catch.", far, [edge, fine])),
        ended("open", c, undecided, "10 seeds do not decide it.",
              [x | {"seeds_needed": 230, "hours_needed": 3.5} for x in near],
              [look("power", False, "10 seeds find 0.4; the margin is 0.05.")]),
        ended("two-modes", c, undecided, "Seeds end at 0 or at 1.", clauses(names=doubt),
              [look("modes", False, "Seeds of DQN end near 0 or near 1.")],
              values=values(0) | {"catch": two}),
        ended("no-room", c, "untestable", "DQN is at 0.98 of 1.", [],
              [look("ceiling", False, "All sides are within 5 % of the top."),
               look("floor", False, "one quantile is no better than untrained."),
               look("possible", False, "0.98 + 0.05 exceeds 1.")], values={}),
        ended("few", c, undecided, "Fewer than 5 seeds decide nothing.",
              [x | {"low": None, "high": None} for x in clauses(names=doubt)], budget="large"),
        ended("over", c, yes, held, clauses(),
              [look("budget", False, "It took 9 minutes, and 5 are declared.")]),
        ended("equal-by-algebra", e, yes, "Every error is below 1e-9.", [], kind="exact",
              track="policy-gradient", values={"": {"": errors}}, tuned={}, grids={},
              planted={"a sign": [0.5, 0.7, 0.2, 1.4]}),
    ]
    kinds = {r["id"]: (r["track"], e if r.get("kind") == "exact" else c) for r in records}
    checks = [(id, track, check) for id, (track, check) in kinds.items()]
    return checks, records, {"over": "DQN in catch lowers to another program."}
