"""Steps with those around them: edges of episodes, and which steps are labeled."""

import jax
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.sources.played import viewed_dataset
from jaxrl.sources.surroundings import surroundings

NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())
LENGTHS = 4, 1, 3
FIRST = np.repeat(np.cumsum((0, *LENGTHS[:-1])), LENGTHS)  # of each step's episode
LAST = np.repeat(np.cumsum(LENGTHS), LENGTHS) - 1
ROW = np.arange(8)
KNOWN = FIRST == 5


def steps():
    no, reward = np.zeros(8, bool), ROW.astype(np.float32)
    before = TimeStep(ROW, reward, no, no, FIRST == ROW)
    after = TimeStep(ROW + 1, reward, no, LAST == ROW, no)
    return Transition(before, ROW, after, (), {"labeled": KNOWN, "other": ROW})


def draw(view, keep=("labeled",), n=500):
    source = viewed_dataset(steps(), n, view, keep=keep)

    @jax.jit
    def run(key):
        state = source.init(key, {}, NOBODY)
        return source.sample(state, source.collect(state, NOBODY, key)[1], key)

    return jax.tree.map(np.asarray, run(random.key(0)))


def test_windows_are_around_any_step_and_around_labeled_ones():
    batch = draw(surroundings(past=2, future=1))
    x = batch.transitions
    assert x.reward.shape == (4, 500) and set(x.extras) == {"labeled", "shown"}
    for transitions, mask, rows in ((x, batch.mask, ROW), (x.extras["shown"], None, ROW[KNOWN])):
        row = transitions.action[2]
        assert set(row) == set(rows)
        wanted = row + np.arange(-2, 2)[:, None]
        found = np.clip(wanted, FIRST[row], LAST[row])
        np.testing.assert_array_equal(transitions.action, found)
        np.testing.assert_array_equal(transitions.next_observation, found + 1)
        np.testing.assert_array_equal(transitions.extras["labeled"], KNOWN[found])
        if mask is not None:
            np.testing.assert_array_equal(mask, wanted == found)
    counts = np.bincount(x.action[2], minlength=8) / 500
    np.testing.assert_allclose(counts, 1 / 8, atol=0.05)
    assert (x.action[2] != x.extras["shown"].action[2]).any()  # drawn apart


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match="past must be at least 0"):
        surroundings(past=-1)
    with pytest.raises(UserError, match="no extra 'labeled'"):
        draw(surroundings(), keep=("other",))
