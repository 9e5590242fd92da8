"""Successive halving and population based training: decisions against brute force."""

import itertools

import numpy as np
import pytest

from jaxrl.sweeps import selection
from jaxrl.sweeps.points import Values

VARIED = {"rate": Values((), 0.1, 10.0, log=True), "clip": Values.of([0.1, 0.2, 0.4])}


@pytest.mark.parametrize(
    ("steps", "points", "eta", "ends"),
    [
        (81, 27, 3, [3, 9, 27, 81]),  # Li et al. 2018, Table 1: r_i of the bracket of 27 and up
        (100, 8, 2, [13, 25, 50, 100]),
        (100, 7, 2, [25, 50, 100]),
        (100, 2, 3, [100]),
    ],
)
def test_rungs(steps, points, eta, ends):
    assert selection.rungs(steps, points, eta) == ends


@pytest.mark.parametrize("eta", [2, 3])
def test_the_best_by_brute_force(eta):
    for scores in itertools.product([0.0, 1.0, 2.0, np.nan], repeat=5):
        kept = selection.best(np.array(scores), eta)
        finite = [i for i in range(5) if np.isfinite(scores[i])]
        place = [(score, -i) for i, score in enumerate(scores)]  # the first of equal scores
        ranks = {i: sum(place[j] > place[i] for j in finite) for i in finite}
        assert kept == [i for i in finite if ranks[i] < 5 // eta]


def test_one_point_goes_on_where_eta_is_more_than_there_are():
    assert selection.best(np.array([1.0, 3.0, 2.0]), 5) == [1]


def population(n, seed):
    rng = np.random.default_rng(seed)
    hyper = {"rate": np.exp(rng.normal(size=n)), "clip": rng.choice([0.1, 0.2, 0.4], n)}
    return rng.permutation(n).astype(float), hyper


@pytest.mark.parametrize("n", [2, 5, 9, 10, 11])
def test_the_worst_fifth_copies_of_the_best_fifth(n):
    fifth = {2: 1, 5: 1, 9: 2, 10: 2, 11: 3}[n]
    seen = set()
    for seed in range(40):
        scores, hyper = population(n, seed)
        rng = np.random.default_rng(seed)
        parents, new = selection.exchange(scores, hyper, VARIED, rng)
        again = selection.exchange(scores, hyper, VARIED, np.random.default_rng(seed))
        assert parents == again[0] and all((new[k] == again[1][k]).all() for k in new)
        for i, parent in enumerate(parents):
            if scores[i] < fifth:  # the scores are the ranks
                assert scores[parent] >= n - fifth
                seen.add((scores[i], scores[parent]))
            else:
                assert parent == i and all(new[k][i] == hyper[k][i] for k in new)
    assert len(seen) == fifth * fifth  # every one of the best is copied by every one of the worst


def test_copies_are_perturbed_within_the_ranges_or_drawn_anew():
    factors, anew = [], 0
    for seed in range(400):
        scores, hyper = population(5, seed)
        parents, new = selection.exchange(scores, hyper, VARIED, np.random.default_rng(seed))
        (copy,) = (i for i in range(5) if parents[i] != i)
        old, now = hyper["rate"][parents[copy]], new["rate"][copy]
        factor = now / old
        near = [x for x in (0.8, 1.2) if abs(factor - x) < 1e-6]
        factors += near
        anew += not near
        assert 0.1 <= now <= 10 and 0.1 <= new["clip"][copy] <= 0.4
    assert 0.2 < anew / 400 < 0.3  # 0.25; few are clipped
    assert 0.4 < np.mean(np.array(factors) == 0.8) < 0.6


def test_what_diverged_is_replaced_and_never_copied():
    scores = np.array([np.nan, 5.0, np.nan, np.nan, 4.0, np.nan])
    hyper = {"rate": np.ones(6), "clip": np.full(6, 0.2)}
    parents, _ = selection.exchange(scores, hyper, VARIED, np.random.default_rng(0))
    assert set(parents) <= {1, 4} and parents[1] == 1 and parents[4] == 4
    parents, new = selection.exchange(scores * np.nan, hyper, VARIED, np.random.default_rng(0))
    assert parents == list(range(6)) and (new["rate"] == 1).all()
