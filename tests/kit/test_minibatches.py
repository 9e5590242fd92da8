import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.kit import minibatches as mb

T, B = 6, 8


def window():
    """Make a batch whose entries say where they lie."""
    t, b = jnp.meshgrid(jnp.arange(T), jnp.arange(B), indexing="ij")
    return {"place": jnp.stack([t, b], -1), "one": 100 * t + b}


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("method", ["exact", "auto"])
def test_every_epoch_takes_every_row_once(shards, sequences, minibatches, method):
    epochs = 3
    unit = mb.Unit(sequences)
    rows = mb.to_rows(window(), shards, unit)
    count = rows["one"].shape[1]
    assert count == B // shards * (1 if sequences else T)
    index = mb.indices(random.key(0), count, shards, epochs, minibatches, method)
    assert index.shape == (epochs * minibatches, shards, count // minibatches)
    for epoch in range(epochs):
        seen = []
        for i in range(minibatches):
            batch = mb.from_rows(mb.take(rows, index[epoch * minibatches + i]), unit)
            rows_taken = shards * count // minibatches
            assert batch["one"].shape == ((T, rows_taken) if sequences else (rows_taken,))
            np.testing.assert_array_equal(
                batch["one"], 100 * batch["place"][..., 0] + batch["place"][..., 1]
            )
            if sequences:
                np.testing.assert_array_equal(
                    batch["place"][..., 0], np.arange(T)[:, None].repeat(batch["one"].shape[1], 1)
                )
                assert (batch["place"][:, :, 1] == batch["place"][:1, :, 1]).all()
            # Equally many of every shard, so that no device needs another's.
            owner = np.asarray(batch["place"])[..., 1] // (B // shards)
            assert (np.bincount(owner.ravel(), minlength=shards) == owner.size // shards).all()
            seen.append(np.asarray(batch["one"]).ravel())
        assert sorted(np.concatenate(seen)) == sorted(np.asarray(window()["one"]).ravel())


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("sequences", [False, True])
def test_groups_of_environments_stay_whole_and_side_by_side(shards, sequences):
    unit = mb.Unit(sequences, columns=2)
    rows = mb.to_rows(window(), shards, unit)
    count = rows["one"].shape[1]
    assert count == B // shards // 2 * (1 if sequences else T)
    index = mb.indices(random.key(0), count, shards, 1, 2)
    seen = []
    for one in index:
        batch = mb.from_rows(mb.take(rows, one), unit)
        t, b = np.moveaxis(np.asarray(batch["place"]), -1, 0)
        assert t.shape == ((T, shards * count) if sequences else (shards * count,))
        np.testing.assert_array_equal(batch["one"], 100 * t + b)
        first, second = b[..., 0::2], b[..., 1::2]
        np.testing.assert_array_equal(second, first + 1)  # the pair (2 i, 2 i + 1)
        assert (first % 2 == 0).all()
        np.testing.assert_array_equal(t[..., 0::2], t[..., 1::2])
        seen.append(np.asarray(batch["one"]).ravel())
    assert sorted(np.concatenate(seen)) == sorted(np.asarray(window()["one"]).ravel())


def test_groups_that_a_shard_would_tear_are_refused():
    with pytest.raises(UserError, match="4 environments per shard do not divide into groups of 3"):
        mb.check(8, 6, 1, 2, mb.Unit(columns=3))


def test_the_rows_of_a_shard_are_its_environments():
    rows = mb.to_rows(window(), 4)
    for shard in range(4):
        assert set(np.asarray(rows["place"][shard, :, 1])) == {2 * shard, 2 * shard + 1}


def test_sequences_of_one_step_keep_their_shape():
    """The memory at a window's start is such a sequence."""
    memory = jnp.arange(B * 3).reshape(1, B, 3)
    rows = mb.to_rows(memory, 2, mb.SEQUENCE)
    assert rows.shape == (2, B // 2, 1, 3)
    back = mb.from_rows(mb.take(rows, jnp.array([[0, 2], [1, 3]])), mb.SEQUENCE)
    np.testing.assert_array_equal(back, memory[:, jnp.array([0, 2, 5, 7])])


def test_epochs_and_shards_have_permutations_of_their_own():
    index = mb.indices(random.key(0), 64, 2, 3, 4)
    orders = {
        tuple(np.asarray(index[4 * e : 4 * e + 4, s]).ravel()) for e in range(3) for s in range(2)
    }
    assert len(orders) == 6
    again = mb.indices(random.key(1), 64, 2, 3, 4)
    assert (index != again).any()


def test_what_does_not_divide():
    mb.check(8, 6, 3, 2)
    with pytest.raises(UserError, match="num_envs=8 does not divide into num_shards=3"):
        mb.check(8, 6, 1, 3)
    with pytest.raises(UserError, match=r"48 steps .* minibatches=5; .* divides 48"):
        mb.check(8, 6, 5, 1)
    with pytest.raises(UserError, match=r"4 sequences .* minibatches=3"):
        mb.check(8, 6, 3, 2, mb.SEQUENCE)


@pytest.mark.parametrize(
    ("chunk_rows", "rows", "steps", "expected"),
    [
        (0, 9999, 1, 0),  # all
        (-1, 2048, 1, 0),  # within a CPU's cache
        (-1, 8192, 1, 2048),
        (-1, 6000, 1, 2000),  # the largest divisor
        (-1, 4 * 1009, 1, 2018),
        (-1, 4099, 1, 0),  # a prime: as one
        (-1, 96, 64, 32),  # 2048 steps of sequences of 64
        (100, 300, 1, 100),
        (100, 300, 50, 2),
        (100, 50, 1, 0),
    ],
)
def test_how_many_rows_a_gradient_takes_at_once(chunk_rows, rows, steps, expected):
    assert mb.chunk(chunk_rows, rows, steps) == expected


def test_a_number_of_rows_that_does_not_divide():
    with pytest.raises(UserError, match="chunk_rows=7 does not divide a minibatch of 20 rows"):
        mb.chunk(7, 20)


@pytest.mark.parametrize("seed", range(5))
def test_packed_episodes_are_whole_and_fill_few_columns(seed):
    """Every step lies in one place; an episode's steps lie one below the other, in few columns: at
    most 11/9 of the fewest, and 6/9 (Dosa, 2007)."""
    time, columns = 7, 40
    lengths = np.random.default_rng(seed).integers(1, time + 1, columns)
    running = np.arange(time)[:, None] < lengths
    origin, used = map(np.asarray, jax.jit(mb.pack)(jnp.asarray(running)))
    places = {int(o): np.argwhere(origin == o) for o in origin[origin >= 0]}
    assert all(len(found) == 1 for found in places.values())
    assert set(places) == set(np.flatnonzero(running))
    for i, length in enumerate(lengths):
        begin = places[i][0]
        for t in range(length):
            np.testing.assert_array_equal(places[t * columns + i][0], begin + np.array([t, 0]))
    assert (origin[:, used:] < 0).all() and (origin[0, :used] >= 0).all()
    assert used <= 11 / 9 * -(-lengths.sum() // time) + 6 / 9
    values = np.arange(running.size).reshape(running.shape)
    moved = np.asarray(mb.move(values, origin))
    np.testing.assert_array_equal(moved[origin >= 0], origin[origin >= 0])
    of_columns = np.asarray(mb.move(np.arange(columns)[None], origin))
    np.testing.assert_array_equal(of_columns[origin >= 0], origin[origin >= 0] % columns)
