"""The scale of an environment, with what it must see planted.

Planted are a baseline at half of the best known, two sides below random play, and margins in which
a false sentence holds.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from experiments.evidence import scale
from experiments.evidence.declare import Arena, Claim, Metric, Paper, Side, better, equal, not_worse
from jaxrl.core.errors import UserError

ARENA = {"env": "cartpole", "params": {}, "env_steps": 1000, "name": ""}
RANDOM = {"env": "cartpole", "params": {}, "random": 20.0}
ROWS = [
    RANDOM | {"env_steps": 500, "best": 220.0, "who": "DQN", "seeds": 8, "untrained": 10.0},
    RANDOM | {"env_steps": 1000, "best": 420.0, "who": "PPO", "seeds": 8, "untrained": None},
    RANDOM | {"env_steps": 5000, "best": 500.0, "who": "PPO", "seeds": 8, "untrained": None},
]


def make_record(id="ppo", steps=1000, measure=None, **sides):
    """A record with the final returns of sides, which all began at 10."""
    values = {side: {"final": x, "untrained": [10.0] * len(x)} for side, x in sides.items()}
    arena = ARENA | {"env_steps": steps}
    declared = {"measure": measure, "environments": [arena], "large": []}
    return {"event": "ended", "id": id, "kind": "claim", "budget": "full", "declared": declared,
            "seeds": len(next(iter(sides.values()))), "values": {"cartpole": values}}  # fmt: skip


def cell(steps, *returns, **more):
    config = {"env": "cartpole", "env_params": {}} | more
    return {"algorithm": "PQN", "config": config, "steps": steps, "returns": [returns] * 5}


def test_the_table_has_what_no_smaller_budget_reached():
    records = [
        make_record(PPO=[400.0, 440.0] * 3, DQN=[100.0] * 6),
        make_record("late", 5000, PPO=[410.0] * 6),  # no better for five times the steps
        make_record("few", 10, PPO=[500.0] * 2),  # of two seeds
        make_record("own", 10, "a:measure", PPO=[500.0] * 6),  # whatever that measures
    ]
    suites = {"control": [cell([400, 1200, 9000], 50.0, 421.0, 480.0)],
              "elsewhere": [cell([10], 500.0, evaluate_env="acrobot")]}  # fmt: skip
    rows = scale.table(records, suites, [], [RANDOM])
    assert [(r["env_steps"], r["best"]) for r in rows] == [
        (400, 50.0),
        (1000, 420.0),
        (9000, 480.0),
    ]
    assert rows[1]["who"] == "PPO in the claim ppo" and rows[1]["untrained"] == 10.0
    assert rows[2]["who"] == "PQN in the suite control" and rows[2]["random"] == 20.0


def test_random_play_is_measured_once_for_each_environment(tmp_path):
    (row,) = scale.table([make_record(PPO=[400.0] * 5)], {}, [], [])
    assert 15 < row["random"] < 30  # CartPole's 22 steps or so
    scale.write(tmp_path / "best.jsonl", [row])
    assert scale.read(tmp_path / "best.jsonl") == [row]
    assert scale.read(tmp_path / "none.jsonl") == []


def test_a_scale_is_of_as_small_a_budget():
    found = scale.scale_of(ROWS, ARENA)
    assert found and (found.random, found.best, found.who) == (20.0, 420.0, "PPO")
    assert [found.position(x) for x in (20.0, 420.0, 220.0)] == [0.0, 1.0, 0.5]
    more = scale.scale_of(ROWS, ARENA | {"env_steps": 910})  # nearly as many
    assert more and more.best == 420.0
    less = scale.scale_of(ROWS, ARENA | {"env_steps": 600})
    assert less and less.best == 220.0
    assert scale.scale_of(ROWS, ARENA | {"env_steps": 100}) is None
    assert scale.scale_of(ROWS, ARENA | {"params": {"gravity": 1.0}}) is None


def warnings(*clauses, **finals):
    clauses = [SimpleNamespace(kind=c.kind, one=c.one, other=c.other, of_mechanism=c.of_mechanism)
               for c in clauses]  # fmt: skip
    values = {"cartpole": {side: {"final": x} for side, x in finals.items()}}
    return scale.warnings(ROWS, [ARENA], clauses, values)


def test_a_baseline_at_half_of_the_best_known_is_told():
    (said,) = warnings(better("A", "B"), A=[400.0] * 5, B=[220.0] * 5)
    assert said == (
        "The baseline B ends at 220 in cartpole, below two thirds of the best known there: 420 "
        "(PPO), where random play has 20."
    )
    assert warnings(not_worse("A", "B", 1.0), A=[230.0] * 5, B=[220.0] * 5)
    assert not warnings(better("A", "B"), A=[220.0] * 5, B=[300.0] * 5)  # A is no baseline
    switched_off = better("A", "B", of_mechanism=True)
    assert not warnings(better("A", "C"), switched_off, A=[400.0] * 5, B=[100.0], C=[300.0])


def test_sides_below_random_play_are_told():
    one, two = warnings(better("A", "B"), A=[15.0] * 5, B=[5.0, None, 7.0])
    assert one == "A ends at 15 in cartpole, below random play (20)."
    assert two.startswith("B ends at 6 in cartpole")
    assert not warnings(better("A", "B"), A=[], B=[None])


def claim(*clauses, measure=None, metric="score"):
    return Claim(
        paper=Paper("T", "A", 2020, "", ""), claim="", left_out="", parts=(),
        metric=Metric(metric, 0, 500), sides={"A": Side(None), "B": Side(None)}, clauses=clauses,
        environments=(Arena("cartpole", 1000, 0, 500), Arena("other", 1000, 0, 100)),
        seeds=5, minutes=1, measure=measure,
    )  # fmt: skip


def test_a_margin_is_a_tenth_of_the_scale_at_most():
    scale.check_margins(claim(not_worse("A", "B", 40.0, "cartpole")), ROWS)
    with pytest.raises(UserError, match=r"is 41 in cartpole, more than a tenth .* \(40\); narrow"):
        scale.check_margins(claim(not_worse("A", "B", 41.0, "cartpole")), ROWS)
    reason = {"margin_reason": "The paper's own."}
    scale.check_margins(claim(equal("A", "B", 41.0, "cartpole", **reason)), ROWS)
    scale.check_margins(claim(better("A", "B", 400.0, "cartpole")), ROWS)
    # Where no return is known, and for other metrics, of the metric's range.
    for bad in (
        claim(equal("A", "B", 11.0, "other")),
        claim(equal("A", "B", 51.0, "cartpole"), measure=lambda *x: {}, metric="closeness"),
        claim(equal("A", "B", 0.091)),  # pooled: (0.8 + 1) / 2
    ):
        with pytest.raises(UserError, match="more than a tenth"):
            scale.check_margins(bad, ROWS)
    scale.check_margins(claim(equal("A", "B", 0.089)), ROWS)
