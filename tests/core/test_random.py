"""The generator: its statistics, that no two streams share numbers, and the rules of jax.random."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import special, stats

from jaxrl.core import errors, random

N = 2**19
# Seeds are fixed, so no test is a matter of luck. There are about 2,000 p-values in all.
SMALLEST_P = 1e-6
bits = jax.vmap(lambda key: jax.random.bits(key, (), jnp.uint32))


# ---- a battery of tests on a stream of 32-bit words: each gives p-values ---------------------


def bit_balance(words):
    ones = np.array([((words >> b) & 1).sum() for b in range(32)])
    return 2 * stats.norm.sf(abs(ones - len(words) / 2) / np.sqrt(len(words) / 4))


def byte_frequencies(words):
    octets = words.view(np.uint8).reshape(-1, 4).T
    return [stats.chisquare(np.bincount(column, minlength=256)).pvalue for column in octets]


def uniform(words):
    return [stats.kstest((words + 0.5) / 2**32, "uniform").pvalue]


def normal_moments(words):
    normals, n = special.ndtri((words + 0.5) / 2**32), len(words)
    z = [
        normals.mean() * np.sqrt(n),
        ((normals**2).mean() - 1) * np.sqrt(n / 2),
        (normals**3).mean() * np.sqrt(n / 15),
        ((normals**4).mean() - 3) * np.sqrt(n / 96),
    ]
    return 2 * stats.norm.sf(np.abs(z))


def serial_correlation(words):
    center = ((words + 0.5) / 2**32 - 0.5) * np.sqrt(12)
    lags = [1, 2, 3, 4, 5, 7, 8, 16, 64, 256, 1024, 4096]
    z = [(center[:-k] * center[k:]).mean() * np.sqrt(len(words) - k) for k in lags]
    return 2 * stats.norm.sf(np.abs(z))


def runs(words):
    """Test the number of runs (Wald and Wolfowitz) at each bit position."""
    changes = words[1:] ^ words[:-1]
    return bit_balance(changes)


def consecutive_pairs(words):
    """Test the joint frequencies of the top, middle and bottom 5 bits of consecutive words."""
    p_values = []
    for shift in (27, 13, 0):
        digits = (words >> shift) & 31
        pairs = np.bincount(digits[:-1] * 32 + digits[1:], minlength=1024)
        p_values.append(stats.chisquare(pairs).pvalue)
    return p_values


@functools.partial(jax.jit, static_argnums=1)
def bit_products(words, lag):
    """Sum products of bits as -1 and 1, `lag` words apart: [32, 32], exact in float32."""
    signs = ((words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1) * jnp.float32(2) - 1
    return signs[: len(words) - lag].T @ signs[lag:]


def bit_correlations(words):
    """Test every bit of a word against every bit of the next word and the others of its own."""
    z = np.asarray(bit_products(words, 1)).ravel() / np.sqrt(len(words) - 1)
    own = np.asarray(bit_products(words, 0))[np.triu_indices(32, 1)] / np.sqrt(len(words))
    return 2 * stats.norm.sf(np.abs(np.concatenate([z, own])))


def birthday_spacings(words):
    """Marsaglia's test: equal gaps among sorted birthdays are Poisson with mean m^3 / (4 days), up
    to about a part in m, which would show with ten times as many words."""
    p_values = []
    for shift in (0, 8):
        days = (words >> shift) & 0xFFFFFF  # 2**24 days
        groups = np.sort(days[: len(days) // 512 * 512].reshape(-1, 512).astype(np.int64), axis=1)
        gaps = np.sort(np.diff(groups, axis=1), axis=1)
        equal, mean = (np.diff(gaps, axis=1) == 0).sum(), len(groups) * 512**3 / (4 * 2**24)
        p_values += two_sided_poisson(equal, mean)
    return p_values


def collisions(words):
    """Test the number of equal words, binomial with the mean of the birthday formula."""
    return two_sided_poisson(len(words) - len(np.unique(words)), len(words) ** 2 / 2**33)


def two_sided_poisson(count, mean):
    return [min(1, 2 * min(stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)))]


def matrix_ranks(words):
    """Test the ranks over GF(2) of 32 x 32 matrices of bits, which give linear generators away."""
    matrices = words[: len(words) // 32 * 32].reshape(-1, 32).copy()
    ranks = np.zeros(len(matrices), int)
    for b in range(32):
        has = ((matrices >> b) & 1).astype(bool)
        pivot, exists = has.argmax(1), has.any(1)
        row = np.where(exists, matrices[np.arange(len(matrices)), pivot], 0)
        matrices = np.where(has, matrices ^ row[:, None], matrices)
        ranks += exists
    observed = [(ranks == 32).sum(), (ranks == 31).sum(), (ranks < 31).sum()]
    expected = np.array([0.2887880952, 0.5775761902, 0.1336357146]) * len(matrices)
    return [stats.chisquare(observed, expected).pvalue]


BATTERY = [
    bit_balance,
    byte_frequencies,
    uniform,
    normal_moments,
    serial_correlation,
    runs,
    consecutive_pairs,
    bit_correlations,
    birthday_spacings,
    collisions,
    matrix_ranks,
]


def failures(words):
    words = np.ascontiguousarray(words, np.uint32)
    p_values = {test.__name__: np.min(test(words)) for test in BATTERY}
    return {name: p for name, p in p_values.items() if not p >= SMALLEST_P}  # nan fails


# ---- streams that a program would draw --------------------------------------------------------


def key_words(keys):
    return jax.random.key_data(keys).reshape(-1)


def counters():
    return jax.random.bits(random.key(1, "pcg"), (N,), jnp.uint32)


def pairs_of_one_key_each():
    keys = jax.random.split(random.key(2, "pcg"), N // 4)
    return jax.vmap(lambda key: jax.random.bits(key, (4,), jnp.uint32))(keys).reshape(-1)


def seeds():
    return bits(jax.vmap(lambda seed: random.key(seed, "pcg"))(jnp.arange(N)))


def seeds_words():
    return key_words(jax.vmap(lambda seed: random.key(seed, "pcg"))(jnp.arange(N // 2)))


def seeds_high_words():
    data = jax.vmap(random._mix_seed, (0, None))(jnp.arange(N, dtype=jnp.uint32), jnp.uint32(0))
    return bits(jax.random.wrap_key_data(data, impl=random.implementation("pcg")))


def splits():
    return bits(jax.random.split(random.key(3, "pcg"), N))


def splits_words():
    return key_words(jax.random.split(random.key(3, "pcg"), N // 2))


def folds():
    return bits(jax.vmap(jax.random.fold_in, (None, 0))(random.key(4, "pcg"), jnp.arange(N)))


def folds_words():
    keys = jax.vmap(jax.random.fold_in, (None, 0))(random.key(4, "pcg"), jnp.arange(N // 2))
    return key_words(keys)


def raw_keys():
    """Keys whose words count up; no program here makes them, but a user's may."""
    data = jnp.stack(jnp.divmod(jnp.arange(N, dtype=jnp.uint32), jnp.uint32(512)), axis=-1)
    return bits(jax.random.wrap_key_data(data, impl=random.implementation("pcg")))


