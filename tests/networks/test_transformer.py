import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import memory as memories
from jaxrl.core import random, trees
from jaxrl.networks.transformer import Transformer

T, B, D, LENGTH = 9, 4, 8, 12
NETWORK = Transformer(D, LENGTH, layers=2, heads=2)


@functools.cache
def setup():
    """Return parameters, inputs, first steps within the window, and a mid-episode memory."""
    x = jax.random.normal(random.key(0), (T, B, D))
    # Two episodes begin in mid-window (one twice), one at the first step, and one spans the window.
    first = jnp.zeros((T, B), bool).at[(4, 2, 7, 0), (0, 1, 1, 2)].set(True)
    params = NETWORK.init(random.key(3), x[0], NETWORK.initial(B))
    memory = NETWORK.initial(B)
    for row in jax.random.normal(random.key(1), (3, B, D)):
        _, memory = step(params, row, memory)
    return params, x, first, memory


@jax.jit
def step(params, x, memory):
    return NETWORK.apply(params, x, memory)


@jax.jit
def unroll(params, x, first, memory):
    return NETWORK.apply(params, x, first, memory, method="unroll")


def assert_same_slots(found, expected):
    """Two caches [..., B] agree in all slots that are not hidden."""
    np.testing.assert_array_equal(found.position, expected.position)
    seen = (jnp.arange(LENGTH) < found.position[..., None])[..., None, :, None]
    for ours, theirs in zip(
        found.keys + found.values, expected.keys + expected.values, strict=True
    ):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(jnp.where(seen, ours, 0), jnp.where(seen, theirs, 0), atol=1e-5)


@pytest.mark.slow
def test_decoding_step_by_step_is_the_whole_window_at_once_with_resets_in_the_middle():
    params, x, first, memory = setup()
    features, memories = unroll(params, x, first, memory)
    probe = jax.random.normal(random.key(5), (B, D))
    for t in range(T):
        memory = trees.where(first[t], NETWORK.initial(B), memory)
        expected, memory = step(params, x[t], memory)
        np.testing.assert_allclose(features[t], expected, rtol=1e-5, atol=1e-5)
        after = jax.tree.map(lambda leaf: leaf[t], memories)  # noqa: B023
        assert_same_slots(after, memory)
        # Both give the same results for whatever comes next.
        np.testing.assert_allclose(
            step(params, probe, after)[0], step(params, probe, memory)[0], atol=1e-5
        )


def test_position_zero_hides_an_old_episode_in_the_cache():
    params, x, first, memory = setup()
    assert all((jnp.abs(keys[:, :, :3]) > 0).all() for keys in memory.keys)
    emptied = dataclasses.replace(memory, position=jnp.zeros(B, jnp.int32))
    begun = emptied, NETWORK.initial(B)
    for t in range(3):
        results = [step(params, x[t], m) for m in begun]
        np.testing.assert_array_equal(results[0][0], results[1][0])
        begun = [m for _, m in results]
    again = unroll(params, x, first, emptied)[0]
    np.testing.assert_array_equal(again, unroll(params, x, first, NETWORK.initial(B))[0])
    # In mid-episode the cache does matter.
    assert (again[0] != unroll(params, x, first, memory)[0][0]).any(-1).tolist() == [1, 1, 0, 1]


def test_a_cache_gives_what_is_computed_from_scratch():
    """Every step is the last one of its text, read at once without any cache; beyond the length
    the last slot is overwritten."""
    params = setup()[0]
    x = jax.random.normal(random.key(6), (LENGTH + 2, B, D))
    begins = jnp.zeros((LENGTH, B), bool).at[0].set(True)
    memory = NETWORK.initial(B)
    blank = memories.shrink(memory)
    for t in range(LENGTH):
        found, memory = step(params, x[t], memory)
        if t in (0, 1, 5, LENGTH - 1):
            alone = NETWORK.apply(params, x[: t + 1], begins[: t + 1], blank, method="unroll")[0]
            np.testing.assert_allclose(found, alone[-1], rtol=1e-5, atol=1e-5)
    _, after = step(params, x[LENGTH], memory)
    assert (after.position == LENGTH + 1).all()
    for new, old in zip(after.keys, memory.keys, strict=True):
        changed = (new != old).any((0, 1, 3))
        assert changed.tolist() == [slot == LENGTH - 1 for slot in range(LENGTH)]


