"""Comparisons within groups."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.judges import judge_of, win_probabilities


def test_answers_are_compared_with_those_of_their_group_alone():
    judged = {"r": np.arange(6.0), "w": np.arange(12.0).reshape(6, 2)}
    judge = lambda x, y: jnp.where(x["r"] > y["r"], x["w"][..., 1] / 100, -y["w"][..., 0])
    found = win_probabilities(judge, judged, 3)
    assert found.shape == (2, 3, 3)
    for group in range(2):
        for i in range(3):
            for j in range(3):
                a, b = 3 * group + i, 3 * group + j
                np.testing.assert_allclose(
                    found[group, i, j], (2 * a + 1) / 100 if i > j else -2.0 * b, rtol=1e-6
                )


def test_an_environment_without_a_judge_is_refused():
    with pytest.raises(UserError, match="'addition' has no judge that could prefer one answer"):
        judge_of(envs.make("addition"))
    assert judge_of(envs.make("judged_words")) is envs.make("judged_words").judge