def a_chain():
    """Words of one key that is carried through a scan and split in every step."""

    def step(key, _):
        key, sub = jax.random.split(key)
        return key, jax.random.bits(sub, (8,), jnp.uint32)

    return lax.scan(step, random.key(5, "pcg"), length=N // 8)[1].reshape(-1)


def training():
    """One number for each seed, step and environment, with environments adjacent."""
    return training_words(16, 32, N // 512)[..., 0].reshape(-1)


def training_words(seeds, steps, envs):
    """Draw words [seeds, steps, envs, 2] from keys that are derived as in a training run."""

    def one(seed, step):
        act, *_ = jax.random.split(jax.random.fold_in(random.key(seed, "pcg"), step), 3)
        return jax.vmap(lambda key: jax.random.bits(key, (2,), jnp.uint32))(
            jax.random.split(act, envs)
        )

    over_steps = jax.vmap(one, (None, 0))
    return jax.vmap(over_steps, (0, None))(jnp.arange(seeds), jnp.arange(steps))


def environments_across_steps():
    """The same words with steps adjacent, which tests the sequence of one environment."""
    return training_words(16, 512, N // 8192)[..., 0].transpose(0, 2, 1).reshape(-1)


STREAMS = [
    counters,
    pairs_of_one_key_each,
    seeds,
    seeds_words,
    seeds_high_words,
    splits,
    splits_words,
    folds,
    folds_words,
    raw_keys,
    a_chain,
    training,
    environments_across_steps,
]


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
def test_streams_pass_the_battery(stream):
    assert failures(jax.jit(stream)()) == {}


@pytest.mark.slow
def test_second_word_and_narrow_widths_pass_the_battery():
    key = jax.random.key_data(random.key(6, "pcg"))
    second = jax.jit(lambda: random._hash(*key, jnp.arange(N, dtype=jnp.uint32), random._BITS)[1])
    assert failures(second()) == {}
    for width in (8, 16):
        narrow = jax.random.bits(random.key(7, "pcg"), (N * 32 // width,), f"uint{width}")
        assert failures(np.asarray(narrow).view(np.uint32)) == {}


def test_words_that_belong_together_are_uncorrelated():
    """Neighboring seeds, splits, folds and counters are, and a key and the words that it draws."""

    def center(words):
        return (np.asarray(words) + 0.5) / 2**32 - 0.5

    key = random.key(8, "pcg")
    drawn = {
        "bits": jax.random.bits(key, (N,), jnp.uint32),
        "split": jax.random.key_data(jax.random.split(key, N))[:, 0],
        "split, second word": jax.random.key_data(jax.random.split(key, N))[:, 1],
        "fold_in": key_words(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(N)))[::2],
        "bits of splits": bits(jax.random.split(key, N)),
        "next seed's bits": jax.random.bits(random.key(9, "pcg"), (N,), jnp.uint32),
    }
    correlations = np.corrcoef([center(words) for words in drawn.values()])
    z = correlations[np.triu_indices(len(drawn), 1)] * np.sqrt(N)
    assert np.abs(z).max() < 4


def iterate(step, word=12345):
    """Return the words of a generator with one 32-bit word of state."""
    return lax.scan(lambda x, _: (step(x), step(x)), jnp.uint32(word), length=N)[1]


def xorshift(x):
    x = x ^ (x << 13)
    x = x ^ (x >> 17)
    return x ^ (x << 5)


@pytest.mark.slow
def test_the_battery_fails_bad_generators():
    """Some bad generator fails each test of the battery, so each test can fail."""
    congruential = failures(iterate(lambda x: x * np.uint32(1664525) + np.uint32(1013904223)))
    assert {"consecutive_pairs", "bit_correlations", "runs", "collisions"} <= set(congruential)
    assert {"matrix_ranks", "collisions"} <= set(failures(iterate(xorshift)))
    counting = failures(np.arange(N) * 2**13)
    assert {"birthday_spacings", "serial_correlation", "byte_frequencies"} <= set(counting)
    slightly_off = np.asarray(counters()).copy()
    slightly_off[::64] &= np.uint32(0xFFFFFFFE)
    assert "bit_balance" in failures(slightly_off)
    slightly_low = np.asarray(counters()) // 128 * 127
    assert {"uniform", "normal_moments"} <= set(failures(slightly_low))


# ---- avalanche: each input bit flips each output bit half of the time --------------------------


def flip_rates(function, inputs, word):
    """Return how often flipping a bit of inputs[word] flips each output bit, [32, 32 * outputs]."""

    def unpack(words):
        return ((words[..., None] >> jnp.arange(32, dtype=jnp.uint32)) & 1).reshape(len(words), -1)

    def rate(bit):
        flipped = [x ^ bit if i == word else x for i, x in enumerate(inputs)]
        changed = jnp.stack(function(*flipped), -1) ^ jnp.stack(function(*inputs), -1)
        return unpack(changed).mean(0, dtype=jnp.float32)

    return jax.jit(lambda: lax.map(rate, jnp.uint32(1) << jnp.arange(32, dtype=jnp.uint32)))()


SAMPLES = 2**14
# By chance, the largest of the 2,048 rates of a test is some 4 deviations off.
TOLERANCE = 5.5 * 0.5 / np.sqrt(SAMPLES)


def inputs(structured):
    first, second = np.random.default_rng(0).integers(0, 2**32, (2, SAMPLES), dtype=np.uint32)
    counter = np.arange(SAMPLES, dtype=np.uint32)
    return [jnp.asarray(x) for x in (0 * first if structured else first, second, counter)]


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("word", [0, 1, 2])
@pytest.mark.parametrize("domain", ["_BITS", "_SPLIT", "_FOLD_IN"])
def test_avalanche_of_keys_and_counters(domain, word, structured):
    def hash_words(k0, k1, counter):
        return random._hash(k0, k1, counter, getattr(random, domain))

    rates = flip_rates(hash_words, inputs(structured), word)
    assert np.abs(rates - 0.5).max() < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("word", [0, 1])
def test_avalanche_of_seeds(word):
    def mix_seeds(high, low):
        return tuple(jax.vmap(random._mix_seed)(high, low).T)

    both = inputs(False)[:2]
    small = [jnp.zeros(SAMPLES, jnp.uint32), jnp.arange(SAMPLES, dtype=jnp.uint32)]
    for words in (both, small):
        assert np.abs(flip_rates(mix_seeds, words, word) - 0.5).max() < TOLERANCE


@pytest.mark.slow
def test_the_published_two_rounds_do_not_avalanche():
    """Bit 31 of an input never reaches the low 15 output bits, so there is a third round."""

    def pcg4d(x, y, z):
        v = [u * random._MULTIPLIER + random._INCREMENT for u in (x, y, z, jnp.uint32(1))]
        for r in range(2):
            v[0] = v[0] + v[1] * v[3]
            v[1] = v[1] + v[2] * v[0]
            v[2] = v[2] + v[0] * v[1]
            v[3] = v[3] + v[1] * v[2]
            v = v if r else [u ^ (u >> np.uint32(16)) for u in v]
        return tuple(v)

    for word in range(3):
        rates = flip_rates(pcg4d, inputs(False), word).reshape(32, 4, 32)
        assert (rates[31, :, :15] == 0).all()


# ---- no two streams share numbers ---------------------------------------------------------------


def as_64_bit(words):
    return np.ascontiguousarray(words, np.uint32).reshape(-1, 2).view(np.uint64).reshape(-1)


@pytest.mark.slow
def test_no_two_seeds_steps_or_environments_share_numbers():
    words = jax.jit(training_words, static_argnums=(0, 1, 2))(64, 64, 256)
    drawn = as_64_bit(words)
    assert drawn.size == 64 * 64 * 256 and np.unique(drawn).size == drawn.size
    flat = np.asarray(words).reshape(-1)
    expected = flat.size**2 / 2**33
    assert abs(flat.size - np.unique(flat).size - expected) < 5 * np.sqrt(expected)


@pytest.mark.slow
def test_keys_of_a_training_run_are_distinct_at_every_level():
    seeds = jax.vmap(lambda seed: random.key(seed, "pcg"))(jnp.arange(64))
    steps = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(seeds, jnp.arange(64))
    parts = jax.vmap(jax.vmap(lambda key: jax.random.split(key, 4)))(steps)
    environments = jax.vmap(lambda key: jax.random.split(key, 32))(parts.reshape(-1))
    levels = [as_64_bit(jax.random.key_data(k)) for k in (seeds, steps, parts, environments)]
    everything = np.concatenate(levels)
    assert np.unique(everything).size == everything.size


def test_bits_split_and_fold_in_share_nothing():
    key, n = random.key(10, "pcg"), 2**16
    with x64():
        drawn = np.asarray(jax.random.bits(key, (n,), jnp.uint64))
    split = jax.random.key_data(jax.random.split(key, n))
    fold = jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n)))
    # As 64-bit words with their halves in one order: `bits` has its first word on top.
    words = [drawn, *(as_64_bit(np.asarray(data)[:, ::-1]) for data in (split, fold))]
    assert np.unique(np.concatenate(words)).size == 3 * n
    assert not np.array_equal(np.asarray(split[0]), np.asarray(jax.random.key_data(key)))


def test_every_seed_has_its_own_key():
    """Mixing seeds can be undone, up to 2**64 - 1, so no two seeds share a key by construction."""
    numbers = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    for generator in ("pcg", "threefry2x32"):
        words = [as_64_bit(jax.random.key_data(random.key(s, generator)))[0] for s in numbers]
        assert len(set(words)) == len(numbers)

    def unmix(x, y):
        inverse = pow(1664525, -1, 2**32)
        for _ in range(6):
            x, y = x ^ (x >> 16), y ^ (y >> 16)
            y = (y - x * 1664525) % 2**32
            x = (x - y * 1664525) % 2**32
        return ((y - 1013904223) * inverse % 2**32 << 32) + (x - 1013904223) * inverse % 2**32

    for number in numbers:
        words = np.asarray(jax.random.key_data(random.key(number, "pcg")))
        assert unmix(*map(int, words)) == number


# ---- jax.random's rules ------------------------------------------------------------------------


def x64():
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def same(a, b):
    a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in (a, b))  # fmt: skip
    return np.array_equal(np.asarray(a), np.asarray(b))


