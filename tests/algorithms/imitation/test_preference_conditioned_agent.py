"""The preference-conditioned agent: what a style is made of, and that the policy follows it."""

from __future__ import annotations

import numpy as np
import pytest

from jaxrl.algorithms.imitation import preference_conditioned_agent as module
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.train import start, train
from jaxrl.envs import make
from jaxrl.evaluation.evaluate import evaluate

SHOWN = module.Shown(demonstrations=3, skill=0.8, frames=4)


@pytest.fixture(scope="module")
def env():
    return make("playtest", size=6)


def test_demonstrations_are_of_all_styles_in_turn_and_differ(env):
    steps, exists = module.demonstrate(env, SHOWN)
    styles = np.asarray(steps.timestep.goal).argmax(-1)
    for i in range(12):
        assert (styles[i, exists[i]] == i % 4).all()
        assert steps.timestep.first[i, 0] and steps.next_timestep.truncated[i, exists[i].sum() - 1]
    assert (np.asarray(steps.action)[0] != np.asarray(steps.action)[4]).any()


def test_frames_are_at_equal_distances_from_first_to_last(env):
    steps, exists = module.demonstrate(env, SHOWN)
    frames = module.pick_frames(steps, exists, 4, 4)
    assert frames.shape[:3] == (3, 4, 4)
    demonstration = 2 * 4 + 3  # the third of style 3
    last = exists[demonstration].sum() - 1
    rows = [0, round(last / 3), round(2 * last / 3), last]
    expected = np.asarray(steps.observation)[demonstration, rows]
    np.testing.assert_array_equal(frames[2, 3], expected)


def test_what_it_acts_by_is_not_learned_from(env):
    _, exists = module.demonstrate(env, SHOWN)
    assert len(module._steps(env, SHOWN).reward) == exists[:8].sum() < exists.sum()


def test_it_needs_styles():
    with pytest.raises(UserError, match="no styles"):
        module.preference_conditioned_agent.agent(make("catch"))


@pytest.mark.slow
def test_a_told_style_is_followed_and_cloning_without_it_is_not(env):
    config = {"demonstrations": 4, "frames": 4, "hidden": (64,), "channels": (8,)}

    def agreement(conditioned):
        algorithm = module.preference_conditioned_agent(env, config | {"conditioned": conditioned})
        run, _ = train(algorithm, start(algorithm, random.key(0)), 120)
        found = evaluate(env, algorithm.policy(run.state), random.key(1), 64)
        return float(found.metrics["agreement"].mean())

    assert agreement(True) > 0.8 > agreement(False)
