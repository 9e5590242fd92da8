"""Made-up claims and records with every verdict and every mark, for the tests of pages."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from experiments.evidence import declare, digests

PAPER = declare.Paper(
    "On Made-up Claims", "Doe and Roe", 2026, "2601.00001", "It is better <everywhere>."
)
ARENAS = (
    declare.Arena("catch", 50_000, -1.0, 1.0),
    declare.Arena("key_corridor", 1_200_000, 0.0, 1.0, name="corridor of three keys"),
)
BEST = [  # of the table of best results; in the corridor, only with more steps
    {"env": "catch", "params": {}, "env_steps": 50_000, "best": 0.7, "untrained": 0.1,
     "who": "IQN in the claim held", "seeds": 10, "random": 0.2},
    {"env": "key_corridor", "params": {}, "env_steps": 9_000_000, "best": 0.9, "untrained": None,
     "who": "PPO in the suite keys", "seeds": 5, "random": 0.0},
]  # fmt: skip
LONG = (
    "A claim of one hundred and forty characters is what a paper of many words needs, so that it "
    "must be cut before it is listed with others"
)


def claim():
    """Return a claim about two environments with a mechanism that can be switched off."""
    grid = {"learning_rate": (1e-4, 3e-4, 1e-3)}
    return declare.Claim(
        paper=PAPER,
        claim=LONG,
        left_out="Atari.",
        parts=("jaxrl/losses/", "jaxrl/core/errors.py"),
        metric=declare.Metric("score", 0.0, 1.0),
        environments=ARENAS,
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
    """Return a claim of equality."""
    return declare.Exact(
        paper=dataclasses.replace(PAPER, title="On Equalities"),
        claim="Two ways to write one gradient are one.",
        left_out="",
        parts=("jaxrl/losses/",),
        errors=lambda key: {},
        planted={"a sign": lambda key: {}},
    )


def clause(text, kind, environment, margin, value, half, verdict, **more):
    """Return a clause's result with an interval of `half` to both sides."""
    return {
        "text": text, "kind": kind, "metric": "", "environment": environment,
        "margin": margin, "value": value,
        "low": value - half, "high": value + half, "verdict": verdict, "seeds_needed": None,
        "hours_needed": None, "estimator": "mean", "of_mechanism": False,
    } | more  # fmt: skip


def look(name, ok, said):
    return {"name": name, "ok": ok, "said": said}


def values(seed, seeds=10):
    """Return scores of every side in both environments, by seed."""
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
        for w in ARENAS
    }


def begin(id, declared, attempt=1, changed=(), design=1, **more):
    """Return the record with which an attempt begins."""
    return {
        "format": 2, "rules": 2, "event": "begun", "id": id, "family": "value", "kind": "claim",
        "attempt": attempt, "digest": f"{design:012x}", "code": "c0de",
        "declared": digests.as_json(declared) | {"seeds": 10 * attempt},
        "changed": list(changed), "level": 0.975, "seeds": 10, "seed_root": 7, "jax": "0.12.0",
        "jaxrl": "0.1.0", "generator": "pcg", "cores": 2, "device": "cpu x 1", "seconds": 0.0,
        "commit": "0123456789ab", "date": f"2026-12-0{attempt}T10:00:00+00:00", "budget": "full",
    } | more  # fmt: skip


def end(id, declared, verdict, why, clauses, looks=(), attempt=1, changed=(), design=1, **more):
    """Return the record with which an attempt ends."""
    tried = [1e-4, 3e-4, 1e-3, 3e-3]
    rate = lambda x: {"learning_rate": x}
    return begin(id, declared, attempt, changed, design) | {
        "event": "ended", "verdict": verdict, "why": why, "clauses": clauses, "looks": list(looks),
        "values": values(attempt), "pilot": values(90, 3), "seconds": 312.4,
        "tuned": {w.label: {"IQN": rate(best), "DQN": rate(3e-4)}
                  for w, best in zip(ARENAS, (1e-3, 3e-3), strict=True)},
        "grids": {"IQN": rate(tried), "DQN": rate(tried[:3])},
    } | more  # fmt: skip


