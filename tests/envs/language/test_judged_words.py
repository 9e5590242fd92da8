"""Judged words against Python's own sums, and preferences that go round."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment
from jaxrl.exact.answers import enumerate_answers

LETTERS, LENGTH = 3, 2


def worth(table, prompt, word):
    """Sum over the letters of a word, a tuple of numbers."""
    before = (prompt, *word[:-1])  # longer than an empty word
    return sum(float(table[prompt, b, letter]) for b, letter in zip(before, word))  # noqa: B905


def words():
    return [w for n in range(LENGTH + 1) for w in itertools.product(range(LETTERS), repeat=n)]


@pytest.mark.parametrize("cycle", [0.0, 2.0])
def test_rewards_and_preferences_are_those_of_plain_sums(cycle):
    env = envs.make("judged_words", letters=LETTERS, length=LENGTH, cycle=cycle)
    found, p = enumerate_answers(env), env.params
    assert [tuple(x for x in row if x < LETTERS) for row in found.text.tolist()] == words()
    reward, u, v = (
        np.array([[worth(table, prompt, w) for w in words()] for prompt in range(LETTERS)])
        for table in (p.taste, *p.plane)
    )
    np.testing.assert_allclose(found.reward, reward, atol=1e-5)
    difference = reward[:, :, None] - reward[:, None]
    round_ = u[:, :, None] * v[:, None] - v[:, :, None] * u[:, None]
    expected = 1 / (1 + np.exp(-difference - cycle * round_))
    np.testing.assert_allclose(found.preference, expected, atol=1e-5)


def test_no_reward_expresses_preferences_with_a_cycle():
    """Log-odds of rewards are additive: l(a, b) + l(b, c) + l(c, a) = 0."""

    def largest_sum(cycle):
        p = enumerate_answers(envs.make("judged_words", cycle=cycle)).preference
        odds = jnp.log(p / (1 - p))
        return jnp.abs(odds[:, :, :, None] + odds[:, None] - odds[:, :, None]).max()

    assert largest_sum(0.0) < 1e-3
    assert largest_sum(1.0) > 1
    p = np.asarray(enumerate_answers(envs.make("judged_words", cycle=5.0)).preference)
    beats = p > 0.5
    round_ = beats[:, :, :, None] & beats[:, None] & np.swapaxes(beats, 1, 2)[:, :, None]
    assert round_.any()  # a beats b beats c beats a


def test_its_judge_is_a_general_preference_model_with_two_planes():
    one, other = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    planes = lambda x: np.insert(x, 1, 1.0, axis=-1)  # (r, 1) and (u, v)
    expected = losses.general_preference(planes(one), planes(other))
    np.testing.assert_allclose(envs.make("judged_words").judge(one, other), expected, rtol=1e-5)


def test_an_episode_says_nothing_of_its_grade_before_its_end():
    env = envs.make("judged_words")
    state, timestep = env.reset(jax.random.key(0), env.params)
    seen = [timestep]
    for letter in (1, 2, 0):
        state, timestep = env.step(jax.random.key(0), state, jnp.int32(letter), env.params)
        seen.append(timestep)
    assert [bool(t.done) for t in seen] == [False, False, False, True]
    assert [bool((t.privileged["judged"] != 0).any()) for t in seen] == [False] * 3 + [True]
    assert all(t.metrics is None for t in seen)
    assert seen[-1].reward == seen[-1].privileged["judged"][0] != 0


@pytest.mark.parametrize("settings", [{}, {"letters": 1, "length": 1}, {"cycle": 3.0}])
def test_it_keeps_the_rules(settings):
    check_environment(envs.make("judged_words", **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"letters": 26}, "letters is 26 and length 3; there must be 1 to 25 letters"),
        ({"length": 0}, "words of at least 1"),
        ({"letters": 10, "length": 5}, "10 letters make more than 100000 words of up to 5"),
    ],
)
def test_sizes_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        envs.make("judged_words", **settings)


def test_seeds_have_other_tastes():
    one, other = (envs.make("judged_words", seed=i).params.taste for i in (0, 1))
    assert not np.allclose(one, other)
    assert one is envs.make("judged_words", seed=0).params.taste