def hash_of_integers(k0, k1, counter, domain):
    """Compute the same hash with Python's integers."""
    m = 2**32
    x, y, z = ((v * 1664525 + 1013904223) % m for v in (k0, k1, counter))
    w = domain
    for _ in range(3):
        x = (x + y * w) % m
        y = (y + z * x) % m
        z = (z + x * y) % m
        w = (w + y * z) % m
        x, y, z, w = (v ^ (v >> 16) for v in (x, y, z, w))
    return x, y


def test_numbers_are_the_documented_ones_and_stay():
    """Pin the numbers: with another generator, old checkpoints and results would be other runs."""
    data = jax.random.key_data(random.key(2**40 + 5, "pcg"))
    assert same(data, np.array(GOLDEN_KEY, np.uint32))
    key, words = random.key(2**40 + 5, "pcg"), [int(word) for word in data]
    expected = [hash_of_integers(*words, i, int(random._BITS))[0] for i in range(6)]
    assert jax.random.bits(key, (2, 3), jnp.uint32).reshape(-1).tolist() == expected
    assert expected[:3] == GOLDEN_BITS
    split = jax.random.key_data(jax.random.split(key, (2, 2))).reshape(-1, 2).tolist()
    assert split == [list(hash_of_integers(*words, i, int(random._SPLIT))) for i in range(4)]
    fold = jax.random.key_data(jax.random.fold_in(key, 2**31 + 1)).tolist()
    assert fold == list(hash_of_integers(*words, 2**31 + 1, int(random._FOLD_IN)))


