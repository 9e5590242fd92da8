"""The turn of every test comes, and affected ones do not wait for it."""

from __future__ import annotations

import itertools
import os
import pathlib
import time

import pytest

from tests import rota

NAMES = {f"name_{i}": f"family_{i % 7}" for i in range(300)}


@pytest.mark.parametrize("one_in", [1, 3, 5, 10])
def test_every_turn_comes_once_in_a_period(one_in):
    for start in (0, 20_781):
        days = range(start, start + one_in)
        turns = [{name for name in NAMES if rota.in_turn(name, one_in, day)} for day in days]
        assert set().union(*turns) == set(NAMES)
        assert sum(map(len, turns)) == len(NAMES)
        assert all(len(turn) > len(NAMES) / one_in / 2 for turn in turns)


@pytest.mark.parametrize("size", [1, 8, 40, 300, 1000])
def test_a_period_ends_and_each_day_is_about_as_long(size):
    days = rota.period(len(NAMES), size)
    chosen = [rota.choose(NAMES, (), day=day, size=size, most=0) for day in range(days)]
    assert set().union(*chosen) == set(NAMES)
    assert days >= len(NAMES) / size
    assert sum(map(len, chosen)) / days <= size


@pytest.mark.parametrize("size", [3, 8, 21, 40])
def test_who_tests_once_a_week_sees_everything_too(size):
    days = rota.period(len(NAMES), size)
    mondays = range(4, 4 + 7 * days, 7)
    chosen = [rota.choose(NAMES, (), day=day, size=size, most=0) for day in mondays]
    assert set().union(*chosen) == set(NAMES)


def test_what_is_affected_is_tested_whole():
    few = {"name_1", "name_5", "name_8", "of no family"}
    chosen = rota.choose(NAMES, few, day=3, size=10, most=3, core=("name_0",))
    assert few - {"of no family"} | {"name_0"} <= chosen
    assert len(chosen) < 40


def test_where_too_much_is_affected_each_family_sends_one():
    days = range(50)
    wide = [rota.choose(NAMES, NAMES, day=day, size=10, most=40, core=("name_0",)) for day in days]
    turns = [rota.choose(NAMES, (), day=day, size=10, most=40, core=("name_0",)) for day in days]
    for chosen, turn in zip(wide, turns, strict=True):
        assert turn <= chosen and len(chosen - turn) <= 7
        assert {NAMES[name] for name in chosen} == set(NAMES.values())
    assert set().union(*wide) == set(NAMES)
    assert wide[0] != wide[1]
    # Only families that are affected do.
    some = {name for name in NAMES if NAMES[name] == "family_2"}
    more = rota.choose(NAMES, some, day=0, size=10, most=3) - turns[0]
    assert {NAMES[name] for name in more} <= {"family_2"}


def plan(**changes):
    fields = {
        "day": 0, "base": "", "changed": (), "files": frozenset(), "algorithms": frozenset(),
        "families": {"ant": "value", "bee": "value"}, "claims": frozenset(), "own": {},
        "unused": frozenset({"x.py:lonely", "x.py:other"}), "functions": frozenset(),
        "tested": {"tests/losses/test_x.py": {
            "test_lonely": ("x.py:lonely",), "test_both": ("x.py:lonely", "x.py:used"),
            "test_nothing": (), "test_contract": ("x.py:lonely", "x.py:used"),
        }},
    }  # fmt: skip
    return rota.Plan(**{**fields, **changes})


DAYS = rota.UNUSED * rota.FILE_TURNS


def days_of(file, *test, **changes):
    return sum(not plan(day=day, **changes).rests(file, *test) for day in range(DAYS))


def test_losses_that_nothing_uses_take_turns():
    file = "tests/losses/test_x.py"
    assert days_of(file, "test_lonely") == 1
    assert days_of(file, "test_contract", "x.py:lonely") == 1
    for test in [("test_both",), ("test_nothing",), ("test_new",), ("test_contract", "x.py:used")]:
        assert days_of(file, *test) == rota.UNUSED
    # A change of theirs does not let them wait.
    assert days_of(file, "test_lonely", files=frozenset([file])) == DAYS


