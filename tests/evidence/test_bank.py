"""Baselines that claims share: tuned once, run once for a block, and paired by key."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.evidence import attempt, bank, measure, records
from experiments.evidence.bank import Bank, block_root, entry_of
from experiments.evidence.declare import Metric, Side
from jaxrl.core.errors import UserError
from tests.evidence import stubs

SHARED = Side(stubs.STUB, {}, {"rate": stubs.RATES}, banked=True)


@pytest.fixture
def calls(monkeypatch):
    """The calls of the learning curve, which is the stub's measuring function here."""
    calls = []

    def curve(trial, keys, values):
        calls.append((trial.name, trial.environment.label, len(keys)))
        found = stubs.measure(trial, keys, values)
        return found | {"final": found["score"]}

    monkeypatch.setattr(measure, "curve", curve)
    monkeypatch.setattr(measure, "check", lambda trials: None)
    return calls


def claim(**more):
    sides = {"one": Side(stubs.STUB, {"height": 0.5}, {"rate": stubs.RATES}), "other": SHARED}
    return stubs.claim(measure=None, sides=sides, **more)


def run(tmp_path, number=1, **more):
    begun = stubs.BEGUN | {"attempt": number, "seed_root": block_root(number)} | more
    store = Bank(tmp_path / "baselines.jsonl", lambda: {"commit": "c"})
    folder = tmp_path / f"{more.get('id', 'stub')}"
    return attempt.run(claim(), begun, 3, folder, stubs.READERS, bank=store)


def test_a_baseline_is_tuned_and_run_once_for_all_claims(tmp_path, calls):
    first = run(tmp_path)
    assert calls.count(("other", "meadow", 6)) == 1
    calls.clear()
    second = run(tmp_path, id="another", digest="f" * 12)
    assert {name for name, *_ in calls} == {"one"}
    same = lambda record: record["values"]["wood"]["other"]
    assert same(first) == same(second) and first["tuned"] == second["tuned"]
    # The sides share their keys: what is drawn for each is the same but for the mechanism.
    one, other = (np.array(second["values"]["wood"][s]["score"]) for s in ("one", "other"))
    np.testing.assert_allclose(one - other, 0.5, atol=1e-6)


def test_another_attempt_reads_another_block_and_more_seeds_extend_one(tmp_path, calls):
    first, second = run(tmp_path), run(tmp_path, 2)
    values = lambda record: record["values"]["meadow"]["other"]["score"]
    assert not set(values(first)) & set(values(second))
    calls.clear()
    more = run(tmp_path, id="more", seeds=9)
    assert ("other", "meadow", 3) in calls  # those that were missing alone
    assert values(more)[:6] == values(first) and len(set(values(more))) == 9
    fewer = run(tmp_path, id="fewer", seeds=5)
    assert values(fewer) == values(first)[:5]
    assert len(first["pilot"]["meadow"]["other"]["score"]) == 3  # as many as of the other side
    rows = bank.results(tmp_path / "baselines.jsonl")
    assert sorted(row["seeds"] for row in rows) == [6, 6, 9, 9]
    assert rows[0]["who"] == "other, a baseline that claims share"


def test_an_entry_is_of_what_runs_and_where():
    trial = stubs.trial(SHARED)
    entry = entry_of(trial, "score")
    prose = dataclasses.replace(SHARED, deviates="Little.", banked=False)
    assert entry_of(dataclasses.replace(trial, side=prose), "score") == entry
    for other in (
        stubs.trial(dataclasses.replace(SHARED, settings={"height": 0.1})),
        stubs.trial(dataclasses.replace(SHARED, grid={"rate": (0.1,)})),
        stubs.trial(SHARED, points=3),
    ):
        assert entry_of(other, "score") != entry
    assert entry_of(trial, "final") != entry


def test_what_the_bank_cannot_hold_is_refused():
    bank.check(claim())
    for wrong in (
        dataclasses.replace(claim(), measure=stubs.measure),
        claim(metric=Metric("score", -5.0, 2.0, more_is_better=False)),
    ):
        with pytest.raises(UserError, match="Sides from the bank are measured by the learning"):
            bank.check(wrong)
    with pytest.raises(UserError, match="are tuned on 8 seeds; tuning_seeds is 9"):
        bank.check(claim(tuning_seeds=9))
    bank.check(stubs.claim(tuning_seeds=9))


def test_seeds_of_a_claim_with_such_sides_are_those_of_a_block():
    known = []
    for attempted in (1, 2):
        begun, _ = records.begin(
            known, "a", "family", claim(), "d", "full", lambda record: {}, bank.block_root
        )
        assert begun["seed_root"] == block_root(attempted)
        known += [begun, begun | {"event": "ended"}]