def clauses(a=0.3, b=0.25, c=0.28, off=0.2, half=0.05, names=("holds",) * 4):
    """Return results of the clauses of `claim`."""
    first, second, third = (str(c) for c in claim().clauses)
    return [
        clause(first, "better", "catch", 0.05, a, half, names[0]),
        clause(first, "better", "corridor of three keys", 0.05, b, half, names[1]),
        clause(second, "not worse", "", 0.1, c, half, names[2], estimator="interquartile mean"),
        clause(third, "better", "", 0.0, off, half, names[3], of_mechanism=True),
    ]


def with_final(values, means):
    """Return scores in catch, and returns at the end with these means, the same on all seeds."""
    catch = {
        side: metrics | {"final": [means[side]] * len(metrics["score"])}
        for side, metrics in values["catch"].items()
    }
    return values | {"catch": catch}


LONG_NAME = "the method with all of its parts in_one_long_word_that_no_line_holds"


def rename_side(value):
    """Give a side a long name."""
    return json.loads(json.dumps(value).replace('"IQN', f'"{LONG_NAME}'))


def event(name, id, attempt, day, **more):
    """Return the record of an event after an attempt."""
    return {
        "format": 2, "event": name, "id": id, "family": "value", "attempt": attempt,
        "commit": "fedcba9876543210", "code": "c0de", "date": f"2026-12-{day:02}T10:00:00+00:00",
        "jax": "0.12.0", "jaxrl": "0.2.0", "generator": "pcg", "cores": 2, "device": "cpu x 1",
    } | more  # fmt: skip


def rename(id, old, new):
    """Return the record of a renaming."""
    said = {"from": f"{1:012x}", "to": "f" * 12, "names": {old: new}}
    return event("renamed", id, 2, 8, **said, why="The first seed has the recorded values.")


def judge(ended, verdict, day, **more):
    """Return the record of a later judgement of an attempt."""
    names = ("rules", "level", "why", "clauses")
    said = {name: ended[name] for name in names} | {"verdict": verdict} | more
    return event("judged", ended["id"], ended["attempt"], day, **said)


def old(id):
    """Return a record from before the harness."""
    figure = {"name": "it", "value": 0.5, "low": 0.4, "high": 0.6, "per_seed": [0.5]}
    return {
        "id": id, "family": "value", "verdict": "holds", "claim": "C", "metric": "score",
        "measured": figure, "baseline": figure, "difference": None, "ablation": None,
        "margin": 0.1, "notes": "N", "seeds": 5, "date": "2026-11-21T10:00:00+00:00",
        "commit": "abcdef0123-dirty", "seconds": 100.0, "budget": "full",
    }  # fmt: skip