def test_whole_episodes_need_no_slots_for_earlier_steps():
    params, x, first, _ = setup()
    first = first.at[0].set(True)
    blank = NETWORK.initial(B)
    none = memories.shrink(blank)
    assert [x.shape for x in (*none.keys, *none.values)] == [(B, 2, 0, D // 2)] * 4
    (features, after), (expected, expected_after) = (
        unroll(params, x, first, memory) for memory in (none, blank)
    )
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    assert_same_slots(after, expected_after)


def test_beginnings_are_read_at_once_as_step_by_step():
    params, x, _, used = setup()
    blank = used.restart(jnp.ones(B, bool))  # what it contains of an old episode is hidden
    features, after = jax.jit(lambda x: NETWORK.apply(params, x, blank, method="read"))(x[:5])
    memory = blank
    for t in range(5):
        expected, memory = step(params, x[t], memory)
        np.testing.assert_allclose(features[t], expected, atol=1e-5)
    assert_same_slots(after, memory)
    following = step(params, x[5], after)[0]
    np.testing.assert_allclose(following, step(params, x[5], memory)[0], atol=1e-5)


def test_an_episode_begins_at_position_zero_and_nothing_is_overwritten():
    params, x, _, memory = setup()
    first = jnp.array([True, False, False, True])
    begun = memories.restart(first, NETWORK.initial(B), memory)
    kept = zip(begun.keys + begun.values, memory.keys + memory.values, strict=True)
    assert all(new is old for new, old in kept)
    assert begun.position.tolist() == [0, 3, 3, 0]
    blank = trees.where(first, NETWORK.initial(B), memory)
    for row in x[:5]:
        (found, begun), (expected, blank) = step(params, row, begun), step(params, row, blank)
        np.testing.assert_array_equal(found, expected)


def test_a_loop_of_steps_copies_no_cache():
    """Only slots are written; copying the cache at each step would cost its length."""
    network = Transformer(D, 50, layers=2, heads=2)
    params = setup()[0]["params"] | {"positions": jnp.zeros((50, D))}

    def run(memory, x, first):
        def body(memory, given):
            row, first = given
            memory = memories.restart(first, network.initial(B), memory)
            features, memory = network.apply({"params": params}, row, memory)
            return memory, features

        return jax.lax.scan(body, memory, (x, first))

    memory = network.initial(B)
    x, first = jnp.zeros((30, B, D)), jnp.zeros((30, B), bool)
    program = jax.jit(run, donate_argnums=0).lower(memory, x, first).compile().as_text()
    copied = re.findall(r"\w+\[([\d,]+)\]\S* (?:copy|select)\(", program)
    sizes = [math.prod(map(int, shape.split(","))) for shape in copied]
    assert max(sizes, default=0) < memory.keys[0].size


@pytest.mark.slow
def test_the_future_does_not_leak():
    params, x, first, memory = setup()
    features = unroll(params, x, first, memory)[0]
    for t in (1, 5):
        changed = unroll(params, x.at[t + 1 :].add(1.0), first, memory)[0]
        np.testing.assert_array_equal(changed[: t + 1], features[: t + 1])
        assert (changed[t + 1 :] != features[t + 1 :]).any(-1).all()
    uneven = jnp.arange(D) ** 2  # the sum of normalized features is 0
    loss = lambda x: (uneven * unroll(params, x, first, memory)[0][5]).sum()
    gradient = jax.jit(jax.grad(loss))(x)
    assert (gradient[6:] == 0).all() and (gradient[5] != 0).any(-1).all()
    # An episode sees only its own past steps.
    seen = (gradient != 0).any(-1)
    np.testing.assert_array_equal(seen[:, 0], np.arange(T) // 2 == 2)  # began at 4
    np.testing.assert_array_equal(seen[:, 1], (np.arange(T) >= 2) & (np.arange(T) <= 5))
    np.testing.assert_array_equal(seen[:, 3], np.arange(T) <= 5)
