"""The replay buffer, compared with everything that was ever collected."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import start_source
from jaxrl.core.types import Policy
from jaxrl.sources import episodes, proportional, replay, rollouts, samplers
from jaxrl.sources.packing import unpack
from tests.counting import counting

T, B, WINDOWS, N = 3, 4, 9, 256
HELD = 4  # windows that fit


def policy():
    """Make a policy whose memory counts the steps since its reset."""
    act = lambda state, timestep, memory, key, greedy: (memory % 3, memory + 1, {})
    return Policy(act, lambda n: jnp.zeros(n, jnp.int32), ())


def inner():
    return rollouts(counting(terminates_after=4, truncates_after=4), B, T)


def play(source, windows=WINDOWS):
    """Return the state, the fresh window and a batch after each collect, leading axis [windows]."""

    @jax.jit
    def run(key):
        init_key, key = jax.random.split(key)
        state = start_source(source, init_key, source.hyper, policy())

        def body(state, key):
            collect_key, sample_key = jax.random.split(key)
            state, fresh, _ = source.collect(state, policy(), collect_key)
            return state, (state, fresh, source.sample(state, fresh, sample_key))

        return state, jax.lax.scan(body, state, jax.random.split(key, windows))[1]

    first, rest = run(random.key(0))
    return jax.tree.map(np.asarray, (first, *rest))


def history(first, fresh):
    """Return all that was collected, in order: [steps, B]. The window of `init` comes first."""
    begin = jax.tree.map(lambda x: x[:T], unpack(first.transitions))
    join = lambda a, b: np.concatenate([a, b.reshape(-1, *b.shape[2:])])
    return jax.tree.map(join, begin, fresh.transitions)


@functools.cache
def play_source(length=None, keep_memory=False, shards=1):
    capacity = HELD * T * B + 1  # one too many: rounded down to whole windows
    return play(replay(inner(), capacity, N, length, keep_memory=keep_memory, num_shards=shards))


def places(batch, whole, upto):
    """Find the (step, stream) in the whole history [steps, B] at which each item of a batch [n]
    begins, by the noise in the observations, which no two steps share."""
    key = lambda x: x.next_timestep.observation[..., 2]
    lookup = {float(x): (t, b) for (t, b), x in np.ndenumerate(key(whole)[:upto])}
    begin = key(batch)[0] if key(batch).ndim == 2 else key(batch)
    return np.asarray([lookup[float(x)] for x in begin])


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_items_are_uniform_over_the_buffer(shards):
    first, _, fresh, batch = play_source(shards=shards)
    whole = history(first, fresh)
    for window in (0, 1, 2, 5, WINDOWS - 1):
        steps = (window + 2) * T
        item = jax.tree.map(lambda x: x[window], batch.transitions)  # noqa: B023
        at = places(item, whole, steps)
        oldest = max(0, steps - HELD * T)
        assert at[:, 0].min() >= oldest
        for a, b in zip(jax.tree.leaves(item), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(a, b[at[:, 0], at[:, 1]])
        counts = np.zeros((steps - oldest, B))
        np.add.at(counts, (at[:, 0] - oldest, at[:, 1]), 1)
        expected = N / counts.size
        assert ((counts - expected) ** 2 / expected).sum() < 2.5 * counts.size  # chi-squared
        shard = counts.reshape(steps - oldest, shards, -1).sum((0, 2))
        assert shards == 1 or (shard == N / shards).all()


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 5, HELD * T])
def test_windows_are_consecutive_steps_of_one_stream_and_never_cross_the_seam(length):
    source = replay(inner(), HELD * T * B, N, length, warmup=length * B)
    first, _, fresh, batch = play(source)
    begin = jax.tree.map(lambda x: x[: first.filled], unpack(first.transitions))
    join = lambda a, b: np.concatenate([a, b.reshape(-1, *b.shape[2:])])
    whole = jax.tree.map(join, begin, fresh.transitions)
    seen = set()
    for window in range(WINDOWS):
        steps = int(first.filled) + (window + 1) * T
        item = jax.tree.map(lambda x: x[window], batch.transitions)  # noqa: B023
        assert item.reward.shape == (length, N)
        at = places(item, whole, steps)
        rows = at[:, 0] + np.arange(length)[:, None]
        assert rows.max() < steps and at[:, 0].min() >= max(0, steps - HELD * T)
        for a, b in zip(jax.tree.leaves(item), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(a, b[rows, at[:, 1]])
        seen |= set(at[:, 0] - max(0, steps - HELD * T))
    assert len(seen) == HELD * T - length + 1  # every possible start


@pytest.mark.slow
def test_ends_of_episodes_inside_a_window():
    """The successor of the last step is the true one, and the next row opens the next episode."""
    _, _, _, batch = play(replay(inner(), HELD * T * B, N, 6, warmup=6 * B))
    x = jax.tree.map(lambda x: x[-1], batch.transitions)
    t = x.observation[..., 0]
    np.testing.assert_array_equal(t[1:], (t[:-1] + 1) % 4)
    np.testing.assert_array_equal(x.next_observation[..., 0], t + 1)
    np.testing.assert_array_equal(x.terminated, t == 3)
    np.testing.assert_array_equal(x.first, t == 0)
    same = x.observation[1:, :, 1] == x.observation[:-1, :, 1]  # the tag of the episode
    np.testing.assert_array_equal(same, ~x.first[1:])
    assert x.terminated.any()


@pytest.mark.slow
def test_memory_is_the_one_before_the_window():
    _, _, _, batch = play(
        replay(inner(), HELD * T * B, N, 2 * T, warmup=2 * T * B, keep_memory=True)
    )
    x = batch.transitions
    # The memory counts the steps of an episode; whatever acts resets it where `first` is set.
    t = x.observation[:, 0, :, 0]
    np.testing.assert_array_equal(np.where(x.first[:, 0], 0, batch.memory), t)
    assert (t > 0).any() and (batch.memory != t).any()
    slots = batch.index[0]
    assert slots.max() == HELD - 1 and slots.min() == 0


@pytest.mark.slow
def test_masks_of_whole_episodes_are_kept():
    env = counting(terminates_after=2)
    limited = env.__class__(**{**env.__dict__, "max_steps": 4})
    _, _, _, batch = play(replay(episodes(limited, B), 64, N), windows=2)
    t = batch.transitions.observation[..., 0]
    assert batch.mask.shape == t.shape and not batch.mask.all()
    assert (t[batch.mask] < 2).all()


# ------------------------------------------------------------------------------- priorities


def make_prioritized(exponent=0.7, importance=0.6, length=None, shards=1, **more):
    sampler = proportional(exponent, importance)
    return replay(inner(), HELD * T * B, N, length, sampler, num_shards=shards, **more)


def probabilities(state, draws, source, fresh):
    """Return the probability of each item, empirically and by the sampler, both [slots, B]."""
    batch = jax.jit(jax.vmap(lambda key: source.sample(state, fresh, key)))(
        jax.random.split(random.key(7), draws)
    )
    slot, column = np.asarray(batch.index[0]), np.asarray(batch.index[1])
    shards = slot.shape[1]
    column = column + np.arange(shards)[:, None] * (B // shards)
    rows = state.transitions.words.shape[0]
    counts = np.zeros((rows, B))
    np.add.at(counts, (slot.ravel(), column.ravel()), 1)
    return counts / counts.sum(), batch


@functools.cache
def fill(source, windows):
    state = start_source(source, random.key(0), source.hyper, policy())
    for key in jax.random.split(random.key(1), windows):
        state, fresh, _ = jax.jit(source.collect)(state, policy(), key)
    return state, fresh


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_draws_follow_the_priorities_and_weights_undo_them(shards):
    source = make_prioritized(shards=shards)
    state, fresh = fill(source, HELD)
    rows = HELD * T
    p = np.random.default_rng(0).uniform(0.1, 3, (rows, B)).astype(np.float32)
    slot, column = np.meshgrid(np.arange(rows), np.arange(B // shards), indexing="ij")
    each = np.broadcast_to(slot.ravel(), (shards, slot.size))
    priority = p.reshape(rows, shards, -1).swapaxes(0, 1)
    batch = source.sample(state, fresh, random.key(2))
    index = (jnp.asarray(each), jnp.broadcast_to(column.ravel(), each.shape))
    batch = batch.__class__(**{**batch.__dict__, "index": index})
    state = source.feedback(state, batch, {"priority": jnp.asarray(priority.reshape(-1))})

    empirical, drawn = probabilities(state, 200, source, fresh)
    mass = (p.astype(np.float64) + 1e-6) ** 0.7
    sums = mass.reshape(rows, shards, -1).sum((0, 2))
    expected = (mass.reshape(rows, shards, -1) / sums[:, None] / shards).reshape(rows, B)
    np.testing.assert_allclose(empirical, expected, atol=4 * np.sqrt(expected.max() / (200 * N)))
    # Section 3.4: w = (N P) ** -beta over its maximum.
    at = np.asarray(drawn.index[0][0]), np.asarray(drawn.index[1][0])
    whole = at[1] + np.arange(shards)[:, None] * (B // shards)
    w = (rows * B * expected[at[0], whole].ravel()) ** -0.6
    np.testing.assert_allclose(drawn.weight[0], w / w.max(), rtol=1e-4)


@pytest.mark.slow
def test_equal_priorities_draw_uniformly():
    """Draws are uniform, and weights are 1."""
    source = make_prioritized(exponent=0.6, importance=0.4)
    state, fresh = fill(source, HELD)
    empirical, batch = probabilities(state, 200, source, fresh)
    np.testing.assert_allclose(batch.weight, 1, rtol=1e-5)
    expected = 1 / empirical.size
    np.testing.assert_allclose(empirical, expected, atol=4 * np.sqrt(expected / (200 * N)))


@pytest.mark.slow
def test_an_item_that_is_overwritten_loses_its_priority():
    """The new item of a slot must not inherit the priority that an update gave the old one."""
    source = make_prioritized()
    state, fresh = fill(source, HELD)
    batch = source.sample(state, fresh, random.key(2))
    drawn = np.asarray(batch.index[0][0]), np.asarray(batch.index[1][0])
    high = (drawn[0] == 7) & (drawn[1] == 2)  # an item may be in the batch more than once
    state = source.feedback(state, batch, {"priority": jnp.where(high, 5.0, 1e-4)})
    ring = state.sampler.mass[0]
    np.testing.assert_allclose(ring[drawn] > 1, high)
    head = int(state.head)
    state, _, _ = source.collect(state, policy(), random.key(3))
    new = (head + np.arange(T)) % (HELD * T)
    largest = (5.0 + 1e-6) ** 0.7
    np.testing.assert_allclose(state.sampler.mass[0][new], largest, rtol=1e-6)
    old = np.setdiff1d(np.arange(HELD * T), new)
    np.testing.assert_array_equal(state.sampler.mass[0][old], ring[old])
    again = samplers.masses(state.sampler.mass[0])
    np.testing.assert_allclose(state.sampler.row_mass[0], again.row_mass, rtol=1e-6)
    np.testing.assert_allclose(state.sampler.block_mass[0], again.block_mass, rtol=1e-6)


@pytest.mark.slow
def test_windows_by_priority_never_cross_the_seam():
    source = make_prioritized(length=4, warmup=4 * B)
    state, fresh = fill(source, HELD + 2)
    empirical, _ = probabilities(state, 50, source, fresh)
    rows = HELD * T
    last = (int(state.head) - 1 - np.arange(3)) % rows  # too close to the newest step
    assert (empirical[last] == 0).all()
    assert (np.delete(empirical, last, 0) > 0).all()


@pytest.mark.slow
def test_an_item_without_mass_is_never_drawn():
    source = make_prioritized(exponent=1.0)
    state = start_source(source, random.key(0), source.hyper, policy())
    state, fresh, _ = source.collect(state, policy(), random.key(1))  # half full
    empirical, _ = probabilities(state, 50, source, fresh)
    assert (empirical[2 * T :] == 0).all() and (empirical[: 2 * T] > 0).all()


def test_the_importance_exponent_grows_to_one():
    values = {"importance": 0.4, "importance_steps": 100.0}
    hyper = {f"priorities.{name}": jnp.float32(value) for name, value in values.items()}
    weight = proportional().weight
    p = jnp.asarray([0.5, 0.25])
    for env_steps, exponent in ((0.0, 0.4), (50.0, 0.7), (100.0, 1.0), (900.0, 1.0)):
        w = weight(p, 4, jnp.float32(env_steps), hyper)
        np.testing.assert_allclose(w, np.asarray([2.0, 1.0]) ** -exponent, rtol=1e-6)


# ------------------------------------------------------------------------------- the rest


def test_steps_of_the_warm_up_are_counted():
    source = replay(inner(), HELD * T * B, N, warmup=2 * T * B + 1)
    assert source.env_steps == T * B and source.initial_env_steps == 3 * T * B
    state = jax.jit(lambda: start_source(source, random.key(0), {}, policy()))()
    assert state.filled == 3 * T and state.source.windows == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": 11}, "capacity is 11; .* needs at least 12"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_shards": 3}, "batch_size=256 does not divide into num_shards=3"),
        ({"length": 4}, "A window has 4 steps .* only 3 .* say warmup=16"),
        ({"length": 99, "warmup": 9999}, "capacity is 48; .* needs at least 396"),
        ({"keep_memory": True}, "keep_memory needs a length"),
        ({"warmup": -1}, "warmup must be at least 0"),
    ],
)
def test_bad_sizes_are_refused_in_one_sentence(settings, sentence):
    settings = {"capacity": HELD * T * B, "batch_size": N} | settings
    with pytest.raises(UserError, match=sentence):
        source = replay(inner(), **settings)
        jax.eval_shape(lambda key: start_source(source, key, {}, policy()), random.key(0))