# fmt: off
def everything():
    """Return claims (id, family, declaration), records, and results that are stale."""
    c, e, yes, no, undecided = claim(), exact(), "holds", "does not hold", "inconclusive"
    held, doubt = "Every clause holds.", (undecided,) * 4
    fine = look("ceiling", True, "No side is within 5 % of the top.")
    edge = look("edge", False, "learning_rate of the method is best at 0.003, the end of its grid.")
    far = clauses(-3.0, 0.02, 5.0, 0.0, 0.03, (no, undecided, yes, undecided))
    near = clauses(0.06, 0.04, 0.05, 0.01, 0.3, doubt)
    worse = clauses(c=-0.06, off=0.02, half=0.03, names=(yes, yes, yes, undecided))
    worse[3] |= {"share": 0.1}
    two = {"DQN": {"score": [0.0, 1.0, 1.0, None, 0.0]}, "one quantile": {"score": [0.5] * 12}}
    errors = {"error": [3e-12, 1e-11, 0.0, 2e-12], "another error": [1e-15] * 4}
    margin = "clauses, IQN better than DQN, margin was 0.2 and is 0.05."
    rate = "sides, IQN, grid, learning_rate was [0.01] and is [0.001]."
    spent = {"values": {}, "tuned": {}, "grids": {}}
    room = [look("ceiling", False, "All sides are within 5 % of the top."),
            look("floor", False, "one quantile is no better than untrained."),
            look("possible", False, "0.98 + 0.05 exceeds 1.")]
    pilot = "A pilot spends no reported seed."
    below = with_final(values(3), {"IQN": 0.7, "DQN": 0.4, "one quantile": 0.1})
    as_judged = end("judged", c, undecided, "It may not be the mechanism.", worse)
    records = [
        old("waiting"),
        end("held", c, yes, held, clauses(), [fine]),
        end("held", c, yes, held, clauses(half=0.04), [fine], 2),
        end("held", c, no, "Tiny.", clauses(), attempt=9, budget="tiny"),
        rename("held", "score", "points"),
        event("replayed", "held", 2, 9, ok=True, equal=True,
              said="The first seed has the recorded values on all of 6 sides."),
        end("revised", c, no, "It is worse in catch.", clauses(-0.1, names=(no, yes, yes, yes))),
        end("revised", c, yes, held, clauses(half=0.19), [edge], 2,
              ["The learning rate of the method was 0.001 and is tuned now."], 2),
        begin("revised", c, 3, ["seeds was 10 and is 30."], 2, seeds=30),
        end("redesigned", c, "pilot", pilot, [], budget="pilot", **spent),
        end("redesigned", c, no, "It is worse in catch.", clauses(-0.1, names=(no, yes, yes, yes)),
              [], 2, [margin], 2),
        end("redesigned", c, yes, held, clauses(), [fine], 3, [rate], 3, values=below),
        end("piloted", c, "pilot", pilot, [], budget="pilot", **spent),
        as_judged | {"rules": 1, "verdict": yes, "why": held},
        judge(as_judged, undecided, 8),
        event("mutated", "judged", 1, 9, mutations=[
            {"name": "the sign is flipped", "seen": False, "said": "The verdict does not notice."}
        ]),
        rename_side(end("far-off", c, no, "The method is far worse in catch.", far, [edge, fine])),
        end("open", c, undecided, "10 seeds do not decide it.",
              [x | {"seeds_needed": 230, "hours_needed": 3.5} for x in near],
              [look("power", False, "10 seeds find 0.4; the margin is 0.05.")]),
        end("two-modes", c, undecided, "Seeds end at 0 or at 1.", clauses(names=doubt),
              [look("modes", False, "Seeds of DQN end near 0 or near 1.")],
              values=values(0) | {"catch": two}),
        end("no-room", c, "untestable", "DQN is at 0.97 of 1.", [], room, **spent),
        end("no-room", c, "untestable", "DQN is at 0.98 of 1.", [], room, 2, [margin], 2, **spent),
        end("few", c, undecided, "Fewer than 5 seeds decide nothing.",
              [x | {"low": None, "high": None} for x in clauses(names=doubt)], budget="large"),
        end("over", c, yes, held, clauses(),
              [look("budget", False, "It took 9 minutes, and 5 are declared.")]),
        end("equal-by-algebra", e, yes, "Every error is below 1e-9.", [], kind="exact",
              family="policy_gradient", values={"": {"": errors}}, tuned={}, grids={},
              planted={"a sign": [0.5, 0.7, 0.2, 1.4]}),
    ]
    kinds = {r["id"]: (r["family"], e if r.get("kind") == "exact" else c)
             for r in records if "declared" in r or "event" not in r}
    claims = [(id, family, declared) for id, (family, declared) in kinds.items()]
    return claims, records, {"over": "Replayed seeds left the recorded range."}
