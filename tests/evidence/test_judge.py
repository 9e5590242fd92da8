"""Verdicts: their error rates by exact sums and seeded simulation, and results planted to mislead.

Also the estimators and the history that they rest on.
"""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats

from experiments.evidence import declare
from experiments.evidence.clauses import clause_result
from experiments.evidence.declare import better, equal, not_worse
from experiments.evidence.estimators import (
    BOOTSTRAP,
    MEAN,
    MIDDLE,
    SHARE,
    difference,
    estimator_for,
    modes,
    seeds_needed,
    share_interval,
)
from experiments.evidence.history import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    PILOT,
    UNTESTABLE,
    confidence,
    designs,
    next_confidence,
    spend,
    standing,
    tries,
)
from experiments.evidence.judge import judge, judge_exact
from jaxrl.core.errors import UserError

PAPER = declare.Paper("Title", "Authors", 2020, "", "It says.")
Z = scipy.stats.norm.ppf(np.arange(0.5, 10) / 10)  # ten seeds, as normal as ten numbers can be


def claim(*clauses, environments=("X",), **metric):
    sides = {name: declare.Side(None) for name in ("A", "B", "A without")}
    return declare.Claim(
        paper=PAPER,
        claim="A is better.",
        left_out="",
        parts=(),
        metric=declare.Metric("score", 0, 1, **metric),
        environments=tuple(declare.Arena("Env", 10, 0, 1, name=name) for name in environments),
        sides=sides,
        clauses=clauses,
        seeds=10,
        minutes=1,
    )


def judge_values(check, values, number=1, **more):
    """Judge values {environment: {side: score [seeds]}}."""
    values = {w: {s: {"score": x} for s, x in sides.items()} for w, sides in values.items()}
    found = judge(check, check.clauses, check.environments, values, confidence(number), **more)
    json.dumps(dataclasses.asdict(found))  # as a record has it
    return found


# -------------------------------------------------------------------------------------- one clause


@pytest.mark.parametrize(
    ("clause", "effect", "expected"),
    [
        (better("A", "B", 0.1), 0.2, HOLDS),
        (better("A", "B", 0.1), 0.11, INCONCLUSIVE),
        (better("A", "B", 0.1), 0.0, FAILS),
        (better("A", "B"), -0.2, FAILS),
        (not_worse("A", "B", 0.1), 0.0, HOLDS),
        (not_worse("A", "B", 0.1), -0.11, INCONCLUSIVE),
        (not_worse("A", "B", 0.1), -0.2, FAILS),
        (equal("A", "B", 0.1), 0.0, HOLDS),
        (equal("A", "B", 0.1), 0.11, INCONCLUSIVE),
        (equal("A", "B", 0.1), 0.2, FAILS),
        (equal("A", "B", 0.1), -0.2, FAILS),
    ],
)
def test_clause_is_read_off_its_interval(clause, effect, expected):
    base = np.linspace(0.2, 0.6, 10)
    result = clause_result(clause, base + effect + 0.05 * Z, base, 0.95)
    assert result.verdict == expected
    assert result.estimator == MEAN
    half = scipy.stats.t.ppf(0.975, 9) * (0.05 * Z).std(ddof=1) / np.sqrt(10)
    np.testing.assert_allclose([result.low, result.high], [effect - half, effect + half])
    assert (result.seeds_needed is not None) == (expected == INCONCLUSIVE)
    few = clause_result(clause, (base + effect)[:4], base[:4], 0.95)
    assert few.verdict == INCONCLUSIVE


def test_needed_seeds_find_the_effect_four_times_of_five():
    differences, level = 0.1 + 0.2 * Z, 0.95
    n = seeds_needed(differences, 0.0, level)
    rng = np.random.default_rng(0)
    draws = rng.normal(differences.mean(), differences.std(ddof=1), (4000, n))
    half = scipy.stats.t.ppf(0.975, n - 1) * draws.std(1, ddof=1) / np.sqrt(n)
    assert np.mean(draws.mean(1) > half) == pytest.approx(0.8, abs=0.03)
    assert seeds_needed(differences, differences.mean(), level) is None
    assert seeds_needed(np.full(5, 0.1), 0.0, level) == 5


