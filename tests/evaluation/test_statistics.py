"""The statistics against closed forms, brute force and scipy."""

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.core.errors import UserError
from jaxrl.evaluation import statistics as s

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 31, 100, 1001])
@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.95, 0.999])
def test_t_quantile_is_scipys(degrees, confidence):
    expected = scipy.stats.t.ppf(0.5 + confidence / 2, degrees)
    np.testing.assert_allclose(s.t_quantile(degrees, confidence), expected, rtol=1e-9)


def test_t_quantile_in_closed_form():
    np.testing.assert_allclose(s.t_quantile(1, 0.5), 1.0)  # a Cauchy distribution's quartile
    a = 0.95  # with two degrees of freedom: t = a * sqrt(2 / (1 - a^2))
    np.testing.assert_allclose(s.t_quantile(2, a), a * np.sqrt(2 / (1 - a**2)))


@pytest.mark.parametrize("runs", [2, 3, 5, 30])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_mean_interval_is_scipys(runs, confidence):
    x = RNG.normal(3.0, 2.0, runs)
    expected = scipy.stats.t.interval(confidence, runs - 1, x.mean(), scipy.stats.sem(x))
    estimate, low, high = s.mean_interval(x, confidence)
    np.testing.assert_allclose((estimate, low, high), (x.mean(), *expected), rtol=1e-9)
    assert all(isinstance(v, float) for v in (estimate, low, high))


def test_mean_interval_of_columns_and_of_one_run():
    x = RNG.normal(size=(6, 4, 2))
    estimate, low, high = s.mean_interval(x)
    assert low.shape == high.shape == estimate.shape == (4, 2)
    for i, j in np.ndindex(4, 2):
        np.testing.assert_allclose(
            (estimate[i, j], low[i, j], high[i, j]), s.mean_interval(x[:, i, j])
        )
    assert s.mean_interval([2.0]) == (2.0, -np.inf, np.inf)
    assert s.mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(
    ("successes", "runs"), [(0, 1), (1, 1), (0, 5), (2, 5), (5, 5), (1, 100), (100, 100)]
)
def test_rate_intervals_of_successes_are_wilsons(successes, runs, confidence):
    x = np.arange(runs) < successes
    expected = scipy.stats.binomtest(successes, runs).proportion_ci(confidence, "wilson")
    estimate, low, high = s.rate_interval(x, confidence)
    assert estimate == successes / runs and all(isinstance(v, float) for v in (low, high))
    np.testing.assert_allclose((low, high), expected, atol=1e-12)
    assert 0 <= low <= estimate <= high <= 1 and low < high


def test_rate_intervals_of_successes_in_closed_form():
    z = float(scipy.stats.norm.ppf(0.975))
    np.testing.assert_allclose(s.rate_interval([1.0] * 9)[1:], (9 / (9 + z**2), 1.0))
    np.testing.assert_allclose(s.rate_interval([0.0] * 9)[1:], (0.0, z**2 / (9 + z**2)))


def test_rate_intervals_of_shares_are_students_clipped_to_0_and_1():
    for x in ([0.1, 0.02, 0.3], [0.9, 0.98, 0.7], [0.4, 0.5, 0.6], [1.0, 1.0, 0.999]):
        estimate, low, high = s.mean_interval(x)
        assert s.rate_interval(x) == (estimate, max(low, 0), min(high, 1))
    assert s.rate_interval([0.3]) == (0.3, 0.0, 1.0)


def test_rate_intervals_of_columns():
    x = np.stack([[0.0, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]], 1)
    found = np.stack(s.rate_interval(x), 1)
    np.testing.assert_allclose(found, [s.rate_interval(column) for column in x.T])


def test_rate_intervals_round_and_refuse():
    assert s.rate_interval([1.0 + 1e-7, 0.5, -1e-7]).high == 1.0
    with pytest.raises(UserError, match=r"between 0 and 1; x ranges from 0 to 2"):
        s.rate_interval([0.0, 2.0])


@settings(max_examples=200)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.01, 0.999))
def test_rate_intervals_stay_between_0_and_1(x, confidence):
    estimate, low, high = s.rate_interval(x, confidence)
    assert 0 <= low <= estimate <= high <= 1


