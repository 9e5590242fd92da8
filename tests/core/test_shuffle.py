"""Shuffles are permutations, and the bijection has the statistics of the exact shuffle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrl.core import errors, random, shuffle

N, KEYS = 256, 8192


def permutations(method, n=N, keys=KEYS, seed=0):
    """Draw a permutation for each key: int [keys, n]."""
    many = jax.random.split(random.key(seed, "pcg"), keys)
    return np.asarray(jax.jit(jax.vmap(lambda key: shuffle.permutation(key, n, method)))(many))


@pytest.fixture(scope="module")
def both():
    return {method: permutations(method) for method in ("bijection", "exact")}


@pytest.mark.parametrize("power", range(17))
def test_bijection_has_every_row_once_for_every_power_of_two(power):
    rows = permutations("bijection", 2**power, max(4, 2**18 >> power >> 2))
    assert rows.dtype == np.int32
    assert (np.sort(rows, axis=1) == np.arange(2**power)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 1000, 1024])
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_other_sizes_are_permutations(method, n):
    rows = permutations(method, n, 16)
    assert rows.dtype == np.int32 and (np.sort(rows, axis=1) == np.arange(n)).all()


def test_auto_chooses_by_the_size():
    key = random.key(1)
    for n, method in {64: "bijection", 63: "exact"}.items():
        auto, named = (np.asarray(shuffle.permutation(key, n, m)) for m in ("auto", method))
        assert (auto == named).all()


@pytest.mark.slow
def test_keys_give_different_orders(both):
    assert len(np.unique(both["bijection"], axis=0)) == KEYS
    small = permutations("bijection", 4, 4096)
    assert len(np.unique(small, axis=0)) >= 8


def test_vmapped_is_looped():
    keys = jax.random.split(random.key(0, "pcg"), 5)
    looped = np.stack([shuffle.permutation(key, N, "bijection") for key in keys])
    assert (permutations("bijection", keys=5) == looped).all()


def test_each_row_lands_in_each_place_equally_often(both):
    rows = both["bijection"]
    p_values = [stats.chisquare(np.bincount(rows[:, i], minlength=N)).pvalue for i in range(N)]
    assert min(p_values) > 1e-5
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
    for n in (2, 4, 8, 16):
        first = permutations("bijection", n)[:, 0]
        assert stats.chisquare(np.bincount(first, minlength=n)).pvalue > 1e-4


@pytest.mark.parametrize("apart", [1, 2, 16, 128])
def test_neighbors_land_apart_as_under_exact_shuffles(both, apart):
    """Rows that were near each other (or half the batch apart) are at distances, around the circle,
    with the mean and spread of the exact shuffle, for each key and over keys."""
    for statistic in (np.mean, np.std):
        per_key = {}
        for method, rows in both.items():
            places = np.argsort(rows, axis=1)
            gap = np.abs(places[:, :-apart] - places[:, apart:])
            per_key[method] = statistic(np.minimum(gap, N - gap), axis=1)
        a, b = per_key["bijection"], per_key["exact"]
        assert abs(a.mean() / b.mean() - 1) < 0.01
        assert 0.9 < a.std() / b.std() < 1.12


def test_minibatches_of_two_keys_overlap_as_by_chance(both):
    """Two minibatches of 64 rows share 16 rows on average; the number is hypergeometric."""
    law = stats.hypergeom(N, N // 4, N // 4)
    for rows in both.values():
        member = np.zeros((KEYS, 4, N), np.float32)
        np.put_along_axis(member, rows.reshape(KEYS, 4, -1), 1, axis=2)
        overlap = np.einsum("kin,kjn->kij", member[::2], member[1::2]).reshape(-1)
        assert abs(overlap.mean() - law.mean()) < 1e-3
        assert abs(overlap.std() / law.std() - 1) < 0.01


@pytest.mark.parametrize("waves", [0.5, 1, 3, 32, 128])
def test_minibatch_means_of_a_signal_spread_as_under_exact_shuffles(both, waves):
    """Rollouts are smooth in time and across environments. The means of a wave along the rows, over
    minibatches, have mean 0 and, over keys, the spread of the exact shuffle."""
    signal = np.cos(2 * np.pi * waves * np.arange(N) / N)
    signal = (signal - signal.mean()) / signal.std()
    spread = {}
    for method, rows in both.items():
        means = signal[rows].reshape(KEYS, 4, -1).mean(axis=2)
        assert np.abs(means.mean(axis=0)).max() < 5 * means.std() / np.sqrt(KEYS)
        spread[method] = means.std()
    exact = np.sqrt((1 / 64) * (N - 64) / (N - 1))
    assert abs(spread["exact"] / exact - 1) < 0.02
    assert abs(spread["bijection"] / exact - 1) < 0.03


def test_fewer_rounds_would_not_do(both):
    """One round of the bijection keeps structure, so the comparisons above can fail."""
    keys = np.random.default_rng(0).integers(0, N, (KEYS, 2))
    weak = (np.arange(N) * (keys[:, :1] | 1) + keys[:, 1:]) % N
    spread = [np.cos(2 * np.pi * np.arange(N) / N)[r].reshape(-1, 4, 64).mean(2).std()
              for r in (weak, both["exact"])]  # fmt: skip
    assert abs(spread[0] / spread[1] - 1) > 0.1


def test_what_cannot_work_is_said_in_one_sentence():
    key = random.key(0)
    for n in (0, 3, 100):
        with pytest.raises(errors.UserError, match=f"that is a power of two, not {n};"):
            shuffle.permutation(key, n, "bijection")
    with pytest.raises(errors.UserError, match="Unknown shuffle method 'exakt'; did you mean"):
        shuffle.permutation(key, 4, "exakt")
    assert shuffle.permutation(key, 0).shape == (0,)


def test_bijection_compiles_to_no_sort():
    text = jax.jit(lambda key: shuffle.permutation(key, 4096)).lower(random.key(0, "pcg")).as_text()
    assert "sort" not in text and "gather" not in text
    assert jnp.issubdtype(shuffle.permutation(random.key(0), 4096).dtype, jnp.int32)