# -------------------------------------------------------------------------------------- estimators


def test_interval_of_shares_holds_the_truth_as_often_as_it_says():
    # Exactly: a sum over all outcomes of 8 pairs.
    n, level = 8, 0.95
    outcomes = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    bounds = np.array([share_interval(b, c, n, level)[1:] for b, c in outcomes])
    p, q = (x.ravel() for x in np.meshgrid(np.linspace(0, 1, 33), np.linspace(0, 1, 33)))
    p, q = p[p + q <= 1], q[p + q <= 1]
    cells = np.stack([p, q, 1 - p - q], -1)[:, None]
    counts = np.array([(b, c, n - b - c) for b, c in outcomes])
    pmf = scipy.stats.multinomial.pmf(counts, n, cells)  # [truths, outcomes]
    true = (p - q)[:, None]
    over = (pmf * (bounds[:, 0] > true + 1e-5)).sum(1)
    under = (pmf * (bounds[:, 1] < true - 1e-5)).sum(1)
    assert max(over.max(), under.max()) <= 0.0251
    # And it is not wasteful: six pairs that disagree, all one way, are significant by McNemar's
    # exact test (1 / 64), five are not (1 / 32).
    assert share_interval(6, 0, 6, level).low > 0 > share_interval(5, 0, 5, level).low
    assert share_interval(6, 0, 20, level).low > 0
    assert share_interval(2, 5, 9, level).low == -share_interval(5, 2, 9, level).high


def test_interval_of_the_interquartile_mean_holds_the_truth():
    rng = np.random.default_rng(0)
    for n in (5, 10):
        for draw in (rng.normal, lambda size: rng.standard_t(2, size=size)):
            bounds = [difference(x, 0 * x, 0.95, MIDDLE)[1:] for x in draw(size=(1000, n))]
            low, high = np.transpose(bounds)
            assert np.mean((low <= 0) & (high >= 0)) >= 0.935
    # One seed of ten that is lost leaves it where it was, and the mean not.
    x = np.append(1 + 0.01 * Z[:9], -50.0)
    assert difference(x, 0 * x, 0.95, MIDDLE).low > 0.9
    assert difference(x, 0 * x, 0.95, MEAN).low < 0