def test_files_that_a_change_cannot_affect_take_turns():
    file = "tests/core/test_train.py"
    assert days_of(file, "test_it") == DAYS / rota.FILE_TURNS
    assert days_of(file, "test_it", files=frozenset([file])) == DAYS
    assert not plan(everything=True).rests(file, "test_it")
    # Tests that read texts and figures always run.
    assert days_of("tests/test_pages.py", "test_it") == DAYS
    assert days_of("tests/commands/test_train.py", "test_it") == DAYS
    assert days_of("tests/runtime/test_configuration.py", "test_it") == DAYS
    assert all((rota.ROOT / file).exists() for file in rota.ALWAYS)


def test_functions_are_compiled_on_the_days_of_their_test_file():
    """Two turns of their own would let some never meet."""
    tests, functions = "tests/losses/values/test_soft_q.py", "jaxrl/losses/values/soft_q.py"
    assert rota.subject(tests) == rota.subject(functions) == "losses/values/soft_q"


def test_the_tests_of_algorithms_take_turns_by_file():
    own = {f"tests/algorithms/family_{i % 7}/test_{i}.py": f"family_{i % 7}" for i in range(300)}
    file = "tests/algorithms/family_0/test_7.py"
    period = rota.period(300, rota.FILES)
    awake = [day for day in range(period) if not plan(own=own, day=day).rests(file, "test_it")]
    assert len(awake) == 1
    asleep = (awake[0] + 1) % period
    assert plan(own=own, day=asleep).rests(file, "test_it")
    assert not plan(own=own, day=asleep, files=frozenset([file])).rests(file, "test_it")
    everything = frozenset(own)
    some = [f for f in own if not plan(own=own, day=asleep, files=everything).rests(f, "test_it")]
    assert 7 <= len(some) <= rota.FILES + 30


def test_a_plan_is_the_same_after_it_was_written():
    for one in (plan(files=frozenset("ab"), claims=frozenset("c")), rota.plan()):
        again = rota.load(one.dump())
        assert again == one or again.dump() == one.dump()
        assert again.rests("tests/losses/test_x.py", "test_lonely") == one.rests(
            "tests/losses/test_x.py", "test_lonely"
        )


def test_one_plan_is_made_for_all_workers(monkeypatch):
    """Whatever a worker's clock says."""
    written = pathlib.Path(os.environ[rota.PLAN])
    assert rota.plan().dump() == rota.load(written.read_text()).dump()
    rota.plan.cache_clear()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setenv(rota.DAY, "3")
    assert rota.plan().dump() == rota.load(written.read_text()).dump()


def test_a_day_that_is_told(monkeypatch):
    monkeypatch.delenv(rota.PLAN)
    monkeypatch.setenv(rota.DAY, "3")
    rota.plan.cache_clear()
    try:
        assert rota.plan().day == 3
        monkeypatch.delenv(rota.DAY)
        rota.plan.cache_clear()
        monkeypatch.setattr(time, "time", lambda: 86_400.0 * 5 + 1)
        assert rota.plan().day == 5
    finally:
        rota.plan.cache_clear()


def test_a_mark_is_slow_for_what_is_affected_or_in_turn(monkeypatch):
    for names in ({"claims": {"an_ant"}}, {"functions": {"ant"}}):
        monkeypatch.setattr(rota, "plan", lambda names=names: plan(day=1, **names))
        (name,) = itertools.chain(*names.values())
        assert rota.mark(name.replace("_", "-"), 10**9) == "slow"
        assert rota.mark("bee", 10**9) == "rest"
    turns = []
    for day in range(8):
        monkeypatch.setattr(rota, "plan", lambda day=day: plan(day=day))
        turns.append(rota.mark("bee", 8))
    assert sorted(turns) == ["rest"] * 7 + ["slow"]