GOLDEN_KEY = [1390991275, 988153595]
GOLDEN_BITS = [3637226247, 3759744548, 454741145]


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_vmapped_is_looped_and_jitted_is_eager(width):
    with x64():
        draw = lambda key: jax.random.bits(key, (3, 5), f"uint{width}")
        keys = jax.random.split(random.key(11, "pcg"), (2, 4))
        looped = jnp.stack([jnp.stack([draw(key) for key in row]) for row in keys])
        assert looped.dtype == f"uint{width}" and len(np.unique(looped)) > 60
        assert same(jax.vmap(jax.vmap(draw))(keys), looped)
        assert same(jax.jit(jax.vmap(jax.vmap(draw)))(keys), looped)
        assert same(jax.vmap(jax.vmap(draw), in_axes=1, out_axes=1)(keys), looped)
        scanned = lax.scan(lambda _, key: (None, draw(key)), None, keys[0])[1]
        assert same(scanned, looped[0])


@pytest.mark.slow
def test_derived_keys_vmapped_are_looped():
    keys = jax.random.split(random.key(12, "pcg"), 5)
    split = lambda key: jax.random.split(key, (2, 3))
    assert same(jax.jit(jax.vmap(split))(keys), jnp.stack([split(key) for key in keys]))
    folded = [jax.random.fold_in(key, i) for i, key in enumerate(keys)]
    assert same(jax.vmap(jax.random.fold_in)(keys, jnp.arange(5)), jnp.stack(folded))
    assert same(jax.random.split(keys[0]), jax.random.split(keys[0], 5)[:2])
    seeds = jnp.array([0, 7, -1, 2**31 - 1], jnp.int32)
    for generator in ("pcg", "threefry2x32"):
        looped = jnp.stack([random.key(s, generator) for s in (0, 7, 2**32 - 1, 2**31 - 1)])
        make = lambda seed, generator=generator: random.key(seed, generator)
        assert same(jax.vmap(make)(seeds), looped)
        assert same(jax.jit(jax.vmap(make))(seeds.astype(jnp.uint32)), looped)
        with x64():
            wide = jnp.array([0, 7, 2**32 - 1, 2**31 - 1], jnp.int64)
            assert same(jax.vmap(make)(wide), looped)
            assert same(make(jnp.int64(2**40 + 3)), make(2**40 + 3))
            assert same(make(jnp.uint64(2**63 + 3)), make(2**63 + 3))


