"""The choice among candidates: labels of the chosen alone, late, and values by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.exact import selection

EPISODES, ROUNDS, DELAY, N, K = 256, 6, 2, 4, 2
SETTINGS = {"candidates": N, "quota": K, "types": 5, "features": 3, "rounds": ROUNDS}


def play(env, actions):
    """Return states before and after, actions and time steps, [EPISODES, ROUNDS, ...]."""

    def episode(key):
        key, reset_key = jax.random.split(key)

        def step(state, key):
            act_key, step_key = jax.random.split(key)
            action = actions(state, act_key)
            after, timestep = env.step(step_key, state, action, env.params)
            return after, (state, after, action, timestep)

        begin, first = env.reset(reset_key, env.params)
        return first, *jax.lax.scan(step, begin, jax.random.split(key, ROUNDS))[1]

    played = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES))
    return jax.tree.map(np.asarray, played)


def test_labels_of_the_chosen_arrive_late_and_rewards_with_them():
    env = envs.make(
        "selective_labels", delay=DELAY, presence=0.5, gain=2.0, loss=3.0, bias=0.5, **SETTINGS
    )
    first, before, _, action, timestep = play(env, lambda s, key: jax.random.normal(key, (N,)))
    table, weights = env.params.features, env.params.weights
    seen = timestep.observation
    odds = 1 / (1 + np.exp(-(0.5 + table @ weights)))
    assert before.available[..., :K].all() and 0.4 < before.available[..., K:].mean() < 0.6
    scores = np.where(before.available, action, -np.inf)
    chosen = np.argsort(-scores, -1)[..., :K]
    kinds = np.take_along_axis(before.kinds, chosen, -1)
    # Nothing is known of the first rounds; then features are those chosen before.
    assert not seen["known"][:, :DELAY].any() and seen["known"][:, DELAY:].all()
    np.testing.assert_array_equal(seen["seen"][:, DELAY:], table[kinds[:, :-DELAY]])
    assert not np.any(timestep.reward[:, :DELAY]) and not first.observation["known"].any()
    paid = np.where(seen["labels"] == 1, 2.0, -3.0).sum(-1)
    np.testing.assert_allclose(timestep.reward[:, DELAY:], paid[:, DELAY:])
    for kind in range(5):
        labels = seen["labels"][:, DELAY:][kinds[:, :-DELAY] == kind]
        error = np.sqrt(odds[kind] * (1 - odds[kind]) / len(labels))
        np.testing.assert_allclose(labels.mean(), odds[kind], atol=4 * error)
    worth = 2 * odds - 3 * (1 - odds)
    best = np.sort(np.where(before.available, worth[before.kinds], -np.inf), -1)[..., -K:].sum(-1)
    regret = (best - worth[kinds].sum(-1)).cumsum(-1)
    np.testing.assert_allclose(timestep.metrics["regret"], regret, atol=1e-4)
    np.testing.assert_array_equal(
        timestep.terminated, np.tile(np.arange(ROUNDS) == 5, (EPISODES, 1))
    )
    there = before.available[:, 1:, :, None] * table[before.kinds[:, 1:]]
    np.testing.assert_allclose(seen["candidates"][:, :-1], there)


def test_the_expert_has_no_regret_and_earns_the_best_value():
    env = envs.make("selective_labels", **SETTINGS)
    *_, timestep = play(env, lambda state, key: env.expert(state, env.params))
    np.testing.assert_allclose(timestep.metrics["regret"], 0, atol=1e-5)
    best = selection.value(selection.type_rewards(env.params), env.params, N, K)
    error = timestep.reward.std() / np.sqrt(timestep.reward.size)
    np.testing.assert_allclose(timestep.reward.mean(), best, atol=4 * error)


def test_values_are_means_over_all_combinations_of_types():
    params = envs.make("selective_labels", loss=0.5, **SETTINGS).params
    scores, rewards = (
        np.array([0.3, -1.0, 2.0, 0.5, 0.1]),
        np.asarray(selection.type_rewards(params)),
    )
    odds = 1 / (1 + np.exp(-params.features @ params.weights))
    np.testing.assert_allclose(rewards, odds - 0.5 * (1 - odds), rtol=1e-5)
    total = [
        rewards[sorted(kinds, key=lambda kind: -scores[kind])[:K]].sum()
        for kinds in itertools.product(range(5), repeat=N)
    ]
    np.testing.assert_allclose(selection.value(scores, params, N, K), np.mean(total), rtol=1e-5)
    best = selection.value(rewards, params, N, K)
    assert best > np.mean(total)
    for seed in range(20):
        other = np.random.default_rng(seed).normal(size=5)
        assert selection.value(other, params, N, K) <= best + 1e-6
    with pytest.raises(UserError, match="at most 1000000 are enumerated"):
        selection.value(jnp.asarray(rewards), params, 12, K)


def test_one_hot_types_tell_nothing_of_each_other():
    env = envs.make("selective_labels", types=3, features=0)
    np.testing.assert_array_equal(env.params.features, np.eye(3))
    assert env.observation_space["candidates"].shape == (4, 3)


@pytest.mark.parametrize(
    "settings, match",
    [({"quota": 5}, "quota of 'selective_labels' is 5"), ({"types": 0}, "types of .* is 0")],
)
def test_bad_structure_is_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        envs.make("selective_labels", **settings)


@pytest.mark.slow
def test_the_environment_keeps_every_rule():
    envs.check_environment(envs.make("selective_labels", delay=1, **SETTINGS), steps=16)


def test_the_value_of_one_choice_is_that_of_playing_and_of_enumeration():
    env = envs.make("selective_labels", presence=0.4, **SETTINGS | {"quota": 1})
    scores = np.random.default_rng(0).normal(size=5)
    *_, timestep = play(env, lambda state, key: jnp.asarray(scores)[state.kinds])
    regret = timestep.metrics["regret"][:, -1].mean() / ROUNDS
    best = selection.value_of_one(selection.type_rewards(env.params), env.params, N)
    found = selection.value_of_one(scores, env.params, N)
    np.testing.assert_allclose(best - found, regret, rtol=0.1)
    whole = envs.make("selective_labels", **SETTINGS | {"quota": 1}).params
    expected = selection.value(scores, whole, N, 1)
    np.testing.assert_allclose(selection.value_of_one(scores, whole, N), expected, rtol=1e-5)
