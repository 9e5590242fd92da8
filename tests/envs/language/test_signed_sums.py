"""Signed sums: answers, traces and mixtures against enumeration, and the split of prompts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.signed_sums import best_traces, smallest_sum, split_numbers
from tests.envs.language.play import follow_expert, reset

ENV = envs.make("signed_sums", numbers=3, largest=4)
SIZE, ZERO = 4 + 25, 4 + 12


def traces_of(numbers):
    """Partial sums of all signs, the best first."""
    signs = itertools.product((-1, 1), repeat=len(numbers))
    sums = [
        list(itertools.accumulate(s * n for s, n in zip(x, numbers, strict=True))) for x in signs
    ]
    return sorted(sums, key=lambda x: (abs(x[-1]), x[-1] < 0))


@pytest.mark.parametrize("traces", [1, 3, 1024])
def test_the_expert_follows_the_best_traces(traces):
    env = envs.make("signed_sums", numbers=3, largest=4, traces=traces)
    state, steps = follow_expert(env, 40)
    seen = np.asarray(steps.observation)
    assert seen.shape == (40, 5, SIZE) and (steps.reward[:, -1] == 1).all()
    for numbers, said in zip(np.asarray(state.numbers), seen, strict=True):
        ways = traces_of(numbers)
        expected = np.zeros((5, SIZE))
        expected[[0, 1], numbers[1:] - 1] = 1
        for step in (0, 1):
            for way in ways[:traces]:
                expected[2 + step, ZERO + way[step]] += 1 / min(traces, 8)
        expected[4, ZERO + min(w[-1] for w in ways if w[-1] >= 0)] = 1
        np.testing.assert_allclose(said, expected, atol=1e-6)


def test_the_smallest_sum_of_all_numbers():
    numbers = np.array(list(itertools.product(range(1, 5), repeat=3)))
    found = jax.vmap(smallest_sum)(numbers)
    expected = [min(w[-1] for w in traces_of(x) if w[-1] >= 0) for x in numbers]
    np.testing.assert_array_equal(found, expected)
    assert int(best_traces(jnp.array([2, 1, 3]), 5)[1].sum()) == 5


def test_mixtures_are_read_and_the_likeliest_token_is_the_answer():
    state, _ = reset(ENV, 8)
    best = np.asarray(jax.vmap(smallest_sum)(state.numbers)) + ZERO
    rng = np.random.default_rng(0)
    action = rng.normal(size=(8, 5, SIZE)).astype(np.float32)
    action[0, 2] = -1  # nothing is said
    action[np.arange(8), 4, best] = np.repeat([9, -9], 4)
    steps = play(state, action)
    weight = np.maximum(action[:, 2:], 0)
    weight = np.where(weight.sum(-1, keepdims=True) > 0, weight, 1)
    said = weight / weight.sum(-1, keepdims=True)
    np.testing.assert_allclose(steps.observation[:, 2:], said, rtol=1e-5)
    for k in (0, 1):
        np.testing.assert_array_equal(
            steps.observation[:, k].argmax(-1), state.numbers[:, k + 1] - 1
        )
    hit = np.arange(8) < 4
    np.testing.assert_array_equal(steps.reward[:, -1], hit)
    np.testing.assert_array_equal(steps.metrics["success"][:, -1], hit)
    assert not np.asarray(steps.reward)[:, :-1].any()
    np.testing.assert_array_equal(steps.terminated, np.arange(5) == 4 + 0 * steps.reward)


def play(state, actions):
    """Play given actions [N, T, V], none of which is the expert's."""
    step = lambda state, action: ENV.step(jax.random.key(0), state, action, ENV.params)
    return jax.vmap(lambda state, actions: jax.lax.scan(step, state, actions)[1])(state, actions)


def test_no_held_out_multiset_is_asked_in_training():
    split = split_numbers(3, 4)
    digits = np.sort(np.stack([split.order // 16, split.order // 4 % 4, split.order % 4], 1), 1)
    held_out = {tuple(x) for x in digits[-split.held_out :]}
    training = {tuple(x) for x in digits[: -split.held_out]}
    assert sorted(split.order) == list(range(64)) and not held_out & training
    assert len(held_out) == 4 and len(training) == 16
    asked = envs.make("signed_sums", numbers=3, largest=4, held_out=True)
    state, _ = reset(asked, 200)
    assert {tuple(np.sort(x) - 1) for x in np.asarray(state.numbers)} == held_out


def test_sizes_are_checked():
    with pytest.raises(UserError, match="numbers is 6 and largest 9"):
        envs.make("signed_sums", numbers=6)