@pytest.mark.slow
def test_the_distributions_of_jax_random_run():
    key = random.key(13, "pcg")
    assert abs(jax.random.normal(key, (4096,)).std() - 1) < 0.05
    assert set(np.unique(jax.random.randint(key, (999,), -2, 3))) == {-2, -1, 0, 1, 2}
    logits = jnp.log(jnp.array([0.1, 0.2, 0.7]))
    frequencies = jnp.bincount(jax.random.categorical(key, logits, shape=(8192,)), length=3) / 8192
    np.testing.assert_allclose(frequencies, [0.1, 0.2, 0.7], atol=0.02)
    assert abs(jax.random.bernoulli(key, 0.3, (8192,)).mean() - 0.3) < 0.02
    assert abs(jax.random.gumbel(key, (8192,)).mean() - np.euler_gamma) < 0.05
    assert sorted(jax.random.permutation(key, 33).tolist()) == list(range(33))
    assert jax.random.choice(key, 5, (5,), replace=False).sum() == 10
    assert abs(jax.random.gamma(key, 2.0, (2048,)).mean() - 2) < 0.15
    assert jax.random.bits(key, (0, 3), jnp.uint32).shape == (0, 3)


def test_key_data_and_name_rebuild_a_key():
    for generator in ("pcg", "threefry2x32"):
        keys = jax.random.split(random.key(14, generator), 3)
        name, data = random.generator_name(keys), np.asarray(jax.random.key_data(keys))
        assert name == generator and data.shape == (3, 2)
        for impl in (name, random.implementation(name)):
            again = jax.random.wrap_key_data(data, impl=impl)
            assert again.dtype == keys.dtype
            assert same(bits(again), bits(keys))
    assert jax.random.key_impl(random.key(0, "pcg")) == "pcg"


