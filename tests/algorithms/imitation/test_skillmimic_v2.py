"""SkillMimic-V2: starts are drawn where rewards are low, and masked steps are paid the mean."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.imitation import skillmimic_v2 as module
from jaxrl.core.errors import UserError
from jaxrl.core.types import TimeStep, Transition
from jaxrl.envs import make

LENGTHS = jnp.asarray([3, 4])
NOBODY: Any = None  # no policy: these tasks do not ask for one


def _window(reward, masked, skill, task):
    reward = jnp.asarray(reward, jnp.float32)
    shape = reward.shape
    no = jnp.zeros(shape, bool)
    step = TimeStep(
        jnp.zeros((*shape, 1)),
        reward,
        no,
        no,
        no,
        goal=jax.nn.one_hot(jnp.asarray(skill), 2),
        privileged={"masked": jnp.asarray(masked)},
    )
    return Transition(step, jnp.zeros((*shape, 2)), step, jnp.asarray(task), {})


def test_weights_are_exponential_in_the_rewards():
    starts = np.array([[0.1, 0.4, 9, 9], [0.2, 0.0, 0.3, 9]])
    rewards = module.Rewards(jnp.asarray([0.5, 0.2]), jnp.asarray(starts))
    found = module.sampling_weights(rewards, LENGTHS, 1.0)
    clips = np.exp(-5 * np.array([0.5, 0.2]))
    clips /= clips.sum()
    states = np.exp(-10 * starts) * np.array([[1, 1, 0, 0], [1, 1, 1, 0]])
    states /= states.sum(1, keepdims=True)
    np.testing.assert_allclose(found, clips[:, None] * states, rtol=1e-5)
    mixed = module.sampling_weights(rewards, LENGTHS, 0.25)
    even = np.array([[1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]])
    expected = (0.75 / 2 + 0.25 * clips)[:, None] * (0.75 * even + 0.25 * states)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5)


def test_without_adaptation_all_starts_of_a_clip_are_as_likely():
    rewards = module.Rewards(jnp.asarray([0.9, 0.1]), jnp.ones((2, 4)))
    found = module.sampling_weights(rewards, LENGTHS, 0.0)
    np.testing.assert_allclose(found, [[1 / 4, 1 / 4, 0, 0], [1 / 6, 1 / 6, 1 / 6, 0]], rtol=1e-6)


def test_rewards_of_starts_move_toward_the_mean_of_compared_steps():
    env = make("push_skills")
    tasks = module.adaptive_starts(env.params, module.Starts(rate=0.5))
    state = tasks.init(jax.random.key(0), NOBODY, {})
    length = env.params.clips.shape[1]
    x = _window([[0.8, 0.4], [0.6, 0.9]], [[False, False], [False, True]], [[0, 0], [0, 0]],
                [[3, length + 1], [3, length + 1]])  # fmt: skip
    state = tasks.update(state, NOBODY, x)
    assert float(state.starts[0, 3]) == pytest.approx(0.35)
    assert float(state.starts[1, 1]) == pytest.approx(0.2)
    assert float(state.starts.sum()) == pytest.approx(0.55)
    np.testing.assert_allclose(state.clips, [0.35, 0.2, 0, 0], rtol=1e-6)


def test_masked_steps_have_the_mean_reward_of_their_skill():
    x = _window(
        [[0.2, 0.9, 0.0], [0.4, 0.0, 0.0]],
        [[False, False, True], [False, True, True]],
        [[0, 1, 0], [0, 1, 0]],
        jnp.zeros((2, 3), jnp.int32),
    )
    np.testing.assert_allclose(
        module.pay_masked_steps(x), [[0.2, 0.9, 0.3], [0.4, 0.9, 0.3]], rtol=1e-6
    )


def test_it_needs_clips_and_probabilities():
    with pytest.raises(UserError, match="has none"):
        module.skillmimic_v2.agent(make("pendulum"))
    with pytest.raises(UserError, match="at most 1"):
        module.skillmimic_v2.agent(make("push_skills"), {"noisy": 0.7, "switched": 0.7})
