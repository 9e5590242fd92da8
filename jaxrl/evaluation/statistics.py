"""Estimates from a handful of runs, with confidence intervals.

Scores are NumPy arrays `[runs]`, or `[runs, tasks]` for a suite. One run is one seed. The
aggregates over a suite are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the
Edge of the Statistical Precipice", NeurIPS (called "the paper" below).

Means of few seeds use Student's interval, not the bootstrap: resampling five numbers finds too
little spread, so that 95 % intervals contain the truth only about 83 % of the time (the tests
measure it). Statistics over a whole suite have more numbers and no formula, hence the bootstrap.

Wherever a mean score is printed or drawn its interval is `score_interval`: Student's, cut at the
lowest and the highest score. Tests of hypotheses use `mean_interval` and `paired_interval`, which
are not cut.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxrl.core.errors import UserError

# Metrics of an episode that are either a yes or no, or a share of the episode.
RATES = ("finished", "success", "won", "lost", "flight", "alternation")

_ROUNDING = 1e-6  # rounding error of a mean in float32


class Interval(NamedTuple):
    """An estimate and its confidence interval: floats, or arrays of one shape."""

    estimate: Any
    low: Any
    high: Any


def mean_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean over runs with Student's t-interval, `mean +- t * s / sqrt(n)`.

    Exact for normally distributed runs, and good down to very few of them. One run says nothing
    about the spread, so its interval is (-inf, inf). For bounded scores, such as a return that
    cannot exceed 500, it may end outside the bounds: use `score_interval` to report them.

    Args:
        x: scores, [runs] or [runs, ...], with a separate interval for each entry of [...].

    Returns:
        Interval of floats, or of arrays [...].

    Raises:
        UserError: if `x` is empty or not finite.
    """
    x = _scores("x", x)
    n, mean = len(x), x.mean(0)
    if n == 1:
        half = np.full_like(mean, np.inf)
    else:
        half = t_quantile(n - 1, confidence) * x.std(0, ddof=1) / math.sqrt(n)
    return _interval(mean, mean - half, mean + half)


def score_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean over runs with Student's t-interval, cut at the lowest and the highest score.

    It stays within the bounds of a score, whatever they are, since the scores do. From 6 runs on
    the cut costs nothing: 95 % intervals of normal scores hold the truth 94.5 to 95 % of the time,
    while a percentile bootstrap, which stays within the scores too, holds it 85 % of the time for 6
    and 90 % for 10 runs. Fewer runs span the truth less often, whatever the interval within them:
    `score_confidence` has how often. Equal scores have an interval of no width.

    Args:
        x: scores, [runs] or [runs, ...], with a separate interval for each entry of [...].

    Returns:
        Interval of floats, or of arrays [...]; (-inf, inf) for a single run.

    Raises:
        UserError: if `x` is empty or not finite.
    """
    x = _scores("x", x)
    mean, low, high = (np.asarray(part) for part in mean_interval(x, confidence))
    if len(x) == 1:
        return _interval(mean, low, high)
    # The mean of equal scores may differ from them by rounding.
    low = np.minimum(np.maximum(low, x.min(0)), mean)
    return _interval(mean, low, np.maximum(np.minimum(high, x.max(0)), mean))


def score_confidence(runs: int, confidence: float = 0.95) -> float:
    """The confidence that `score_interval` can have: that of n scores to span the truth, at most.

    n scores of a symmetric distribution have its mean between them with probability 1 - 2^(1 - n):
    0.5, 0.75, 0.875 and 0.9375 for 2 to 5 runs.
    """
    return min(confidence, 1 - 2.0 ** (1 - runs))


def confidence_text(runs: int, name: str = "") -> str:
    """Format the confidence of a 95 % interval of a score's mean over `runs`, such as `75 %`.

    name: name of the metric; rates, as in `metric_interval`, have 95 % for any number of runs.
    """
    return "95 %" if is_rate(name) else f"{100 * score_confidence(runs):.0f} %"


def rate_interval(x: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean over runs of values in [0, 1], with an interval inside [0, 1].

    If every run has 0 or 1, a failure or a success, the interval is Wilson's score interval
    (Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22).
    It has a width even after nothing but successes, and contains the truth about as often as it
    claims (Brown, Cai & DasGupta 2001, "Interval estimation for a binomial proportion",
    Statistical Science 16). For shares in between, such as the success rate of each seed, it is
    Student's interval of `mean_interval`, clipped to [0, 1]; since no mean lies outside, clipping
    loses no coverage.

    Args:
        x: [runs] or [runs, ...], with a separate interval for each entry of [...].

    Returns:
        Interval of floats, or of arrays [...].

    Raises:
        UserError: if `x` is empty or has values outside [0, 1] by more than rounding.
    """
    x = _scores("x", x)
    if x.min() < -_ROUNDING or x.max() > 1 + _ROUNDING:
        raise UserError(f"Rates lie between 0 and 1; x ranges from {x.min():g} to {x.max():g}.")
    x = np.clip(x, 0.0, 1.0)
    mean, low, high = (np.asarray(part) for part in mean_interval(x, confidence))
    n, z = len(x), NormalDist().inv_cdf((1 + confidence) / 2)
    center = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(mean * (1 - mean) / n + (z / (2 * n)) ** 2)
    outcomes = ((x == 0) | (x == 1)).all(0)
    low, high = np.where(outcomes, center - half, low), np.where(outcomes, center + half, high)
    # Wilson's ends, too, may lie a rounding error outside.
    return _interval(mean, np.clip(low, 0.0, mean), np.clip(high, mean, 1.0))