def test_threefry_keys_are_those_of_jax():
    assert same(random.key(15, "threefry2x32"), jax.random.key(15, impl="threefry2x32"))
    assert same(random.key(np.int64(15), "threefry2x32"), random.key(15, "threefry2x32"))


def test_auto_is_chosen_by_the_backend(monkeypatch):
    for backend, name in {"cpu": "pcg", "gpu": "threefry2x32", "tpu": "threefry2x32"}.items():
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        assert random.default_generator() == name
        assert random.generator_name(random.key(0)) == name


def test_what_cannot_work_is_said_in_one_sentence():
    with pytest.raises(errors.UserError, match="Unknown generator 'pgc'; did you mean 'pcg'"):
        random.key(0, "pgc")
    for seed in (-1, 2**64, 1.5, "3", jnp.arange(2), jnp.float32(1), np.arange(2)):
        with pytest.raises(errors.UserError, match="A seed is one integer"):
            random.key(seed)
    too_many = jax.jit(lambda key: jax.random.bits(key, (2**17, 2**16), jnp.uint32))
    with pytest.raises(errors.UserError, match=r"at most 2\*\*32 numbers from one key"):
        too_many.lower(random.key(0, "pcg"))
    jax.jit(lambda key: jax.random.bits(key, (2**16, 2**16), jnp.uint8)).lower(random.key(0, "pcg"))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxrl.core import random

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
def draw(key):
    keys = jax.random.split(key, 64)
    keys = jax.lax.with_sharding_constraint(keys, NamedSharding(mesh, P("data")))
    return jax.random.normal(key, (64, 3)), jax.vmap(lambda k: jax.random.bits(k, (5,)))(keys)

key = random.key(0, "pcg")
sharded = jax.jit(draw, out_shardings=NamedSharding(mesh, P("data"))).lower(key).compile()
text = sharded.as_text()
assert not any(word in text for word in ("all-", "collective", "gather", "dynamic-slice"))
for a, b in zip(sharded(key), jax.jit(draw)(key)):
    assert len(a.addressable_shards) == 4 and a.addressable_shards[0].data.shape[0] == 16
    assert np.array_equal(np.asarray(a), np.asarray(b))
"""


@pytest.mark.slow
def test_sharded_numbers_are_the_same_and_nothing_is_gathered():
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=environment)
