"""Pairs of the best and the worst attempt: texts that are said anew, against loops."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.policies import add_noise, expert_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.sources import compare_attempts, episodes

ENV = envs.make("second_try")
COUNT, PROMPT, SIZE = 256, 4, 2  # conversations, tokens of a prompt, tokens of an attempt


@pytest.fixture(scope="module")
def conversations():
    """The same conversations of a noisy expert: as they were, and as pairs."""
    env = expert_channel(ENV)
    policy = add_noise(env, expert_policy(env), 0.3)
    whole = episodes(env, COUNT, keep_states=True)
    pairs = compare_attempts(whole, env, 2)
    state = pairs.init(random.key(0), {}, policy)
    key = random.key(1)
    _, batch, metrics = jax.jit(pairs.collect)(state, policy, key)
    old = jax.jit(whole.collect)(state, policy, jax.random.split(key)[0])[1]
    assert float(batch.env_steps) == pairs.env_steps == 5 * COUNT * ENV.max_steps
    return old.transitions, batch.transitions, np.asarray(batch.mask), metrics


def test_the_best_and_the_worst_attempt_are_said_first_and_after_the_worst(conversations):
    old, t, mask, metrics = conversations
    second = PROMPT + SIZE  # after a reply of one token
    attempts = np.stack([np.asarray(old.action)[k : k + SIZE].T for k in (PROMPT - 1, second)], 1)
    rewards = np.stack([np.asarray(old.reward)[k] for k in (PROMPT, second + 1)], 1)
    action, anew = np.asarray(t.action), np.asarray(t.extras["anew"])
    reward = np.asarray(t.reward)
    kinds = set()
    whole = (attempts != len(ENV.vocabulary) - 1).all((1, 2))  # attempts of two tokens
    for b in np.flatnonzero(whole):
        best, worst = rewards[b].argmax(), rewards[b].argmin()
        kinds.add((best, worst))
        apart = rewards[b].max() - rewards[b].min()
        for i, said in enumerate((best, worst, best, worst)):
            column, begin = 4 * b + i, PROMPT - 1 if i < 2 else second
            np.testing.assert_array_equal(action[begin : begin + SIZE, column], attempts[b, said])
            marked = np.zeros(len(mask), bool)
            marked[begin : begin + SIZE] = True
            np.testing.assert_array_equal(anew[:, column], marked)
            np.testing.assert_array_equal(mask[:, column], np.arange(len(mask)) < begin + SIZE)
            if i >= 2:
                np.testing.assert_array_equal(
                    action[PROMPT - 1 : PROMPT - 1 + SIZE, column], attempts[b, worst]
                )
            np.testing.assert_array_equal(
                t.timestep.observation[:PROMPT, column], old.timestep.observation[:PROMPT, b]
            )
            assert reward[begin + SIZE - 1, column] == rewards[b, said]
            np.testing.assert_allclose(t.extras["apart"][0, column], apart)
    assert kinds >= {(0, 1), (1, 0), (0, 0)}
    mean = lambda name: float(metrics[name].total / metrics[name].weight)
    np.testing.assert_allclose(mean("first"), rewards[:, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean("last"), rewards[:, 1].mean(), rtol=1e-5)
    np.testing.assert_allclose(mean("best"), rewards.max(1).mean(), rtol=1e-5)


def test_what_may_not_be_said_again_is_not_compared():
    """A solver that has failed cannot be chosen again."""
    env = expert_channel(envs.make("strategies"))
    policy = expert_policy(env)
    source = compare_attempts(episodes(env, 64, keep_states=True), env, 3)
    state = source.init(random.key(0), {}, policy)
    batch = jax.jit(source.collect)(state, policy, random.key(1))[1]
    assert not np.asarray(batch.transitions.extras["apart"]).any()


def test_a_single_attempt_is_refused():
    with pytest.raises(UserError, match="attempts is 1; there must be at least 2"):
        compare_attempts(episodes(ENV, 4, keep_states=True), ENV, 1)
