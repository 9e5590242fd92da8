"""Replays: a seed that left its range is seen, and one that takes another course is not blamed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from experiments.evidence import sides
from experiments.evidence.replay import replay
from tests.evidence import stubs

SEEDS = 6


def draw_scores(trial, keys, hyper, shift=0.0):
    """A score for each key, which depends on the side and its rate."""
    base = 0.2 if trial.name == "other" else 0.6
    score = base + 0.1 * jax.vmap(jax.random.uniform)(keys) + hyper.get("rate", 0.0) + shift
    return {"score": score, "else": score + 100.0 * shift}


def end_attempt(claim):
    """The record of an attempt at a claim whose measuring function is `draw_scores`."""
    values, tuned = {}, {}
    for (label, name), trial in sides.trials(claim, "full").items():
        best = {"rate": 0.01} if trial.side.grid else {}
        tuned.setdefault(label, {})[name] = best
        keys = sides.keys_of(7, label, SEEDS)
        found = draw_scores(trial, keys, best)
        values.setdefault(label, {})[name] = {k: np.asarray(x).tolist() for k, x in found.items()}
    return {"budget": "full", "seed_root": 7, "seeds": SEEDS, "values": values, "tuned": tuned}


@pytest.fixture
def record():
    return end_attempt(stubs.claim(measure=draw_scores))


def with_shift(shift, only=""):
    def measure(trial, keys, hyper):
        return draw_scores(trial, keys, hyper, shift if only in ("", trial.name) else 0.0)

    return stubs.claim(measure=measure)


def test_what_did_not_change_has_the_recorded_values(record):
    found = replay(stubs.claim(measure=draw_scores), record)
    assert found.ok and found.equal and found.said.startswith("The first seed has the recorded")


def test_a_seed_that_left_its_range_is_stale(record):
    found = replay(with_shift(0.5, "other"), record)
    assert not found.ok and not found.equal
    assert "'other' in" in found.said and "'one'" not in found.said and "score is" in found.said


def test_another_course_within_the_range_is_not_stale(record):
    lines = []
    found = replay(with_shift(0.004), record, lines.append)
    assert found.ok and not found.equal
    assert "in the range of the recorded seeds" in found.said
    assert any("in the range" in line for line in lines)


def test_a_second_seed_tells_chance_from_change(record):
    """The first seed may take a course of its own beyond the others; that two do is no chance."""

    def first_alone(trial, keys, hyper):
        own = sides.keys_of(7, trial.environment.label, 1)[0]
        is_first = jax.random.key_data(keys)[:, 0] == jax.random.key_data(own)[0]
        return {"score": draw_scores(trial, keys, hyper)["score"] + 5.0 * is_first}

    assert replay(stubs.claim(measure=first_alone), record).ok
    assert not replay(with_shift(5.0), record).ok


def test_only_metrics_of_clauses_count(record):
    claim = with_shift(0.004)
    assert {c.metric or claim.metric.name for c in claim.clauses} == {"score"}
    assert replay(claim, record).ok  # though `else` is 0.4 away


def test_an_equality_must_be_tolerated_today():
    record = {"budget": "full", "seed_root": 7, "seeds": 5, "values": {"": {"": {}}}, "tuned": {}}
    off = lambda size: lambda key: {"error": size * jax.random.uniform(key, dtype="float64")}
    exact = stubs.exact(errors=off(1e-12))
    assert replay(exact, record).ok
    found = replay(stubs.exact(errors=off(10.0)), record)
    assert not found.ok and "The error 'error' of the first seed is" in found.said
