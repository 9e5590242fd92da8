"""ICPL: proposals, proposed rewards, preferred agents, and a search whose answer is known."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.preferences.icpl import (
    PLAYED,
    draw_rewards,
    feature_names,
    icpl,
    measure_scales,
    proposed_reward,
    rank,
    refine_rewards,
    with_proposed_reward,
)
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.train import start, train
from jaxrl.core.types import Environment
from jaxrl.envs import timesteps
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers import time_limit
from jaxrl.evaluation.evaluate import evaluate
from jaxrl.sources.rollouts import rollouts, window

PENDULUM = envs.make("pendulum")
SEARCH = {
    "agents": 6, "updates": 6, "episodes": 8, "num_envs": 32, "num_steps": 4, "minibatches": 2,
    "epochs": 4, "hidden": (8,), "learning_rate": 3e-2, "terms": 2,
}  # fmt: skip


def settings(mutation=0.0, away=0.0, change=0.0):
    return types.SimpleNamespace(mutation=mutation, away=away, change=change)


def test_first_rewards_have_few_terms_of_either_sign():
    weights = np.asarray(draw_rewards(random.key(0), 400, 5, 2))
    np.testing.assert_array_equal((weights != 0).sum(1), 2)
    np.testing.assert_allclose(np.square(weights).sum(1), 1, rtol=1e-5)
    assert (np.sort(np.abs(weights), 1)[:, -2:] > 0.3).all()  # 0.5 / sqrt(0.5^2 + 1.5^2)
    np.testing.assert_allclose((weights != 0).mean(0), 0.4, atol=0.1)
    assert 0.4 < (weights[weights != 0] > 0).mean() < 0.6


def test_later_rewards_refine_the_best_and_leave_the_worst():
    best, worst = jnp.array([0.8, 0.0, -0.6, 0.0]), jnp.array([0.0, 1.0, 0.0, 0.0])
    refine = lambda h, b=best: np.asarray(refine_rewards(random.key(1), 300, b, worst, h))
    np.testing.assert_allclose(refine(settings()), np.broadcast_to(best, (300, 4)), atol=1e-6)
    tuned = refine(settings(mutation=0.5))
    assert (tuned[:, ::2] * [1, -1] > 0).all() and (tuned[:, 1::2] == 0).all()
    assert np.log(tuned[:, 0] / -tuned[:, 2]).std() == pytest.approx(0.5 * 2**0.5, rel=0.15)
    stepped = refine(settings(away=0.5))
    assert (stepped[:, 1] <= 0).all() and stepped[:, 1].min() < -0.2
    changed = refine(settings(change=1.0))  # one of two terms, and a new one of any feature
    alone = np.minimum(np.abs(changed[:, 0]), np.abs(changed[:, 2])) < 1e-6
    assert 0.5 < alone.mean() < 1
    single = refine(settings(change=1.0), jnp.array([1.0, 0.0, 0.0, 0.0]))
    assert (np.abs(single[:, 0]) > 0.4).all()  # the only term stays
    np.testing.assert_allclose(np.square(changed).sum(1), 1, rtol=1e-5)


def test_failed_agents_are_the_worst():
    best, worst = rank(jnp.array([1.0, jnp.nan, 3.0, jnp.inf, -5.0]))
    assert (int(best), int(worst)) == (2, 1)


def test_a_proposed_reward_is_a_sum_of_named_features():
    env, names = with_proposed_reward(PENDULUM), feature_names(PENDULUM)
    assert names[:3] == ("observation.0", "observation.1", "observation.2") and len(names) == 7
    weights = np.arange(1.0, 8.0, dtype=np.float32)
    params = type(env.params)(env.params.inner, jnp.asarray(weights))
    state, _ = env.reset(random.key(2), params)
    action = jnp.array([1.5])
    _, after = env.step(random.key(3), state, action, params)
    seen = np.asarray(after.observation)
    features = [*seen, *np.abs(seen), 1.5**2]
    np.testing.assert_allclose(after.reward, weights @ features, rtol=1e-5)
    np.testing.assert_allclose(
        after.true_reward,
        PENDULUM.step(random.key(3), state.inner, action, PENDULUM.params)[1].reward,
        rtol=1e-6,
    )


def test_scales_are_those_of_random_play():
    env, key = with_proposed_reward(PENDULUM), random.key(4)
    start_key, play_key = jax.random.split(key)
    source, player = rollouts(env, *PLAYED), random_policy(env)
    begun = source.init(start_key, {}, player)
    t = window(source, begun, player, play_key)[1].transitions
    seen, action = np.asarray(t.next_timestep.observation), np.asarray(t.action)
    features = [*np.moveaxis(seen, -1, 0), *np.moveaxis(np.abs(seen), -1, 0), action[..., 0] ** 2]
    found = measure_scales(env, key)
    np.testing.assert_allclose(found, [x.std() for x in features], rtol=1e-3)


def same_sign():
    """Episodes of one step, which begin with a random sign. An action of the same sign leads to 1
    as the second number, for which alone there is a reward, another one to -1."""

    def reset(key, params):
        sign = jax.random.rademacher(key, (), jnp.float32)
        return sign, timesteps.first(jnp.stack([sign, 0.0]))

    def step(key, state, action, params):
        same = state * (2.0 * action - 1)
        reward = jnp.maximum(same, 0.0)
        return state, timesteps.following(jnp.stack([state, same]), reward, terminated=True)

    space = Box(-1.0, 1.0, (2,))
    return time_limit(Environment("same_sign", reset, step, (), space, Discrete(2)), 1)


@pytest.mark.slow
def test_the_search_finds_the_feature_that_is_preferred():
    env = same_sign()
    algorithm = icpl(env, SEARCH)
    run = jax.jit(functools.partial(start, algorithm))(random.key(0))
    step = jax.jit(lambda run: train(algorithm, run, 1))
    scores, queries = [], []
    for _ in range(3):
        run, metrics = step(run)
        scores.append(float(metrics["best_return"].value()))
        queries.append(int(metrics["queries"].value()))
    assert queries == [9, 19, 29]  # 2 K - 3, and one with the best so far
    assert scores == sorted(scores) and scores[-1] == 1
    assert proposed_reward(env, run.state)["observation.1"] > 0
    played = evaluate(env, algorithm.policy(run.state), random.key(1), 8)
    np.testing.assert_array_equal(played.returns, 1)


def test_environments_without_numbers_or_an_end_are_refused():
    for name, said in (("catch", "flat observation"), ("speaker_listener", "flat observation")):
        with pytest.raises(UserError, match=said):
            icpl(envs.make(name))
    assert "effort" not in feature_names(envs.make("cartpole"))
