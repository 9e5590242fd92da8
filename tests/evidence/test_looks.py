"""Looks at tuning seeds: what would waste the reported ones is seen, and said in a sentence."""

import json

import numpy as np
import pytest

from experiments.evidence import declare, looks
from experiments.evidence.declare import better, equal, not_worse

LEVEL = 0.95
NOISE = np.array([-0.01, 0.0, 0.01])  # three tuning seeds


def claim(*clauses, **metric):
    return declare.Claim(
        paper=declare.Paper("Title", "Authors", 2020, "", "It says."),
        claim="A is better.",
        left_out="",
        parts=(),
        metric=declare.Metric("score", 0, 1, **metric),
        environments=(declare.Arena("X", 10, 0, 1), declare.Arena("Y", 10, 0, 1)),
        sides={name: declare.Side(None) for name in "AB"},
        clauses=clauses,
        seeds=10,
        minutes=1,
    )


def look_at(check, seeds=10, untrained=0.1, **scores):
    """Return {name: sentence} of looks that are not well, and why the claim is untestable.

    Sides have `scores` [seeds] in both environments.
    """
    side = lambda x: {"score": x, "final": x, "untrained": np.full(len(x), untrained)}
    sides = {name: side(x) for name, x in scores.items()}
    values = {environment.label: sides for environment in check.environments}
    found, untestable = looks.look(check, check.clauses, check.environments, values, seeds, LEVEL)
    json.dumps(found)  # as a record has it
    assert {"possible", "power", "ceiling", "floor"} <= {one["name"] for one in found}
    return {one["name"]: one["said"] for one in found if not one["ok"]}, untestable


def test_sound_design_runs():
    check = claim(better("A", "B", 0.1), not_worse("A", "B", 0.1, "X"), equal("A", "B", 0.5, "Y"))
    assert look_at(check, A=0.7 + NOISE, B=0.4 - NOISE) == ({}, "")
    less = claim(better("A", "B", 0.1), more_is_better=False)
    assert look_at(less, untrained=0.9, A=0.4 + NOISE, B=0.7 - NOISE) == ({}, "")


def test_claim_that_cannot_hold():
    wrong, untestable = look_at(claim(better("A", "B", 0.1, "X")), A=0.96 + NOISE, B=0.914 + NOISE)
    assert (
        wrong["possible"]
        == untestable
        == ("'A better than B by 0.1' in X cannot hold: B is at 0.914 of a range from 0 to 1.")
    )
    less = claim(better("A", "B", 0.1, "X"), more_is_better=False)
    wrong, untestable = look_at(less, untrained=0.9, A=0.02 + NOISE, B=0.08 - NOISE)
    assert (
        wrong["possible"]
        == untestable
        == ("'A better than B by 0.1' in X cannot hold: B is at 0.08 of a range from 0 to 1.")
    )
    assert not looks.possible(better("A", "B", 0.3), "X", [0.7], 0, 1).ok  # but for rounding


def test_claim_that_cannot_fail():
    for clause in (not_worse("A", "B", 0.35, "X"), equal("A", "B", 0.7, "X")):
        wrong, untestable = look_at(claim(clause), A=0.4 + NOISE, B=0.35 + NOISE)
        assert "cannot fail: B is at 0.35 of a range from 0 to 1." in wrong["possible"]
        assert wrong["possible"] == untestable
    assert looks.possible(equal("A", "B", 0.5), "X", [0.35], 0, 1).ok


def test_range_that_is_wrong_warns():
    look = looks.possible(better("A", "B", 0.1), "X", [300.0], 0, 1)
    assert (look.ok, look.stops) == (False, False)
    assert look.said == (
        "The range of 'A better than B by 0.1' in X is wrong: B is at 300 of a range from 0 to 1."
    )


def test_saturated_metric():
    check = claim(better("A", "B", 0.01, "X"))
    wrong, untestable = look_at(check, A=0.98 + NOISE, B=0.96 - NOISE / 10)
    assert wrong["ceiling"] == "All sides are at the ceiling of 1 in X: A 0.98, B 0.96."
    assert wrong["ceiling"] in untestable
    assert "ceiling" not in look_at(check, A=0.98 + NOISE, B=0.7 - NOISE)[0]
    less = claim(better("A", "B", 0.01, "X"), more_is_better=False)
    wrong, untestable = look_at(less, untrained=0.9, A=0.02 + NOISE, B=0.04 - NOISE / 10)
    assert wrong["ceiling"] == "All sides are at the ceiling of 0 in X: A 0.02, B 0.04."
    assert wrong["ceiling"] in untestable


