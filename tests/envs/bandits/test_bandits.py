"""Bandits against their definitions: rewards, priors, regret, contexts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError

EPISODES, PULLS, ARMS = 4000, 3, 4


@functools.cache
def _player(env):
    """Compile whole episodes of random pulls."""

    def episode(key, params):
        key, reset_key = jax.random.split(key)
        state, first = env.reset(reset_key, params)

        def step(carry, key):
            state, seen = carry
            act_key, step_key = jax.random.split(key)
            action = jax.random.randint(act_key, (), 0, ARMS)
            after, timestep = env.step(step_key, state, action, params)
            return (after, timestep.observation), {
                "state": state,
                "seen": seen,
                "action": action,
                "timestep": timestep,
                "expert": env.expert(state, params),
            }

        return jax.lax.scan(step, (state, first.observation), jax.random.split(key, PULLS))[1]

    return jax.jit(jax.vmap(episode, (0, None)))


def play(name: str, spread: float | None = None, **settings) -> dict:
    """Play episodes of random pulls and return a record of them, [EPISODES, PULLS, ...]."""
    env = envs.make(name, num_arms=ARMS, pulls=PULLS, **settings)
    params = env.params if spread is None else dataclasses.replace(env.params, spread=spread)
    seen = _player(env)(jax.random.split(jax.random.key(0), EPISODES), params)
    return {"env": env, **jax.tree.map(np.asarray, seen)}


def _check_episodes(record: dict, means: np.ndarray) -> None:
    """Check what holds for every bandit, given the arms' `means` [EPISODES, PULLS, ARMS]."""
    timestep, action = record["timestep"], record["action"]
    gap = means.max(-1) - np.take_along_axis(means, action[..., None], -1)[..., 0]
    np.testing.assert_allclose(timestep.metrics["regret"], gap.cumsum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(timestep.metrics["success"], action == means.argmax(-1))
    np.testing.assert_array_equal(record["expert"], means.argmax(-1))
    ends = np.arange(PULLS) == PULLS - 1
    np.testing.assert_array_equal(timestep.terminated, np.tile(ends, (EPISODES, 1)))
    last = timestep.observation[..., -ARMS - 1 :]
    np.testing.assert_array_equal(last[..., :-1], action[..., None] == np.arange(ARMS))
    np.testing.assert_array_equal(last[..., -1], timestep.reward)
    assert not np.any(record["seen"][:, 0, -ARMS - 1 :])


def _arms(record: dict) -> np.ndarray:
    means = record["state"].means
    assert np.all(means == means[:, :1])  # fixed during an episode
    return means


def test_bernoulli_arms_pay_with_their_probability():
    record = play("bandit")
    means = _arms(record)
    _check_episodes(record, means)
    np.testing.assert_allclose(np.sort(means[:, 0, 0])[::400], np.linspace(0, 0.9, 10), atol=0.03)
    assert np.abs(np.corrcoef(means[:, 0], rowvar=False) - np.eye(ARMS)).max() < 0.08
    reward = record["timestep"].reward
    assert set(np.unique(reward)) == {0.0, 1.0}
    pulled = np.take_along_axis(means, record["action"][..., None], -1)[..., 0]
    for low in np.linspace(0, 0.9, 10):
        chosen = (pulled >= low) & (pulled < low + 0.1)
        np.testing.assert_allclose(reward[chosen].mean(), pulled[chosen].mean(), atol=0.06)


def test_gaussian_arms_pay_their_mean_and_noise():
    record = play("bandit", arms="gaussian")
    means = _arms(record)
    _check_episodes(record, means)
    np.testing.assert_allclose(means[:, 0].mean(0), 0.0, atol=0.08)
    np.testing.assert_allclose(means[:, 0].std(0), 1.0, atol=0.06)
    noise = (
        record["timestep"].reward
        - np.take_along_axis(means, record["action"][..., None], -1)[..., 0]
    )
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 1.0], atol=0.04)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.08


