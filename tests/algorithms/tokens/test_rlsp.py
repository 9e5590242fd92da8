"""RLSP: rewards of outcome and exploration, against loops, and PPO as a special case."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import rlsp as module
from jaxrl.algorithms.tokens.rlsp import explored_reward, judge, rlsp
from jaxrl.core.errors import UserError
from tests.algorithms.tokens.answers import make_batch
from tests.kit.stub import stub

MASK = np.array([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 1, 0, 1]], bool).T
RIGHT, HYPER = np.array([1, 0, 1]), {"outcome_weight": 0.7, "limit": 3.5}


def test_outcome_and_length_are_weighed():
    batch = make_batch(np.zeros(MASK.shape, int), MASK, np.zeros(MASK.shape), success=RIGHT)
    found = explored_reward(stub(hyper=HYPER), batch)
    expected = [0.7 + 0.3, 0.3 * 2 / 3.5, 0.7 + 0.3 * 3 / 3.5]  # the first is beyond the limit
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_reward_is_paid_at_the_last_token_beside_the_divergence(monkeypatch):
    penalty = np.random.default_rng(0).normal(size=MASK.shape) * MASK
    batch = make_batch(np.zeros(MASK.shape, int), MASK, penalty, success=RIGHT)
    paid = {}

    def keep(net, batch):
        paid["reward"] = np.asarray(batch.transitions.reward)
        return type("Sample", (), {"advantage": batch.transitions.reward, "target": None})

    monkeypatch.setattr(module, "estimate_advantages", keep)
    found = judge(stub(hyper=HYPER), batch)
    expected = penalty.copy()
    expected[[4, 2, 4], [0, 1, 2]] += np.asarray(explored_reward(stub(hyper=HYPER), batch))
    np.testing.assert_allclose(paid["reward"], expected, rtol=1e-5)
    x = expected[MASK]
    standardized = (x - x.mean()) / x.std()
    np.testing.assert_allclose(np.asarray(found["advantage"])[MASK], standardized, atol=1e-3)


def test_an_environment_without_right_answers_is_refused():
    with pytest.raises(UserError, match="metrics\\['success'\\]"):
        rlsp(envs.make("judged_words"))