def metric_interval(name: str, x: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return `rate_interval` if the metric is a rate by its name and values, else `score_interval`.

    Args:
        name: name of an episode's metric, as reported by `evaluate` or the environment.
        x: scores, [runs] or [runs, ...].
    """
    x = np.asarray(x, np.float64)
    rate = is_rate(name) and np.all((x >= 0) & (x <= 1))
    return (rate_interval if rate else score_interval)(x, confidence)


def is_rate(name: str) -> bool:
    """Return whether a metric is a rate by its name.

    Rates are those in `RATES`, and names that begin with `contact_` (the share of an episode in
    which a foot touched the ground).
    """
    return name in RATES or name.startswith("contact_")


def paired_interval(x: ArrayLike, y: ArrayLike, confidence: float = 0.95) -> Interval:
    """The mean of `x - y` with Student's t-interval, where run i of both has the same seed.

    A seed's effect on both cancels in the difference, so if seeds matter the interval is narrower
    than for two separate groups. If it excludes 0, the two differ.

    Args:
        x, y: scores of the same seeds in the same order, [runs] or [runs, ...].

    Returns:
        Interval of floats, or of arrays [...].

    Raises:
        UserError: if the shapes differ, or if scores are empty or not finite.
    """
    x, y = _scores("x", x), _scores("y", y)
    if x.shape != y.shape:
        raise UserError(
            f"Paired scores need the same seeds on both sides, not shapes {list(x.shape)} and "
            f"{list(y.shape)}."
        )
    return mean_interval(x - y, confidence)


def interquartile_mean(x: ArrayLike) -> float:
    """The mean of the middle half of all scores, runs and tasks pooled (section 4.3 of the paper).

    At each end a quarter of the scores, rounded down, is left out: `trim_mean(x, 0.25)`.

    Args:
        x: scores, of any shape.

    Raises:
        UserError: if `x` is empty or not finite.
    """
    ordered = np.sort(_scores("x", x), axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def interquartile_interval(
    x: ArrayLike, confidence: float = 0.95, resamples: int = 2000
) -> Interval:
    """The `interquartile_mean` with the interval of `stratified_bootstrap`.

    One run says nothing about the spread, so its interval is (-inf, inf).

    Args:
        x: scores, [runs] or [runs, tasks].

    Raises:
        UserError: if `x` is empty or not finite.
    """
    if len(_scores("x", x)) == 1:
        return Interval(interquartile_mean(x), -math.inf, math.inf)
    return stratified_bootstrap(interquartile_mean, x, confidence=confidence, resamples=resamples)


def column_intervals(values: np.ndarray, robust: bool = False) -> Interval:
    """The `score_interval` of each column over the seeds that have a value there.

    Args:
        values: [seeds, K]; not finite where a seed has no value.
        robust: use `interquartile_interval` with 1,000 resamples instead.

    Returns:
        Interval of float64 [K] each: NaN where no seed has a value; `low` and `high` are NaN also
        where only one seed has a value.
    """
    columns = np.full((3, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        present = column[np.isfinite(column)]
        if present.size:
            columns[:, k] = (
                interquartile_interval(present, resamples=1000)
                if robust
                else score_interval(present)
            )
    columns[~np.isfinite(columns)] = np.nan
    return Interval(*columns)


def final_scores(curves: ArrayLike) -> np.ndarray:
    """The last score of each run; for runs that diverged, the lowest score of all runs.

    Args:
        curves: [runs, evaluations], NaN from the point where a run diverged.

    Returns:
        float64 [runs].
    """
    curves = np.asarray(curves, np.float64)
    last = curves[:, -1]
    return np.where(np.isfinite(last), last, np.nanmin(curves))


def performance_profile(x: ArrayLike, thresholds: ArrayLike) -> np.ndarray:
    """The share of scores above each threshold, over runs and tasks (section 4.2 of the paper).

    Args:
        x: scores, [runs] or [runs, tasks].
        thresholds: [K].

    Returns:
        Shares, float64 [K], which fall as the thresholds rise.

    Raises:
        UserError: if `x` is empty or not finite.
    """
    x, thresholds = _scores("x", x), np.asarray(thresholds, np.float64)
    below = np.searchsorted(np.sort(x, axis=None), thresholds, side="right")
    return (x.size - below) / x.size


def probability_of_improvement(x: ArrayLike, y: ArrayLike) -> float:
    """The probability that a run of `x` beats a run of `y`, averaged over tasks (the paper, 4.3).

    For each task it is the share of all pairs of runs that `x` wins, with ties counted as one
    half: the Mann-Whitney U statistic divided by the number of pairs.

    Args:
        x: scores, [runs] or [runs, tasks].
        y: scores of the other algorithm on the same tasks; its number of runs may differ.

    Raises:
        UserError: if the tasks differ, or the scores are empty or not finite.
    """
    x, y = _matrix("x", x), _matrix("y", y)
    if x.shape[1] != y.shape[1]:
        raise UserError(
            f"Two algorithms are compared on the same tasks, not on {x.shape[1]} and {y.shape[1]}."
        )
    wins = (x[:, None] > y[None]).mean() + 0.5 * (x[:, None] == y[None]).mean()
    return float(wins)


def stratified_bootstrap(
    statistic: Callable[..., Any],
    *scores: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """A percentile interval for any statistic of a suite (section 4.1 of the paper).

    Runs are resampled with replacement, independently for each task; tasks are not resampled, so
    the interval says what other seeds on these tasks would give. Several arrays are resampled
    independently.

        stratified_bootstrap(interquartile_mean, x)
        stratified_bootstrap(probability_of_improvement, x, y)
        stratified_bootstrap(lambda x: performance_profile(x, thresholds), x)

    With fewer than about 10 runs times tasks, intervals are too narrow.

    Args:
        statistic: function of as many arrays as `scores`, with the same shapes, that returns a
            number or an array [...].
        scores: each [runs] or [runs, tasks].
        resamples: number of resamples; the paper's figures used 50,000.
        seed: seed of NumPy's generator.

    Returns:
        Interval of floats, or of arrays [...].

    Raises:
        UserError: if scores are empty, not finite, or from a single run, which would resample to
            itself and look certain.
    """
    arrays = [_scores(f"array {i}", x) for i, x in enumerate(scores)]
    for i, x in enumerate(arrays):
        if len(x) < 2:
            raise UserError(f"A bootstrap needs at least 2 runs; array {i} has {len(x)}.")
    _check_confidence(confidence)
    generator = np.random.default_rng(seed)

    def resample(x: np.ndarray) -> np.ndarray:
        chosen = generator.integers(len(x), size=x.shape[:2])
        return x[(chosen, np.arange(x.shape[1])) if x.ndim > 1 else chosen]

    values = np.stack([statistic(*map(resample, arrays)) for _ in range(resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return _interval(np.asarray(statistic(*arrays), np.float64), low, high)


@functools.lru_cache
def t_quantile(degrees: int, confidence: float) -> float:
    """The t for which Student's t distribution has a probability of `confidence` in [-t, t].

    Found by bisection of its distribution function, which is a finite sum for integer degrees of
    freedom (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4).

    Args:
        degrees: degrees of freedom, at least 1.
        confidence: two-sided confidence level, in (0, 1).

    Raises:
        UserError: for a `confidence` outside (0, 1).
    """
    _check_confidence(confidence)
    low, high = 0.0, math.pi / 2  # bounds of the angle arctan(t / sqrt(degrees))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_between(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _t_between(angle: float, degrees: int) -> float:
    """P(|T| < t) with t = sqrt(degrees) * tan(angle)."""
    odd = degrees % 2
    # Factors of successive terms: 1/2, 3/4, 5/6... or, for odd degrees, 2/3, 4/5, 6/7...
    steps = np.arange(1 + odd, degrees - 2, 2)
    factors = steps / (steps + 1) * math.cos(angle) ** 2
    total = 1.0 + np.cumprod(factors).sum()
    if not odd:
        return math.sin(angle) * total
    if degrees == 1:
        return 2 / math.pi * angle
    return 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)


def _interval(estimate: np.ndarray, low: np.ndarray, high: np.ndarray) -> Interval:
    parts = (estimate, low, high)
    return Interval(*(map(float, parts) if np.ndim(estimate) == 0 else parts))


def _scores(name: str, x: ArrayLike) -> np.ndarray:
    """Return `x` as float64. Raise `UserError` unless it has an axis of runs and finite numbers."""
    x = np.asarray(x, np.float64)
    if x.ndim == 0:
        raise UserError(f"Scores have an axis of runs; {name} is the single number {x}.")
    if x.size == 0:
        raise UserError(f"There are no scores: {name} has shape {list(x.shape)}.")
    bad = x.size - int(np.isfinite(x).sum())
    if bad:
        verb = "is" if bad == 1 else "are"
        raise UserError(
            f"Scores are finite numbers; {bad} of the {x.size} in {name} {verb} NaN or infinite."
        )
    return x


def _matrix(name: str, x: ArrayLike) -> np.ndarray:
    """Return the scores as [runs, tasks], or raise `UserError`."""
    x = _scores(name, x)
    if x.ndim > 2:
        raise UserError(f"Scores are [runs] or [runs, tasks]; {name} has shape {list(x.shape)}.")
    return x.reshape(len(x), -1)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"A confidence lies between 0 and 1, such as 0.95; it is {confidence}.")