def test_a_spread_of_zero_fixes_the_arms():
    means = np.array([0.1, 0.7, 0.3, 0.2], np.float32)
    env = envs.make("bandit", num_arms=ARMS, means=means, spread=0.0)
    states, _ = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(0), 3), env.params
    )
    np.testing.assert_allclose(states.means, np.tile(means, (3, 1)))
    assert env.max_steps == 1


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_contexts_decide_what_an_arm_pays(spread):
    record = play("contextual_bandit", spread=spread, num_features=6)
    weights, context = record["state"].weights, record["state"].context
    means = np.einsum("epaf,epf->epa", weights, context)
    _check_episodes(record, means)
    np.testing.assert_array_equal(record["seen"][..., :6], context)
    np.testing.assert_allclose(context.mean((0, 1)), 0.0, atol=0.02)
    np.testing.assert_allclose(
        context.reshape(-1, 6).T @ context.reshape(-1, 6) / (EPISODES * PULLS),
        np.eye(6) / 6,
        atol=0.02,
    )
    assert not np.any(context[:, 0] == context[:, 1])
    noise = (
        record["timestep"].reward
        - np.take_along_axis(means, record["action"][..., None], -1)[..., 0]
    )
    np.testing.assert_allclose([noise.mean(), noise.std()], [0.0, 0.1], atol=0.01)
    moved = weights - record["env"].params.weights
    np.testing.assert_allclose(moved.std(), spread, rtol=0.05, atol=1e-6)
    # Noise says nothing about the next context.
    assert abs(np.corrcoef(noise[:, 0], context[:, 1, 0])[0, 1]) < 0.08


def test_no_arm_pays_more_than_that_of_the_expert():
    env = envs.make("bandit")
    params = env.params
    states, _ = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(0), 1000), params
    )

    @jax.jit
    def expert(states):
        actions = jax.vmap(env.expert, (0, None))(states, params)
        keys = jax.random.split(jax.random.key(1), 1000)
        return jax.vmap(env.step, (0, 0, 0, None))(keys, states, actions, params)[1]

    timestep = expert(states)
    assert not np.any(timestep.metrics["regret"]) and np.all(timestep.metrics["success"] == 1)
    # the largest of ten uniform numbers
    np.testing.assert_allclose(jnp.mean(timestep.reward), 10 / 11, atol=0.04)


@pytest.mark.parametrize(
    "name,settings,match",
    [
        ("bandit", {"arms": "levers"}, "'levers'; it must be 'bernoulli' or 'gaussian'"),
        ("bandit", {"num_arms": 0}, "0 arms and 1 pulls"),
        ("contextual_bandit", {"pulls": 0}, "5 arms and 0 pulls"),
        ("contextual_bandit", {"num_features": 0}, "0 features; it must have at least 1"),
        ("two_sides", {"pulls": 0}, "1 arms and 0 pulls"),
    ],
)
def test_bad_structure_is_one_sentence(name, settings, match):
    with pytest.raises(UserError, match=match):
        envs.make(name, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bandit", "contextual_bandit", "two_sides"])
def test_the_environment_keeps_every_rule(name):
    envs.check_environment(envs.make(name, pulls=PULLS), steps=16)


def test_two_sides_pay_and_their_demonstrations_have_two_modes():
    """Rewards against their formula, and the best Gaussian policy of the demonstrations."""
    env = envs.make("two_sides", left=0.5, spread=0.03)
    keys = jax.random.split(jax.random.key(0), EPISODES)
    actions = np.random.default_rng(0).uniform(-1, 1, (EPISODES, 1)).astype(np.float32)

    @jax.jit
    def play(keys, actions):
        state, first = jax.vmap(env.reset, (0, None))(keys, env.params)
        shown = jax.vmap(env.expert, (0, None))(state, env.params)
        step = jax.vmap(env.step, (0, 0, 0, None))
        follow = lambda action: step(keys, state, action, env.params)[1]
        return first.observation[:, 0], shown, follow(actions), follow(shown)

    context, shown, played, copied = jax.tree.map(np.asarray, play(keys, actions))
    at, action = 0.6 + 0.2 * context, actions[:, 0]
    bump = lambda x: np.exp(-0.5 * (x / 0.1) ** 2)
    paid = 0.5 * bump(action + at) + bump(action - at)
    np.testing.assert_allclose(played.reward, paid, atol=1e-5)
    np.testing.assert_allclose(played.metrics["regret"], 1 - paid, atol=1e-5)
    success = np.abs(np.abs(action) - at) < 0.2
    np.testing.assert_array_equal(played.metrics["success"], success)
    assert played.terminated.all() and copied.metrics["success"].all()
    # Demonstrations lie at both sides, as often, whatever the context is.
    side = np.sign(shown[:, 0])
    np.testing.assert_allclose((np.abs(shown[:, 0]) - at)[at < 0.7].std(), 0.03, rtol=0.1)
    assert abs(side.mean()) < 0.06 and abs(np.corrcoef(side, context)[0, 1]) < 0.06
    np.testing.assert_allclose(copied.reward.mean(), 0.75 / np.sqrt(1.09), atol=0.02)
    # A Gaussian with their moments succeeds in a third of the cases.
    drawn = np.random.default_rng(1).normal(shown.mean(), shown.std(), EPISODES)
    near = np.abs(np.abs(np.clip(drawn, -1, 1)) - at) < 0.2
    assert 0.3 < near.mean() < 0.4
