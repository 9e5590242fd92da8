"""Spectral policy optimization: grades of groups of wrong answers, against loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import spectral_po as module
from jaxrl.algorithms.tokens.spectral_po import graded_returns, spectral_po
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from tests.algorithms.tokens.answers import make_batch
from tests.kit.stub import stub

RIGHT = np.array([[1, 0, 0], [0, 0, 0], [0, 0, 0]], bool)
PARTIAL = np.array([[1, 0.5, 0], [0.5, 0, 1], [0.5, 0.5, 0.5]], np.float32)


def test_wrong_groups_alone_are_graded():
    """The reward of right answers may be 0, as with a length penalty."""
    for returns in (RIGHT.astype(np.float32), RIGHT - 1.0):
        found = graded_returns(jnp.asarray(returns), jnp.asarray(RIGHT), jnp.asarray(PARTIAL))
        np.testing.assert_array_equal(found, [returns[0], PARTIAL[1], PARTIAL[2]])


def test_advantages_are_standardized_grades(monkeypatch):
    env = envs.make("countdown", numbers=2, attempts=1)
    config = spectral_po(env, {"prompts": 3, "answers": 3}).config
    kept = {}
    monkeypatch.setattr(module, "on_answers", lambda *x: kept.update(judge=x[2]))
    spectral_po.recipe(env, Static(config))
    mask = np.array([[0] * 9, [1] * 9, [1, 0, 1] * 3], bool)
    reward = np.zeros(mask.shape)
    reward[np.where(mask[2], 2, 1), np.arange(9)] = RIGHT.ravel()
    batch = make_batch(np.zeros(mask.shape, int), mask, reward, success=RIGHT.ravel(),
                    partial=PARTIAL.ravel())  # fmt: skip
    found = np.asarray(kept["judge"](stub(), batch)["advantage"])
    for group, x in enumerate((RIGHT[0] * 1.0, PARTIAL[1])):
        expected = (x - x.mean()) / x.std()
        np.testing.assert_allclose(found[1, 3 * group : 3 * group + 3], expected, rtol=1e-3)
    assert not found[:, 6:].any()  # all are equally wrong


def test_what_is_not_graded_is_refused():
    with pytest.raises(UserError, match="metrics\\['partial'\\]"):
        spectral_po(envs.make("addition"))
