"""Rollouts in a model: what they hold, where they begin again, and how they mix with data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import start_source
from jaxrl.core.types import Policy, TimeStep, Transition
from jaxrl.envs.policies import random_policy
from jaxrl.sources import dataset, imagined_rollouts, mixed, replay, rollouts
from jaxrl.sources.imagined import label, true_step

ROWS, STARTS, HORIZON, END = 5, 4, 6, 103.0
PENDULUM = envs.make("pendulum")


def steps(rows=ROWS):
    """Transitions [rows] that observe their numbers, with rewards, ends and channels that a model
    does not predict."""
    number = np.arange(rows, dtype=np.float32)
    yes = np.ones(rows, bool)
    timestep = TimeStep(
        number[:, None],
        reward=7 + number,
        terminated=yes,
        truncated=yes,
        first=yes,
        true_reward=number,
        metrics={"success": number},
        privileged={"state": number},
    )
    return Transition(timestep, np.zeros(rows, np.float32), timestep, (), {})


POLICY = Policy(lambda *_: ((), (), {}), lambda n: (), ())


def count_up(policy, timestep, key):
    """Add 1 to the observation and pay 10 times it; from 100 on in the place of the data's first
    rows, the task ends at `END`."""
    observation = timestep.observation + 1
    observation = jnp.where(observation < 100, observation + 100, observation)
    reward = 10 * observation[:, 0]
    after = dataclasses.replace(
        timestep, observation=observation, reward=reward, terminated=observation[:, 0] >= END
    )
    return reward / 10, after


def play(source, rounds=1, batches=0):
    """Return the last window and `batches` batches after so many rounds."""

    @jax.jit
    def run(key):
        state = start_source(source, key, {}, POLICY)
        for _ in range(rounds):
            state, fresh, metrics = source.collect(state, POLICY, jax.random.fold_in(key, 1))
        keys = jax.random.split(key, max(batches, 1))
        return fresh, metrics, jax.vmap(lambda key: source.sample(state, fresh, key))(keys)

    return jax.tree.map(np.asarray, run(random.key(0)))


def test_rollouts_hold_what_the_model_says_and_nothing_of_the_data():
    source = imagined_rollouts(dataset(steps(), STARTS), count_up, HORIZON, env_steps=50)
    fresh, metrics, _ = play(source, rounds=2)
    x = fresh.transitions
    assert fresh.env_steps == 100.0
    assert x.reward.shape == (HORIZON, STARTS)
    before, after = x.timestep.observation[..., 0], x.next_timestep.observation[..., 0]
    start = before[0]
    assert set(start) <= set(range(ROWS))
    for column in range(STARTS):
        row, seen = start[column], []
        for _ in range(HORIZON):
            following = row + 101 if row < 100 else row + 1
            seen.append((row, following))
            row = start[column] if following >= END else following
        np.testing.assert_array_equal(np.stack([before, after], -1)[:, column], seen)
    np.testing.assert_array_equal(x.reward, 10 * after)  # no reward of the data
    np.testing.assert_array_equal(x.action, after)
    np.testing.assert_array_equal(x.terminated, after >= END)
    begun = before < 100  # the rewards on the way to a time step go on, and are 0 at first
    np.testing.assert_array_equal(x.timestep.reward, np.where(begun, 0, 10 * before))
    for name in ("first", "truncated", "terminated"):
        assert not getattr(x.timestep, name).any()
    for timestep in (x.timestep, x.next_timestep):
        assert timestep.true_reward is timestep.metrics is timestep.privileged is None
    assert not x.extras["real"].any()
    np.testing.assert_allclose(metrics["imagined_reward"].total, x.reward.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["imagined_ends"].total, x.terminated.mean(), rtol=1e-6)


def test_a_ring_of_rollouts_is_mixed_with_data_in_a_given_share():
    rounds = imagined_rollouts(dataset(steps(), STARTS), count_up, HORIZON, env_steps=50)
    ring = replay(rounds, 2 * HORIZON * STARTS, 6)
    source = mixed(label(dataset(steps(), 2), True), ring)
    x = play(source, rounds=3, batches=50)[2].transitions
    np.testing.assert_array_equal(x.extras["real"], [[True] * 2 + [False] * 6] * 50)
    real, made = x.next_timestep.observation[:, :2, 0], x.next_timestep.observation[:, 2:, 0]
    np.testing.assert_array_equal(x.reward[:, :2], 7 + real)
    np.testing.assert_array_equal(x.reward[:, 2:], 10 * made)
    assert made.min() > 100 and set(np.unique(real)) == set(range(ROWS))


def test_true_steps_are_the_environments():
    """Rollouts in the true dynamics have the steps of the environment."""
    policy = random_policy(PENDULUM)
    played = rollouts(PENDULUM, 3, 4)
    step = true_step(PENDULUM)

    @jax.jit
    def run(key):
        data = played.collect(played.init(key, {}, policy), policy, key)[1].transitions
        data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)
        action, after = step(policy, data.timestep, key)
        state = jax.vmap(PENDULUM.state_of)(data.timestep)
        again = jax.vmap(PENDULUM.step, in_axes=(None, 0, 0, None))
        own = again(key, state, data.action, PENDULUM.params)[1]
        theirs = again(key, state, action, PENDULUM.params)[1]
        return data.next_timestep, own, after, theirs

    came, own, after, theirs = run(random.key(0))
    np.testing.assert_allclose(own.observation, came.observation, atol=1e-4)
    np.testing.assert_allclose(own.reward, came.reward, atol=1e-3)
    np.testing.assert_allclose(after.observation, theirs.observation, atol=1e-5)
    np.testing.assert_allclose(after.reward, theirs.reward, atol=1e-5)


def test_what_cannot_be_imagined_is_refused():
    with pytest.raises(UserError, match="horizon of rollouts must be at least 1, got 0"):
        imagined_rollouts(dataset(steps(), STARTS), count_up, 0, env_steps=1)
    with pytest.raises(UserError, match="does not tell the state"):
        true_step(dataclasses.replace(PENDULUM, state_of=None))
    windows = imagined_rollouts(dataset(steps(), STARTS, length=2), count_up, 2, env_steps=1)
    with pytest.raises(UserError, match="needs single transitions"):
        jax.eval_shape(lambda: windows.collect(windows.init((), {}, POLICY), POLICY, random.key(0)))
