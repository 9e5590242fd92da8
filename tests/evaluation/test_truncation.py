"""Budgets of steps over trajectories of different lengths, against brute force."""

import itertools

import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.evaluation import truncation

GAMMA = 0.8


def squared_ranges(counts):
    """Sum the squared ranges of the contributions of all trajectories, one by one."""
    parts = GAMMA ** np.arange(len(counts)) / counts
    return sum(parts[:length].sum() ** 2 for length in truncation.lengths(counts))


def test_no_allocation_makes_the_interval_narrower():
    budget, horizon = 18, 4
    every = itertools.product(range(1, budget), repeat=horizon)
    legal = [np.array(c) for c in every if sum(c) == budget and (np.diff(c) <= 0).all()]
    best = min(legal, key=squared_ranges)
    found = truncation.allocation(budget, horizon, GAMMA)
    assert found.sum() == budget and found[0] > found[-1]
    np.testing.assert_allclose(squared_ranges(found), squared_ranges(best), rtol=1e-12)
    width = (truncation.importance(horizon, GAMMA) / found).sum()
    np.testing.assert_allclose(width, squared_ranges(found), rtol=1e-12)


def test_large_budgets_are_shared_as_the_closed_form_has_it():
    found = truncation.allocation(100_000, 10, GAMMA)
    np.testing.assert_allclose(found / 100_000, truncation.shares(10, GAMMA), atol=1e-4)


def test_the_estimate_reads_only_the_steps_that_were_played():
    counts = np.array([3, 2, 2, 1])
    assert truncation.lengths(counts).tolist() == [4, 3, 1]
    reward = np.full((3, 4), np.nan)
    reward[0], reward[1, :3], reward[2, :1] = [1, 2, 3, 4], [3, 4, 5], 5
    expected = GAMMA ** np.arange(4) @ [3, 3, 4, 4]
    np.testing.assert_allclose(truncation.truncated_return(reward, counts, GAMMA), expected)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: truncation.allocation(3, 4, 0.9), "budget is 3"),
        (lambda: truncation.importance(0, 0.9), "horizon is 0"),
        (lambda: truncation.importance(4, 1.1), "discount 1.1"),
        (lambda: truncation.lengths(np.array([1, 2])), "rise"),
    ],
)
def test_impossible_budgets_raise_an_error(call, said):
    with pytest.raises(UserError, match=said):
        call()