def test_rates_are_recognized_by_name():
    few = [1.0, 0.0, 0.0]
    for name in (*s.RATES, "contact_foot"):
        assert s.metric_interval(name, few) == s.rate_interval(few) != s.mean_interval(few)
    for name in ("return", "length", "regret"):
        assert s.metric_interval(name, few) == s.score_interval(few)
    odd = [2.0, 1.0]  # not a rate, whatever its name means here
    assert s.metric_interval("success", odd) == s.score_interval(odd)
    assert s.confidence_text(2) == "50 %" and s.confidence_text(2, "success") == "95 %"


def coverage(intervals: s.Interval, truth: float) -> float:
    return float(np.mean((intervals.low <= truth) & (truth <= intervals.high)))


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_mean_intervals_hold_the_truth_as_often_as_they_say(runs, confidence):
    rng, n = np.random.default_rng(runs), 20_000
    error = 4 * np.sqrt(confidence * (1 - confidence) / n)
    share = coverage(s.mean_interval(rng.normal(1.0, 5.0, (runs, n)), confidence), 1.0)
    assert abs(share - confidence) < error
    # uniform returns are far from normal, but the coverage is still close
    share = coverage(s.mean_interval(rng.uniform(0, 1, (runs, n)), confidence), 0.5)
    assert abs(share - confidence) < 0.03


