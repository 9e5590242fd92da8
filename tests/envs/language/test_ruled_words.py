"""Words with several ratings and a rule: every word's ratings, reward and cost, by hand."""

import itertools

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.exact.answers import enumerate_answers

ENV = envs.make("ruled_words", tastes=3)


def test_ratings_rewards_and_costs_of_all_words():
    found, tastes = enumerate_answers(ENV), ENV.params.tastes
    t = found.transitions
    ended = np.asarray(t.done) & (np.cumsum(t.done, 0) == 1)
    at_end = lambda x: np.where(ended, x, 0).sum(0).reshape(found.reward.shape)
    ratings = [at_end(t.next_timestep.reward_components[f"taste_{k}"]) for k in range(3)]
    cost = at_end(t.next_timestep.cost)
    assert found.reward.shape == (3, 40) and 0 < cost.mean() < 1
    for p in range(3):
        for a, word in enumerate(np.asarray(found.text)):
            letters = [p, *[x for x in word if x < 3]]
            steps = list(itertools.pairwise(letters))
            expected = [sum(tastes[k, p, i, j] for i, j in steps) for k in range(3)]
            np.testing.assert_allclose([r[p, a] for r in ratings], expected, atol=1e-5)
            np.testing.assert_allclose(found.reward[p, a], np.mean(expected), atol=1e-5)
            assert cost[p, a] == any(i == j for i, j in steps)


def test_the_judge_compares_rewards():
    found = enumerate_answers(ENV)
    r = np.asarray(found.reward)
    expected = 1 / (1 + np.exp(r[:, None, :] - r[:, :, None]))
    np.testing.assert_allclose(found.preference, expected, rtol=1e-4)


def test_sizes_are_checked():
    with pytest.raises(UserError, match="tastes 0; there must be"):
        envs.make("ruled_words", tastes=0)