@pytest.mark.parametrize("n", [5, 10, 30])
def test_modes_sees_two_and_no_more_than_there_are(n):
    rng = np.random.default_rng(n)
    for draw in (rng.normal, rng.uniform, rng.exponential, rng.lognormal):
        assert np.mean([modes(x) is not None for x in draw(size=(1000, n))]) < 0.05
    x = 0.02 * rng.normal(size=n)
    x[: n // 2] += 0.7
    found = modes(rng.permutation(x))
    assert found.above == n // 2
    assert 0.1 < found.threshold < 0.6
    assert modes(np.full(n, 0.3)) is None
    assert modes([0, 0, 1, 1]) is None  # four seeds tell nothing


def test_estimator_is_chosen_by_the_values():
    assert estimator_for([0, 1, 1, 0, 1], [0, 0, 0, 0, 0]) == SHARE
    assert estimator_for([1] * 5, [1] * 5) == SHARE
    two = np.array([0.1, 0.11, 0.12, 0.72, 0.74])
    assert estimator_for(two, two[::-1] + 0.001) == BOOTSTRAP
    lost, won = np.append(0.9 + 0.01 * Z, 0.1), np.append(0.1 + 0.01 * Z, 0.1)
    assert estimator_for(lost, won) == BOOTSTRAP
    # What makes two groups of all values is the effect, or one side lies between the groups.
    assert estimator_for(0.9 + 0.01 * Z, 0.1 + 0.01 * Z) == MEAN
    assert estimator_for(np.where(Z > 0, 0.9, 0.1) + 0.01 * Z, 0.5 + 0.1 * Z) == MEAN
    with pytest.raises(UserError, match="median"):
        difference(Z, Z, 0.95, "median")


# -------------------------------------------------------------------------------- planted results


def test_two_modes_are_compared_by_their_mean():
    low, high = 0.1 + 0.01 * Z, 0.74 + 0.01 * Z
    a = np.where(np.arange(10) < 9, high, low)
    b = np.where(np.arange(10) < 2, high, low)
    result = judge_values(claim(better("A", "B", 0.05)), {"X": {"A": a, "B": b}})
    (clause,) = result.clauses
    assert clause.estimator == BOOTSTRAP
    assert clause.value == pytest.approx((a - b).mean())
    student = difference(a, b, 0.95, MEAN)
    assert clause.low <= student.low and clause.high >= student.high
    assert result.verdict == HOLDS
    # A claim about how often may say so.
    often = judge_values(claim(better("A", "B", 0.05), estimator=SHARE), {"X": {"A": a, "B": b}})
    assert often.clauses[0].value == pytest.approx(0.7 * 0.64, rel=0.02)
    assert often.verdict == HOLDS


def test_a_mixture_with_the_lower_mean_is_not_better():
    """The planted case: A ends in the upper of two groups more often, and lower in the lower one,
    which shares of seeds do not see."""
    a = np.append(1.0 + 0.01 * Z[:8], [-2.0, -2.01, -1.99, -2.02])
    b = np.append(1.0 + 0.01 * Z[:2], 0.5 + 0.01 * Z)
    values = {"X": {"A": np.tile(a, 3), "B": np.tile(b, 3)[np.r_[12:36, :12]]}}
    assert values["X"]["A"].mean() < values["X"]["B"].mean()
    assert judge_values(claim(better("A", "B")), values).verdict != HOLDS
    rng = np.random.default_rng(0)
    wrong, times, n = 0, 300, 32
    for _ in range(times):
        noise = 0.02 * rng.normal(size=(2, n))
        one = np.where(rng.uniform(size=n) < 0.75, 1.0, -0.05) + noise[0]
        other = np.where(rng.uniform(size=n) < 0.45, 1.0, 0.55) + noise[1]  # 0.738 and 0.753
        wrong += clause_result(better("A", "B"), one, other, 0.95).verdict == HOLDS
    assert wrong / times <= 0.04


def test_not_worse_is_called_falsely_no_more_often_than_it_says():
    """Two groups, A worse by exactly the margin: 11 % of draws of 32 seeds by shares."""
    rng = np.random.default_rng(1)
    wrong, times, n = 0, 300, 32
    for _ in range(times):
        noise = 0.1 * rng.normal(size=(2, n))
        a = np.where(rng.uniform(size=n) < 0.5, 0.9, 0.0) + noise[0]
        b = np.where(rng.uniform(size=n) < 0.5, 1.0, 0.1) + noise[1]
        wrong += clause_result(not_worse("A", "B", 0.1), a, b, 0.95).verdict == HOLDS
    assert wrong / times <= 0.04


def test_an_equality_whose_difference_is_significant_says_so():
    base = np.linspace(0.2, 0.6, 10)
    one = claim(equal("A", "B", 0.1))
    result = judge_values(one, {"X": {"A": base + 0.065 + 0.01 * Z, "B": base}})
    assert result.verdict == HOLDS and "though it is better by 0.065" in result.why
    result = judge_values(one, {"X": {"A": base - 0.065 + 0.01 * Z, "B": base}})
    assert result.verdict == HOLDS and "though it is worse by 0.065" in result.why
    result = judge_values(one, {"X": {"A": base + 0.001 + 0.01 * Z, "B": base}})
    assert result.verdict == HOLDS and "though" not in result.why
    weaker = claim(not_worse("A", "B", 0.1))
    result = judge_values(weaker, {"X": {"A": base - 0.037 + 0.01 * Z, "B": base}})
    assert result.verdict == HOLDS and "though it is worse by 0.037" in result.why
    result = judge_values(weaker, {"X": {"A": base + 0.3 + 0.01 * Z, "B": base}})
    assert "though" not in result.why


def test_too_few_seeds_say_how_many_it_takes():
    b = np.linspace(0.2, 0.6, 10)
    values = {"X": {"A": b + 0.02 + 0.1 * Z, "B": b}}
    result = judge_values(claim(better("A", "B")), values, hours_per_seed=0.01)
    assert result.verdict == INCONCLUSIVE
    (clause,) = result.clauses
    assert clause.seeds_needed == seeds_needed(0.02 + 0.1 * Z, 0, confidence(2)) > 200
    assert clause.hours_needed == pytest.approx(clause.seeds_needed / 100)
    assert result.why == (
        f"'A better than B' in X stays open: 0.02 (-0.0507 to 0.0907); "
        f"{clause.seeds_needed} seeds in about {clause.hours_needed:.1f} hours would probably "
        "decide it."
    )
    few = judge_values(claim(better("A", "B")), {"X": {"A": b[:3] + 1, "B": b[:3]}})
    assert few.why == "3 seeds give no verdict, it takes at least 5."


def test_opposite_effects_do_not_average_to_nothing():
    b = np.linspace(0.3, 0.5, 10)
    values = {"X": {"A": b + 0.3 + 0.01 * Z, "B": b}, "Y": {"A": b - 0.3 + 0.01 * Z, "B": b}}
    same = judge_values(claim(equal("A", "B", 0.1), environments="XY"), values)
    assert (same.verdict, same.clauses[0].verdict) == (INCONCLUSIVE, INCONCLUSIVE)
    assert "the mean over environments hides that they disagree" in same.why
    assert "0.3 (0.292 to 0.308) in X, -0.3 (-0.308 to -0.292) in Y" in same.why
    more = judge_values(claim(better("A", "B", 0.1), environments="XY"), values)
    assert more.verdict == FAILS
    assert "disagree" in more.why
    # An environment that contradicts the claim is not made good by another.
    values["X"]["A"] = b + 0.5 + 0.01 * Z
    assert judge_values(claim(better("A", "B"), environments="XY"), values).verdict == INCONCLUSIVE
    values["Y"]["A"] = b + 0.05 + 0.01 * Z
    agreed = judge_values(claim(better("A", "B"), environments="XY"), values)
    assert agreed.verdict == HOLDS
    assert "disagree" not in agreed.why
    # Nor is there anything to hide where all environments contradict it, or differ within the
    # margin.
    assert "disagree" not in judge_values(claim(better("B", "A"), environments="XY"), values).why
    values = {"X": {"A": b + 0.03 + 0.01 * Z, "B": b}, "Y": {"A": b - 0.03 + 0.01 * Z, "B": b}}
    assert judge_values(claim(equal("A", "B", 0.1), environments="XY"), values).verdict == HOLDS


def test_every_environment_counts_and_shares_the_error():
    b = np.linspace(0.3, 0.5, 10)
    values = {"X": {"A": b + 0.3 + 0.01 * Z, "B": b}, "Y": {"A": b - 0.1 + 0.01 * Z, "B": b}}
    result = judge_values(claim(better("A", "B", 0.1, "X", "Y"), environments="XY"), values)
    assert [r.verdict for r in result.clauses] == [HOLDS, FAILS]
    assert result.verdict == FAILS
    assert result.why.startswith("'A better than B by 0.1' in Y does not hold: -0.1 (")
    half = scipy.stats.t.ppf(1 - 0.025 / 2, 9) * (0.01 * Z).std(ddof=1) / np.sqrt(10)
    assert result.clauses[0].low == pytest.approx(0.3 - half)


def test_less_may_be_better_and_environments_have_scales_of_their_own():
    b = np.linspace(0.3, 0.5, 10)
    less = claim(better("A", "B", 0.1, "X"), more_is_better=False)
    assert judge_values(less, {"X": {"A": b - 0.2 + 0.01 * Z, "B": b}}).verdict == HOLDS
    check = claim(better("A", "B", 0.15), environments="XY")
    wide = dataclasses.replace(check.environments[1], low=-100, high=100)
    check = dataclasses.replace(check, environments=(check.environments[0], wide))
    values = {"X": {"A": b + 0.1, "B": b}, "Y": {"A": b + 60 + 0.01 * Z, "B": b}}
    assert judge_values(check, values).clauses[0].value == pytest.approx((0.1 + 60 / 200) / 2)


def test_the_only_environment_is_judged_in_its_own_units():
    """A margin of 0.2 returns is no fifth of a range of 40."""
    check = dataclasses.replace(
        claim(better("A", "B", 0.2)), environments=(declare.Arena("Env", 10, -20, 20, name="X"),)
    )
    b = np.linspace(3.0, 5.0, 10)
    (clause,) = judge_values(check, {"X": {"A": b + 0.5 + 0.1 * Z, "B": b}}).clauses
    assert clause.verdict == HOLDS and clause.value == pytest.approx(0.5, abs=0.1)
    assert clause.environment == "X"


def test_mechanism_that_costs_nothing_leaves_the_claim_open():
    b = np.linspace(0.3, 0.5, 10)
    check = claim(better("A", "B"), better("A", "A without", of_mechanism=True))
    values = {"X": {"A": b + 0.3 + 0.01 * Z, "B": b, "A without": b + 0.3}}
    result = judge_values(check, values)
    assert result.verdict == INCONCLUSIVE
    assert result.why.startswith("Mechanism not shown: switching it off costs 0 of the effect")
    values["X"]["A without"] = b + 0.3 + 0.4 * Z  # it may cost much, or nothing
    result = judge_values(check, values)
    assert result.why.startswith("Mechanism not shown")
    values["X"]["A without"] = b + 0.1 + 0.9 * Z
    result = judge_values(check, values)
    assert result.why.startswith("The claim holds, but its effect may not be due to the mechanism")
    values["X"]["A without"] = b + 0.1
    assert judge_values(check, values).verdict == HOLDS
    # One that is worth 2 % of the effect, and significantly so, is not what the claim is about.
    values["X"]["A without"] = values["X"]["A"] - 0.006 + 0.001 * Z
    weak = judge_values(check, values)
    assert weak.verdict == INCONCLUSIVE and weak.clauses[1].share == pytest.approx(0.02)
    assert weak.why.startswith("Mechanism not shown: switching it off costs 0.02 of the effect")
    values["X"]["A without"] = values["X"]["A"] - 0.08 + 0.001 * Z
    assert judge_values(check, values).verdict == HOLDS
    values["X"]["B"] = b + 0.5
    assert judge_values(check, values).verdict == FAILS
    with pytest.raises(UserError, match="about X"):
        judge(check, check.clauses[1:], check.environments, {}, 0.95)
    with pytest.raises(UserError, match="score"):
        judge(check, check.clauses, check.environments, {"X": {s: {} for s in values["X"]}}, 0.95)


def test_claim_may_be_about_the_middle_half_of_the_seeds():
    b = np.linspace(0.3, 0.5, 10)
    lost = np.append((b + 0.2 + 0.01 * Z)[:9], 0.0)
    values = {"X": {"A": lost, "B": b}}
    assert judge_values(claim(better("A", "B", 0.1)), values).verdict == INCONCLUSIVE
    middle = judge_values(claim(better("A", "B", 0.1), estimator=MIDDLE), values)
    assert (middle.verdict, middle.clauses[0].estimator) == (HOLDS, MIDDLE)
    with pytest.raises(UserError, match="median"):
        claim(better("A", "B"), estimator="median")


def test_exact_claims():
    check = declare.Exact(
        paper=PAPER, claim="", left_out="", parts=(), errors=dict, planted={"sign": dict}
    )
    tiny, large = np.full(5, 1e-12), np.full(5, 0.5)
    assert judge_exact(check, {"x": tiny}, {"sign": large}).verdict == HOLDS
    unseen = judge_exact(check, {"x": tiny}, {"sign": np.append(large, 1e-9)})
    assert (unseen.verdict, unseen.why) == (
        INCONCLUSIVE,
        "The planted mistake 'sign' goes unnoticed: it changes a seed by only 1e-09, not by more "
        "than 0.001.",
    )
    for wrong in (0.1, np.nan):
        off = judge_exact(check, {"x": np.append(tiny, wrong)}, {"sign": large})
        assert off.verdict == FAILS
        assert off.why.startswith("'x' exceeds 1e-09 on 1 of 6 seeds")
        assert off.why.endswith(f"it is {wrong:.3g}.")
    assert judge_exact(check, {"x": tiny[:4]}, {"sign": large}).verdict == INCONCLUSIVE


# --------------------------------------------------------------------------------- all attempts


def record(attempt, verdict, changed=(), **more):
    """A record; one letter of `changed` stands for a sentence about another design."""
    event = "ended" if verdict else "begun"
    return {
        "format": 2, "event": event, "attempt": attempt, "verdict": verdict,
        "digest": "".join(changed) or "a", "changed": list(changed), "kind": "claim",
        "budget": "full", "why": f"Why {attempt}.",
    } | more  # fmt: skip


def test_errors_of_all_tries_add_up():
    assert confidence(1) == 0.95
    assert sum(map(spend, range(1, 1000))) == pytest.approx(0.05, rel=1e-2)
    assert sum(map(spend, range(1, 1000))) < 0.05
    assert [next_confidence(confidence(k)) for k in (1, 2, 7)] == [confidence(k) for k in (2, 3, 8)]
    with pytest.raises(UserError):
        spend(0)


def test_every_earlier_look_is_a_try():
    records = [
        record(1, ""), record(1, FAILS), record(2, UNTESTABLE), record(3, ""), record(4, HOLDS),
        record(5, INCONCLUSIVE), {"verdict": FAILS}, record(6, FAILS, budget="tiny"),
        record(7, ""),
    ]  # fmt: skip
    assert [tries(records, n) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]
    assert tries(records, 7) == 5  # what held with the same design is free
    assert tries([*records[:-1], record(7, "", "b")], 7) == 6  # of another, it is not


def test_designs_are_counted_with_those_that_only_a_pilot_saw():
    seeds = ("seeds was 5 and is 9.", "tuning_seeds was 2 and is 3.")
    records = [
        record(1, PILOT, budget=PILOT), record(2, PILOT, "b", budget=PILOT),
        record(3, PILOT, "c", budget=PILOT), record(4, INCONCLUSIVE), record(5, HOLDS, seeds),
    ]  # fmt: skip
    assert designs(records) == {1: 1, 2: 2, 3: 3, 4: 3, 5: 3}
    assert [tries(records, n) for n in (2, 3, 4, 5)] == [2, 3, 3, 4]
    now = standing(records)
    assert (now.verdict, now.design, now.designs, now.is_redesigned) == (HOLDS, 3, 3, True)
    assert str(now) == "holds, on design 3 of 3"
    assert str(standing(records[3:])) == "holds"
    with pytest.raises(UserError):
        standing(records[:3])  # pilots are no attempts


def test_an_exact_claim_that_measures_other_errors_is_redesigned():
    measured = lambda *names: {"kind": "exact", "values": {"": {"": dict.fromkeys(names, (0.0,))}}}
    seeds = ("seeds was 8 and is 5.",)
    first = record(1, FAILS, **measured("a", "b"))
    assert designs([first, record(2, HOLDS, seeds, **measured("a"))]) == {1: 1, 2: 2}
    assert designs([first, record(2, HOLDS, seeds, **measured("b", "a"))]) == {1: 1, 2: 1}
    begun = record(2, HOLDS, seeds)  # as is known before an attempt has measured anything
    assert designs([first, begun | {"event": "begun"}]) == {1: 1, 2: 1}


def test_a_claim_that_is_moved_until_it_holds():
    """The planted case: the environment moves, then the margin, and it holds."""
    moved = [
        record(1, FAILS),
        record(2, UNTESTABLE, ["environments, pendulum is gone.", "environments, hopper is new."]),
        record(3, HOLDS, ["clauses, A better than B, margin was 20.0 and is 0.0."]),
    ]
    now = standing(moved)
    assert str(now) == "holds, on design 3 of 3" and now.is_redesigned
    assert tries(moved, 3) == 3  # so at 99.2 %
    assert not standing(moved[1:]).is_redesigned


def test_trying_again_draws_no_better_odds():
    # The effect is exactly the margin, so a claim that "holds" is wrong; its author stops at the
    # first that does, after revising whatever did not. Estimators are chosen as in any attempt, for
    # values that are normal, yes or no, or in two groups.
    rng = np.random.default_rng(0)
    clause, times, n = better("A", "B"), 400, 8
    draws = {
        "normal": lambda: rng.normal(size=(2, n)),
        "yes or no": lambda: 1.0 * (rng.uniform(size=(2, n)) < 0.5),
        "two groups": lambda: (rng.uniform(size=(2, n)) < 0.5) + 0.02 * rng.normal(size=(2, n)),
    }
    for name, draw in draws.items():
        wrong = 0
        for _ in range(times):
            records = []
            for attempt in range(1, 6):
                level = confidence(tries([*records, record(attempt, "", "x")], attempt))
                verdict = clause_result(clause, *draw(), level).verdict
                records.append(record(attempt, verdict, str(attempt)))
                if standing(records).verdict == HOLDS:
                    wrong += 1
                    break
        assert wrong / times <= 0.05, name
        assert wrong or name != "normal"


def test_history_is_of_the_last_design_and_forgets_no_failure():
    def verdict(*records):
        return standing(records).verdict

    assert verdict(record(1, ""), record(1, HOLDS)) == HOLDS
    assert verdict(record(1, HOLDS), record(2, INCONCLUSIVE)) == HOLDS
    assert verdict(record(1, INCONCLUSIVE), record(2, HOLDS, "b")) == HOLDS
    assert verdict(record(1, HOLDS), record(2, INCONCLUSIVE, "b")) == INCONCLUSIVE
    assert verdict(record(1, FAILS), record(2, INCONCLUSIVE, "b")) == FAILS
    assert verdict(record(1, FAILS), record(2, UNTESTABLE, "b")) == FAILS
    assert verdict(record(1, FAILS), record(2, HOLDS, "b")) == HOLDS
    assert verdict(record(1, HOLDS), record(2, FAILS)) == INCONCLUSIVE
    assert verdict(record(1, FAILS), record(2, HOLDS)) == INCONCLUSIVE
    assert verdict(record(1, FAILS), record(2, HOLDS, ("seeds was 5 and is 6.",))) == INCONCLUSIVE
    assert verdict(record(1, HOLDS, kind="exact"), record(2, FAILS, kind="exact")) == FAILS
    assert standing([record(1, FAILS), record(2, UNTESTABLE, "b")]).why == (
        "Attempt 1 did not hold, and none since has decided: Why 1."
    )
    with pytest.raises(UserError):
        standing([record(1, ""), record(2, HOLDS, budget="tiny"), {"verdict": HOLDS}])


def test_untestable_takes_two_designs():
    first = record(1, UNTESTABLE)
    assert standing([first]).verdict == INCONCLUSIVE
    assert standing([first]).why.endswith("which a second declaration has to confirm: Why 1.")
    assert standing([first, record(2, UNTESTABLE)]).verdict == INCONCLUSIVE
    assert standing([first, record(2, UNTESTABLE, "b")]).verdict == UNTESTABLE


def test_replicated_is_what_held_twice_without_a_revision():
    assert not standing([record(1, HOLDS)]).replicated
    assert not standing([record(1, HOLDS), record(2, HOLDS, "b")]).replicated
    assert standing([record(1, HOLDS), record(2, HOLDS)]).replicated
