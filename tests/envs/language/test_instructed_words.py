"""Words by instruction: what follows one, what is nearest to that, and the expert."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.envs.language.instructed_words import follow, repair
from tests.envs.language.play import follow_expert, player, reset

ENV = envs.make("instructed_words", letters=3, length=2)
GOOD, BAD = 6, 7


def test_a_repaired_word_is_the_nearest_that_follows():
    words = np.array(list(itertools.product(range(4), repeat=3)))
    for wanted, banned in itertools.permutations(range(4), 2):
        found = np.asarray(jax.vmap(lambda x, w=wanted, b=banned: repair(x, w, b))(words))
        right = np.array([wanted in x and banned not in x for x in words])
        np.testing.assert_array_equal(follow(words, wanted, banned), right)
        assert all(wanted in x and banned not in x for x in found)
        least = [(words[right] != x).sum(-1).min() for x in words]
        np.testing.assert_array_equal((found != words).sum(-1), least)


def test_the_expert_judges_and_refines_its_own_words():
    state, steps = follow_expert(ENV, 400)
    seen, m = np.asarray(steps.observation), jax.tree.map(lambda x: x[:, -1], steps.metrics)
    wanted, banned = np.asarray(state.text[:, 1]), np.asarray(state.text[:, 3])
    first, judgment, second = seen[:, 4:6], seen[:, 6], seen[:, 7:9]
    right = np.array([w in x and b not in x for x, w, b in zip(first, wanted, banned, strict=True)])
    np.testing.assert_array_equal(m["first"], right)
    np.testing.assert_array_equal(steps.reward[:, 5], right)
    assert not np.delete(np.asarray(steps.reward), 5, 1).any()
    np.testing.assert_array_equal(judgment, np.where(right, GOOD, BAD))
    assert (m["judged"] == 1).all() and (m["success"] == 1).all()
    np.testing.assert_array_equal(m["edits"], (first != second).sum(1))
    # Half of the 9 random words follow no instruction: 2 of 9 have a and no b, or 3 of 9 with a.
    assert 0.3 + 0.7 * 3 / 9 - 0.1 < right.mean() < 0.3 + 0.7 * 3 / 9 + 0.1


def test_judgments_are_of_the_word_that_was_said():
    state, _ = reset(ENV, 2)
    wanted, banned = np.asarray(state.text[:, 1]), np.asarray(state.text[:, 3])
    word = np.stack([wanted, banned])  # the first follows
    text = np.zeros((2, 9), np.int32)
    text[:, 4:6], text[:, 6], text[:, 7:9] = word[:, :1], GOOD, banned[:, None]
    text[1, 4:6] = banned[1]
    steps = player(ENV)(state, jnp.asarray(text))
    np.testing.assert_array_equal(steps.metrics["first"][:, -1], [1, 0])
    np.testing.assert_array_equal(steps.metrics["judged"][:, -1], [1, 0])
    np.testing.assert_array_equal(steps.metrics["success"][:, -1], [0, 0])
    legal = np.asarray(steps.legal_actions[0])
    assert set(np.flatnonzero(legal[4])) == {0, 1, 2} and set(np.flatnonzero(legal[5])) == {6, 7}


def test_sizes_are_checked():
    with pytest.raises(UserError, match="letters is 2 and length 4"):
        envs.make("instructed_words", letters=2)
