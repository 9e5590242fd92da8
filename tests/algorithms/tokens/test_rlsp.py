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
RIGHT = np.array([1, 0, 1])


def test_right_answers_are_paid_for_and_short_ones_pay():
    batch = make_batch(np.zeros(MASK.shape, int), MASK, np.zeros(MASK.shape), success=RIGHT)
    found = explored_reward(stub(hyper={"length_penalty": 3.0}), batch)
    np.testing.assert_allclose(found, [1 - 3 / 4, -3 / 2, 1 - 3 / 3], rtol=1e-5, atol=1e-6)


def test_ppo_learns_from_it_in_place_of_the_environments_reward(monkeypatch):
    kept, env = {}, envs.make("countdown", numbers=2, attempts=1)
    config = Static(rlsp(env).config)
    monkeypatch.setattr(module, "on_answers", lambda *x, **more: kept.update(more, judge=x[2]))
    rlsp.recipe(env, config)
    assert kept == {"judge": token_ppo.judge, "kl_in_reward": True, "score": explored_reward}


def test_an_environment_without_right_answers_is_refused():
    with pytest.raises(UserError, match="metrics\\['success'\\]"):
        rlsp(envs.make("judged_words"))