def test_side_that_never_learns():
    stuck = np.array([0.11, 0.09, 0.12])
    wrong, untestable = look_at(claim(better("A", "B", 0.1, "X")), A=stuck, B=0.6 + NOISE)
    assert wrong["floor"] == ("A does not learn in X: it gains 0.00667 over its untrained policy.")
    assert wrong["floor"] in untestable
    # A baseline may be unable to learn, which is said; unless it is to be as good.
    wrong, untestable = look_at(claim(better("A", "B", 0.1, "X")), A=0.6 + NOISE, B=stuck)
    assert wrong["floor"].startswith("B does not learn")
    assert untestable == ""
    assert "B does not" in look_at(claim(equal("A", "B", 0.1, "X")), A=stuck + 0.2, B=stuck)[1]


def test_floor_is_not_called_learning_by_chance():
    rng = np.random.default_rng(0)
    still = [looks.floor("A", "X", x, 1.0, True).ok for x in 0.03 * rng.normal(size=(1000, 3))]
    slow = [looks.floor("A", "X", x, 1.0, True).ok for x in rng.normal(0.1, 0.03, (1000, 3))]
    assert np.mean(still) < 0.06
    assert np.mean(slow) > 0.9
    assert looks.floor("A", "X", [0.5], 1.0, True).ok  # one tuning seed
    assert not looks.floor("A", "X", [0.001, 0.001, 0.0011], 1.0, True).ok  # sure, but nothing


def test_too_few_seeds_for_the_effect():
    apart = np.array([-0.2, 0.0, 0.2])
    check = claim(better("A", "B", 0.0, "X"))
    wrong, untestable = look_at(check, seeds=10, A=0.52 + apart, B=0.5 + NOISE)
    assert wrong["power"] == untestable
    assert untestable.startswith(
        "10 seeds find a distance of 0.19 from the margin of 'A better than B' in X, and it is "
        "0.02: it takes about 71"
    )
    # With a spread that is known from three seeds only, a little too few is but a warning.
    wrong, untestable = look_at(check, seeds=10, A=0.62 + apart, B=0.5 + NOISE)
    assert "it takes about" in wrong["power"]
    assert untestable == ""
    assert look_at(check, seeds=30, A=0.62 + apart, B=0.5 + NOISE) == ({}, "")
    several = claim(better("A", "B", 0.0, "X", "Y"), better("A", "B", of_mechanism=True))
    assert "10 seeds find a distance of 0.21 " in look_at(several, A=0.52 + apart, B=0.5 + NOISE)[1]
    none = looks.power(check.clauses[0], "X", apart, 10, LEVEL)
    assert none.said.endswith("it takes more than 10,000 seeds.")


def test_bimodal_result():
    two = np.array([0.1, 0.11, 0.12, 0.73, 0.74, 0.75])
    wrong, untestable = look_at(claim(better("A", "B", 0.05, "X")), A=two, B=two[::-1] + 0.001)
    assert wrong["modes"] == (
        "B ends in two groups in X: 3 of 6 seeds near 0.741, the others near 0.111."
    )
    assert wrong["modes"] not in untestable


@pytest.mark.parametrize(
    ("grid", "best", "further"),
    [
        ((1e-4, 1e-3), 1e-3, 1e-2),
        ((1e-3, 1e-4), 1e-4, 1e-5),
        ((1, 2, 4), 4, 8),
        ((1, 2, 4), 2, None),
        ((1, 2), 1, None),  # a whole number that would be 0
        ((0.0, 0.1), 0.0, None),
        ((0.9, 0.99), 0.99, 0.999),
        ((0.9, 0.99), 0.9, 0.818182),
        ((0.5,), 0.5, None),
    ],
)
def test_grid_is_widened_beyond_its_edge(grid, best, further):
    assert looks.value_beyond(grid, best) == further


def test_edge_of_the_grid():
    assert looks.edge("lr of A in X", (1, 2), (1, 2, 4), 2).ok
    assert looks.edge("lr of A in X", (1,), (1,), 1).ok
    still = looks.edge("lr of A in X", (1, 2), (4, 1, 2), 4)
    assert (still.ok, still.stops) == (False, False)
    assert still.said == (
        "lr of A in X is best at 4, at an end of 1, 2, 4, although its grid was widened."
    )
    stuck = looks.edge("gamma of A in X", (0.9, 1), (0.9, 1), 1, "gamma is at most 1")
    assert stuck.said == "gamma of A in X is best at 1, at an end of 0.9, 1: gamma is at most 1."
