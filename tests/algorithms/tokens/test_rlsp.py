"""RLSP: rewards of outcome and exploration, against loops."""

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import rlsp as module
from jaxrl.algorithms.tokens import token_ppo
from jaxrl.algorithms.tokens.rlsp import explored_reward, rlsp
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static
from tests.algorithms.tokens.answers import make_batch
from tests.kit.stub import stub

MASK = np.array([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 1, 0, 1]], bool).T
RIGHT, HYPER = np.array([1, 0, 1]), {"outcome_weight": 0.7, "limit": 3.5}


def test_outcome_and_length_are_weighed():
    batch = make_batch(np.zeros(MASK.shape, int), MASK, np.zeros(MASK.shape), success=RIGHT)
    found = explored_reward(stub(hyper=HYPER), batch)
    expected = [0.7 + 0.3, 0.3 * 2 / 3.5, 0.7 + 0.3 * 3 / 3.5]  # the first is beyond the limit
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_ppo_learns_from_it_in_place_of_the_environments_reward(monkeypatch):
    kept, env = {}, envs.make("countdown", numbers=2, attempts=1)
    config = Static(rlsp(env).config)
    monkeypatch.setattr(module, "on_answers", lambda *x, **more: kept.update(more, judge=x[2]))
    rlsp.recipe(env, config)
    assert kept == {"judge": token_ppo.judge, "kl_in_reward": True, "score": explored_reward}


def test_an_environment_without_right_answers_is_refused():
    with pytest.raises(UserError, match="metrics\\['success'\\]"):
        rlsp(envs.make("judged_words"))