@pytest.mark.slow
def test_a_bootstrap_of_five_runs_is_too_narrow():
    """This is why means use Student's interval."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(400, 5))
    held = [s.stratified_bootstrap(np.mean, x, resamples=400) for x in draws]
    share = np.mean([low <= 0 <= high for _, low, high in held])
    assert 0.76 < share < 0.89


def test_a_score_has_an_interval_within_its_bounds():
    returns = [500.0, 500, 500, 500, 500, 500, 350, 343.6]  # CartPole's, of 8 seeds
    assert s.mean_interval(returns).high > 500
    mean, low, high = s.score_interval(returns)
    assert mean == s.mean_interval(returns).estimate and high == 500
    assert low == s.mean_interval(returns).low > min(returns)
    assert s.score_interval([1.0]) == (1, -np.inf, np.inf)
    assert s.score_interval([0.1] * 3) == pytest.approx((0.1, 0.1, 0.1))


@settings(max_examples=200)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(0.01, 0.999))
def test_score_intervals_stay_within_the_scores(x, confidence):
    estimate, low, high = s.score_interval(x, confidence)
    assert min(x) - 1e-9 * abs(min(x)) <= low <= estimate <= high <= max(x) + 1e-9 * abs(max(x))


@pytest.mark.parametrize(("runs", "level"), [(2, "50 %"), (3, "75 %"), (4, "88 %"), (5, "94 %")])
def test_few_scores_span_the_truth_less_often_and_are_said_to(runs, level):
    assert s.confidence_text(runs) == level
    share = coverage(s.score_interval(np.random.default_rng(runs).normal(size=(runs, 20_000))), 0.0)
    assert share == pytest.approx(s.score_confidence(runs), abs=0.015)


@pytest.mark.parametrize("runs", [6, 10, 20])
def test_more_scores_have_intervals_as_good_as_uncut_ones(runs):
    assert s.confidence_text(runs) == "95 %"
    share = coverage(s.score_interval(np.random.default_rng(runs).normal(size=(runs, 20_000))), 0.0)
    assert share == pytest.approx(0.95, abs=0.01)


def test_paired_interval_is_that_of_the_differences():
    seeds = RNG.normal(0, 10, 6)
    x, y = seeds + RNG.normal(1, 0.1, 6), seeds + RNG.normal(0, 0.1, 6)
    expected = scipy.stats.ttest_rel(x, y).confidence_interval(0.9)
    np.testing.assert_allclose(s.paired_interval(x, y, 0.9), ((x - y).mean(), *expected))
    estimate, low, high = s.paired_interval(x, y)
    assert 0 < low < 1 < high and estimate == pytest.approx(1, abs=0.2)
    wide = s.mean_interval(x)
    assert high - low < (wide.high - wide.low) / 20


def test_paired_intervals_hold_the_truth_as_often_as_they_say():
    rng, n = np.random.default_rng(1), 20_000
    seeds = rng.exponential(10.0, (5, n))
    x, y = seeds + rng.normal(1, 1, (5, n)), seeds + rng.normal(0, 2, (5, n))
    assert abs(coverage(s.paired_interval(x, y), 1.0) - 0.95) < 4 * np.sqrt(0.05 * 0.95 / n)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (4,), (5,), (7, 3), (10, 26)])
def test_interquartile_mean_is_a_trimmed_mean(shape):
    x = RNG.normal(size=shape) ** 3
    np.testing.assert_allclose(
        s.interquartile_mean(x), scipy.stats.trim_mean(x, 0.25, axis=None), rtol=1e-12
    )


def test_interquartile_mean_by_hand():
    assert s.interquartile_mean([[100.0, 1.0], [2.0, -100.0]]) == 1.5


def test_interquartile_intervals_are_the_bootstraps_but_of_one_run():
    x = RNG.normal(size=(5, 3))
    expected = s.stratified_bootstrap(s.interquartile_mean, x, confidence=0.9, resamples=50)
    assert s.interquartile_interval(x, confidence=0.9, resamples=50) == expected
    alone = s.interquartile_interval(np.array([[1.0, 2.0, 3.0, 9.0]]))
    assert alone == (2.5, -np.inf, np.inf)


def test_column_intervals():
    values = RNG.normal(size=(6, 4))
    for got, expected in zip(s.column_intervals(values), s.score_interval(values), strict=True):
        np.testing.assert_allclose(got, expected)
    many = np.append(np.arange(8.0), np.nan)[:, None] ** 2
    robust = s.column_intervals(many, robust=True)
    assert robust.estimate == np.mean([4, 9, 16, 25])  # two of 8 are left out at each end
    assert 0 < robust.low[0] < robust.estimate < robust.high[0] < 49
    nothing = s.column_intervals(np.array([[1.0, np.inf], [-np.inf, np.nan]]))
    np.testing.assert_array_equal(nothing, [[1, np.nan], [np.nan, np.nan], [np.nan, np.nan]])


def test_final_scores_of_runs_that_diverged_are_the_lowest_of_all():
    curves = [[1, 5, 4], [3, np.nan, np.nan], [2, 2, 2]]
    np.testing.assert_array_equal(s.final_scores(curves), [4, 1, 2])


def test_performance_profile():
    x = np.array([[0.0, 1.0], [1.0, 3.0]])
    got = s.performance_profile(x, [-1.0, 0.0, 0.5, 1.0, 3.0])
    np.testing.assert_allclose(got, [1.0, 0.75, 0.75, 0.25, 0.0])  # strictly above
    x, thresholds = RNG.integers(0, 5, (6, 4)), np.linspace(-1, 6, 29)
    expected = [np.mean(x > t) for t in thresholds]
    np.testing.assert_allclose(s.performance_profile(x, thresholds), expected)
    assert s.performance_profile(x, [2, 0]).tolist() == [np.mean(x > 2), np.mean(x > 0)]


def test_probability_of_improvement_is_mann_whitneys():
    x, y = RNG.integers(0, 6, (5, 7)).astype(float), RNG.integers(1, 7, (4, 7)).astype(float)
    u = [scipy.stats.mannwhitneyu(x[:, m], y[:, m]).statistic / 20 for m in range(7)]
    np.testing.assert_allclose(s.probability_of_improvement(x, y), np.mean(u))
    np.testing.assert_allclose(s.probability_of_improvement(y, x), 1 - np.mean(u))


def test_probability_of_improvement_by_hand():
    assert s.probability_of_improvement([1.0, 2.0], [1.0, 1.0]) == 0.75  # ties count one half
    assert s.probability_of_improvement([[2.0, 0.0]], [[1.0, 1.0]]) == 0.5  # one task each
    assert s.probability_of_improvement([3.0], [3.0]) == 0.5


def test_bootstrap_of_a_mean_by_brute_force():
    x = np.array([0.0, 1.0, 5.0, 7.0])
    everything = [np.mean(draw) for draw in itertools.product(x, repeat=4)]
    expected = np.quantile(everything, [0.1, 0.9])
    estimate, low, high = s.stratified_bootstrap(np.mean, x, confidence=0.8, resamples=20_000)
    assert estimate == x.mean()
    np.testing.assert_allclose(
        (low, high), expected, atol=0.26
    )  # the distance between possible means


def test_bootstrap_draws_runs_and_keeps_tasks_apart():
    x = np.array([[0.0, 100.0, 7.0], [1.0, 101.0, 7.0], [2.0, 102.0, 7.0]])
    seen = []
    s.stratified_bootstrap(lambda x: seen.append(x) or x.mean(), x, resamples=300)
    draws = np.stack(seen[:300])
    for task in range(3):
        assert set(np.unique(draws[:, :, task])) == set(x[:, task])
    # each task is resampled independently, so a row may mix runs
    assert np.abs(np.corrcoef(draws[:, 0, 0], draws[:, 0, 1])[0, 1]) < 0.2
    low, high = s.stratified_bootstrap(lambda x: x.mean(0), x)[1:]
    assert low.shape == high.shape == (3,) and low[2] == high[2] == 7.0
    assert (low >= [0, 100, 7]).all() and (high <= [2, 102, 7]).all()


def test_bootstrap_draws_two_algorithms_apart_and_repeats_itself():
    x, y = RNG.normal(1, 1, (10, 8)), RNG.normal(0, 1, (6, 8))
    one = s.stratified_bootstrap(s.probability_of_improvement, x, y, resamples=500)
    assert one == s.stratified_bootstrap(s.probability_of_improvement, x, y, resamples=500)
    assert one != s.stratified_bootstrap(s.probability_of_improvement, x, y, resamples=500, seed=1)
    assert 0.5 < one.low < one.estimate < one.high < 1
    equal = s.stratified_bootstrap(lambda a, b: np.mean(a) - np.mean(b), x, x, resamples=500)
    assert equal.low < 0 < equal.high  # both are resampled independently


def test_bootstrap_agrees_with_scipys():
    x = RNG.normal(size=(40, 1))
    iqm = s.stratified_bootstrap(s.interquartile_mean, x, resamples=4000)
    scipys = scipy.stats.bootstrap(
        (x[:, 0],), s.interquartile_mean, vectorized=False, n_resamples=4000, method="percentile"
    ).confidence_interval
    width = scipys.high - scipys.low
    np.testing.assert_allclose((iqm.low, iqm.high), scipys, atol=0.1 * width)


@pytest.mark.slow
def test_bootstrapped_interquartile_means_hold_the_truth_about_as_often_as_they_say():
    """Draw 10 runs on 6 tasks from a symmetric distribution around its interquartile mean."""
    rng = np.random.default_rng(2)
    held = [
        s.stratified_bootstrap(s.interquartile_mean, rng.normal(size=(10, 6)), resamples=200)
        for _ in range(400)
    ]
    share = np.mean([low <= 0 <= high for _, low, high in held])
    assert 0.88 < share < 0.98


FUNCTIONS = {
    "mean": s.mean_interval,
    "rate": s.rate_interval,
    "paired": lambda x: s.paired_interval(x, x),
    "iqm": s.interquartile_mean,
    "profile": lambda x: s.performance_profile(x, [0.0]),
    "improvement": lambda x: s.probability_of_improvement(x, x),
    "bootstrap": lambda x: s.stratified_bootstrap(np.mean, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bad_scores_raise_an_error(name):
    function = FUNCTIONS[name]
    with pytest.raises(UserError, match=r"no scores: .* has shape \[0, 3\]"):
        function(np.zeros((0, 3)))
    with pytest.raises(UserError, match=r"2 of the 6 in .* are NaN or infinite"):
        function([[1.0, np.nan, 3.0], [np.inf, 5.0, 6.0]])
    with pytest.raises(UserError, match=r"1 of the 2 in .* is NaN"):
        function([1.0, np.nan])
    with pytest.raises(UserError, match="the single number 3"):
        function(3.0)


def test_other_bad_input_raises_an_error():
    with pytest.raises(UserError, match=r"not shapes \[2\] and \[3\]"):
        s.paired_interval([1, 2], [1, 2, 3])
    with pytest.raises(UserError, match="same tasks, not on 2 and 3"):
        s.probability_of_improvement(np.ones((4, 2)), np.ones((4, 3)))
    with pytest.raises(UserError, match="at least 2 runs; array 1 has 1"):
        s.stratified_bootstrap(s.probability_of_improvement, np.ones((4, 2)), np.ones((1, 2)))
    for confidence in (0.0, 1.0, 95):
        with pytest.raises(UserError, match=f"it is {confidence}"):
            s.mean_interval([1, 2], confidence)
        with pytest.raises(UserError, match=f"it is {confidence}"):
            s.stratified_bootstrap(np.mean, [1, 2], confidence=confidence)
    with pytest.raises(UserError, match=r"\[runs, tasks\]; x has shape \[2, 2, 2\]"):
        s.probability_of_improvement(np.ones((2, 2, 2)), np.ones((2, 2, 2)))
