"""Sums with a hidden part, tried twice, against all pairs of attempts."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.second_try import ERROR, LESS, MORE, RIGHT
from tests.envs.language.play import follow_expert, player, reset, until_end

CHANCES = np.array([0.4, 0.3, 0.3])
TOTAL = 11


def case(added, **settings):
    """Return an environment and states in which 11 and one of each of `added` [N] is asked for."""
    env = envs.make("second_try", **settings)
    state, _ = reset(env, len(added))
    text = state.text.at[:, 0].set(4).at[:, 2].set(7)
    memory = dataclasses.replace(
        state.memory,
        total=jnp.full(len(added), TOTAL, jnp.int32),
        added=jnp.asarray(added, jnp.int32),
    )
    return env, dataclasses.replace(state, text=text, memory=memory)


def play(env, state, first, second):
    """Return the rewards [N, 2] of two attempts, each tokens [N, 2], and the time steps."""
    row = [np.zeros((len(first), 3), int), first, np.zeros((len(first), 1), int), second]
    t = player(env)(state, jnp.asarray(np.concatenate(row, 1)))
    assert np.asarray(t.done)[:, -1].all() and not np.asarray(t.done)[:, :-1].any()
    return np.asarray(t.reward)[:, [4, 7]], t


def digits(number):
    return np.stack([np.asarray(number) // 10, np.asarray(number) % 10], 1)


def values():
    """Return the probabilities of right attempts [3, 3, 2] by plain sums, for each pair of numbers
    that are added at first and, by the likeliest left, at second: of the first, of the second."""
    found = {}
    for guess in range(3):
        second = CHANCES[guess]  # it was right: say it again
        for side in (range(guess), range(guess + 1, 3)):
            second += max((CHANCES[i] for i in side), default=0)
        found[guess] = (CHANCES[guess], second)
    return found


def test_rewards_and_replies_of_all_pairs_of_attempts():
    guesses = np.array(list(itertools.product(range(-1, 4), range(-1, 4), range(3))))  # [75, 3]
    env, state = case(guesses[:, 2], first_reward=0.5)
    reward, t = play(env, state, digits(TOTAL + guesses[:, 0]), digits(TOTAL + guesses[:, 1]))
    right = guesses[:, :2] == guesses[:, 2:]
    np.testing.assert_allclose(reward, right * [0.5, 1])
    truth, said = guesses[:, 2], guesses[:, 0]
    reply = np.where(right[:, 0], RIGHT, np.where(truth < said, LESS, MORE))
    np.testing.assert_array_equal(t.observation[:, 5], reply)
    metrics = {name: np.asarray(x)[:, -1] for name, x in t.metrics.items()}
    np.testing.assert_array_equal(metrics["first"], right[:, 0])
    np.testing.assert_array_equal(metrics["success"], right[:, 1])
    np.testing.assert_array_equal(metrics["repaired"], ~right[:, 0] & right[:, 1])
    np.testing.assert_array_equal(metrics["spoiled"], right[:, 0] & ~right[:, 1])


def test_what_is_no_number_is_wrong():
    env, state = case([0])
    for attempt in ([[1, 10]], [[16, 1]], [[1, 16]]):
        ends_early = attempt[0][0] == 16
        first = np.array(attempt)
        if ends_early:  # then the reply comes a step earlier
            row = [[0, 0, 0, 16, 0, 1, 1, 0]]
            t = player(env)(state, jnp.asarray(row))
            assert int(t.observation[0, 4]) == ERROR and float(t.reward[0, 6]) == 1
            continue
        reward, t = play(env, state, first, digits([TOTAL]))
        assert int(t.observation[0, 5]) == ERROR
        np.testing.assert_array_equal(reward, [[0, 1]])


def test_the_best_policies_are_known_exactly():
    """The best first attempt is right in 0.4, and 0.7 follow; the best pair gives 0.3 and 1."""
    known = values()
    best_first = max(known, key=lambda guess: known[guess][0])
    np.testing.assert_allclose(known[best_first], (0.4, 0.7))
    best_second = max(known, key=lambda guess: known[guess][1])
    np.testing.assert_allclose(known[best_second], (0.3, 1.0))
    assert max(sum(pair) for pair in known.values()) == sum(known[best_second])
    # In the environment, with each of the three numbers, the second by the expert.
    env, state = case([0, 1, 2])
    for guess, expected in known.items():
        first = digits(np.full(3, TOTAL + guess))
        reward, _ = play(env, state, first, np.full((3, 2), -1))
        np.testing.assert_allclose(CHANCES @ reward, expected, rtol=1e-6)
    # Without the reply a second attempt is no better than a first.
    blind = [CHANCES[i] for i in range(3)]
    assert max(blind) == known[best_first][0]


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [({}, 0.3, 1.0), ({"first_reward": 6.0}, 0.4, 0.7), ({"chances": [1.0, 0.0, 0.0]}, 1.0, 1.0)],
)
def test_the_expert_weighs_both_attempts(settings, first, second):
    """A first attempt that pays six times as much is worth its second."""
    env, state = case([0, 1, 2], **settings)
    weights = np.asarray(settings.get("chances", CHANCES))
    reward, _ = play(env, state, np.full((3, 2), -1), np.full((3, 2), -1))
    worth = weights @ reward / [settings.get("first_reward", 1.0), 1]
    np.testing.assert_allclose(worth, [first, second], rtol=1e-6)


@pytest.mark.parametrize("digits_", [1, 2])
def test_prompts_say_the_sum_and_chances_are_kept(digits_):
    env = envs.make("second_try", digits=digits_)
    state, t = follow_expert(env, 2048)
    text, d = np.asarray(state.text), digits_
    number = lambda x: x @ 10 ** np.arange(d - 1, -1, -1)
    total = number(text[:, :d]) + number(text[:, d + 1 : 2 * d + 1])
    np.testing.assert_array_equal(state.memory.total, total)
    shares = np.bincount(np.asarray(state.memory.added), minlength=3) / 2048
    np.testing.assert_allclose(shares, CHANCES, atol=0.05)
    success = jnp.where(until_end(t), t.metrics["success"], 0).sum(1)
    assert (np.asarray(success) == 1).all()


def test_sizes_are_checked():
    with pytest.raises(UserError, match="digits is 3"):
        envs.make("second_try", digits=3)


def test_memory_keeps_its_types_in_double_precision():
    env = envs.make("second_try")
    key = jax.random.key(0)
    with jax.enable_x64(True):
        state, _ = jax.eval_shape(env.reset, key, env.params)
        after, _ = jax.eval_shape(env.step, key, state, jnp.int32(1), env.params)
    types = lambda memory: [x.dtype.name for x in jax.tree.leaves(memory)]
    assert types(state.memory) == types(after.memory) == ["int32"] * 4 + ["float32"]
