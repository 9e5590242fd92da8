"""Windows that are played on the host: autoreset modes, staleness, threads, members, wrappers."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as theirs
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.adapters import gymnasium as adapter
from jaxrl.envs.adapters import wrapping
from jaxrl.envs.wrappers.time_limit import time_limit
from jaxrl.runtime import host
from jaxrl.runtime.configuration import experiment
from jaxrl.runtime.players import Players, play
from jaxrl.sources import played_by, rollouts
from jaxrl.sources.handed import Play


class Walk(gymnasium.Env):
    """Count steps from a number of the copy's own; episodes of 2 and 3 steps end by turns, the
    first kind terminated and the second truncated."""

    observation_space = theirs.Box(-1e6, 1e6, (2,), np.float64)
    action_space = theirs.Discrete(9)
    number = 0

    def __init__(self, render_mode=None):
        Walk.number += 1
        self.own, self.episode = 1000 * Walk.number, 0

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        kind = self.episode % 2
        over = self.t == 2 + kind
        return self._observation(), float(action), over and not kind, over and bool(kind), {}

    def _observation(self):
        return np.array([self.own + 10 * self.episode + self.t, self.t], np.float64)


def make_vector(mode, num_envs):
    Walk.number = 0
    return SyncVectorEnv([Walk] * num_envs, autoreset_mode=mode)


def act(state, timestep, memory, key, greedy):
    """Act by the policy's state, and count the steps since the episode's first in the memory."""
    n = timestep.first.shape[0]
    return jnp.full(n, state, jnp.int32), memory + 1, {"before": memory}


def policy(state: Any = 0) -> Policy:
    return Policy(act, lambda n: jnp.zeros(n, jnp.int32), jnp.asarray(state))


def start(env, num_envs, num_steps, **options):
    Walk.number = 0
    environments = host.Environments(env, num_envs, **options)
    environments.reset(random.key(0))
    window = Play(environments.env, num_envs, num_steps, False, environments.env.host.masked)
    return environments, window


def transitions(env, num_envs=3, num_steps=40):
    """Return the steps of each copy in order, without those that are none."""
    environments, window = start(env, num_envs, num_steps)
    batch = play(environments, policy(), random.key(0), window).batch
    x = batch.transitions
    steps = []
    for i in range(num_envs):
        real = np.ones(num_steps, bool) if batch.mask is None else batch.mask[:, i]
        rows = zip(
            x.timestep.observation[real, i, 0] % 1000,
            x.next_timestep.observation[real, i, 0] % 1000,
            x.next_timestep.terminated[real, i],
            x.next_timestep.truncated[real, i],
            x.timestep.first[real, i],
            x.extras["before"][real, i],
            strict=True,
        )
        steps.append([tuple(map(float, row)) for row in rows][:24])
    return steps


def test_all_ways_to_reset_give_the_same_transitions():
    describe = lambda mode: adapter.describe_vector(functools.partial(make_vector, mode), "walk")
    expected = transitions(Walk)
    ends = [(row[2], row[3]) for row in expected[0]]
    assert (1.0, 0.0) in ends and (0.0, 1.0) in ends
    for before, after, *_, first, memory in expected[0]:
        assert after == before + 1  # the true last observation, also at an end
        assert (memory == 0) == bool(first)
    for mode in AutoresetMode:
        assert transitions(describe(mode)) == expected, mode


def test_steps_that_are_none_are_masked():
    env = adapter.describe_vector(functools.partial(make_vector, AutoresetMode.NEXT_STEP), "walk")
    environments, window = start(env, 2, 12)
    played = play(environments, policy(1), random.key(0), window)
    mask, done = played.batch.mask, played.batch.transitions.next_timestep.done
    assert mask is not None
    np.testing.assert_array_equal(~mask[1:], done[:-1])  # the step after an end is none
    np.testing.assert_array_equal(played.endings.done, done)
    lengths = played.endings.episode_length[played.endings.done]
    assert sorted(set(lengths.tolist())) == [2, 3]
    # The action of a step that is none earns nothing.
    np.testing.assert_array_equal(played.endings.episode_return[done], lengths)


def test_episodes_begin_anew_and_end_once():
    environments, window = start(Walk, 3, 5)
    window = Play(window.env, 3, 5, fresh=True, masked=True)
    for _ in range(2):
        played = play(environments, policy(1), random.key(1), window)
        batch = played.batch
        assert batch.mask is not None
        assert batch.transitions.timestep.first[0].all() and batch.tail is None
        assert (batch.mask.sum(0) == played.endings.episode_length.max(0)).all()
        assert (played.endings.done.sum(0) == 1).all() and batch.mask.shape == (5, 3)
        assert not batch.mask[3:].any()


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_windows_are_played_by_the_policy_of_so_many_updates_ago(staleness):
    environments, window = start(Walk, 2, 2)
    players = Players([environments], window, staleness=staleness)
    key = random.key(0)
    for number in range(8):
        played = players.window(policy(number), lambda ahead, n=number: jax.random.fold_in(key, n))
        assert (played.batch.transitions.action == max(0, number - staleness)).all()
        assert len(players._ahead) == staleness  # no more is played ahead


def test_threads_keep_their_streams():
    environments = [start(Walk, 2, 4)[0] for _ in range(2)]
    window = Play(environments[0].env, 4, 4, False, False)
    players = Players(environments, window, staleness=1)
    key = random.key(0)
    seen = [
        players.window(policy(n), lambda ahead, n=n: jax.random.fold_in(key, n)) for n in range(3)
    ]
    own = np.concatenate([x.batch.transitions.timestep.observation[..., 0] for x in seen])
    after = np.concatenate([x.batch.transitions.next_timestep.observation[..., 0] for x in seen])
    first = np.concatenate([x.batch.transitions.timestep.first for x in seen])
    assert own.shape == (12, 4) and seen[0].batch.memory.shape == (4,)
    assert (own[1:] == after[:-1])[~first[1:]].all()  # each stream goes on across windows
    with pytest.raises(UserError, match="There are 4 environments, but num_envs is 6"):
        Players(environments, Play(window.env, 6, 4, False, False))
    with pytest.raises(UserError, match="staleness must be at least 0"):
        Players(environments, window, staleness=-1)


def test_members_have_environments_of_their_own():
    environments, _ = start(Walk, 4, 3)
    window = Play(environments.env, 2, 3, False, False)
    players = Players([environments], window, members=2)
    keys = jax.random.split(random.key(0), 2)
    played = players.window(policy([3, 7]), lambda ahead: keys)
    np.testing.assert_array_equal(played.batch.transitions.action, [[3, 3, 7, 7]] * 3)
    split = host.by_member(played, 2)
    assert (split.batch.transitions.action == jnp.asarray([3, 7])[:, None, None]).all()
    assert split.batch.transitions.timestep.observation.shape == (2, 3, 2, 2)
    assert split.batch.memory.shape == (2, 2)


def test_frames_are_stacked_as_in_a_compiled_environment():
    env = wrapping.wrap(adapter.describe(Walk, "walk"), [{"frame_stack": {"frames": 3}}])
    assert env.observation_space.shape == (6,)
    environments, _ = start(env, 1, 1)
    for _ in range(2):
        environments.step(np.zeros(1, np.int32))
    last = environments.timestep.observation[0]
    np.testing.assert_array_equal(last[1::2], [0, 1, 2])
    image = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    make = lambda render_mode=None: Pictures(image)
    env = wrapping.wrap(adapter.describe(make, "pictures"), ["frame_stack"])
    assert env.observation_space.shape == (4, 5, 12)
    config = experiment({"wrappers": [{"gymnasium/ReshapeObservation": {"shape": [4, 15]}}]})
    assert wrapping.wrap(adapter.describe(make, "pictures"), config.wrappers)
    with pytest.raises(UserError, match="Unknown wrapper on the host 'gymnasium/ResizeObservatio'"):
        wrapping.wrap(env, ["gymnasium/ResizeObservatio"])


class Pictures(gymnasium.Env):
    action_space = theirs.Discrete(2)

    def __init__(self, space: Any):
        self.observation_space = self.space = space

    def reset(self, *, seed=None, options=None):
        return np.full(self.space.shape, 7, np.uint8), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


def test_limits_of_gymnasium_are_wrappers_too():
    env = envs.make("gymnasium/CartPole-v1")
    env = wrapping.wrap(env, [{"gymnasium/TimeLimit": {"max_episode_steps": 7}}])
    played = host.evaluate(env, policy(), random.key(0), 3, max_steps=50)
    assert played.lengths.max() <= 7 and played.finished.all()


def test_what_has_no_effect_on_the_host_is_refused():
    env = envs.make("gymnasium/CartPole-v1")
    with pytest.raises(UserError, match="a compiled wrapper has no effect"):
        time_limit(env, 5)
    with pytest.raises(UserError, match="played on the host, by the agent that learns from it"):
        played_by(rollouts(env, 2, 3), policy())


def test_repeated_actions_sum_their_rewards():
    env = envs.make("gymnasium/CartPole-v1", max_episode_steps=9)
    env = wrapping.wrap(env, [{"action_repeat": {"repeats": 2}}])
    assert env.max_steps == 5
    played = host.evaluate(env, policy(), random.key(0), 3)
    assert played.finished.all() and (played.lengths == -(-played.returns // 2)).all()
    with pytest.raises(UserError, match="must be a positive integer, got 0"):
        wrapping.wrap(env, [{"action_repeat": {"repeats": 0}}])


def test_actions_are_repeated_until_an_episode_ends():
    plain, other = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    twice = wrapping.action_repeat(other, 2)
    assert (plain.spec.max_episode_steps, twice.spec.max_episode_steps) == (500, 250)
    plain.reset(seed=1), twice.reset(seed=1)
    lengths, terminated = [], False
    while not terminated:
        _, reward, terminated, _, _ = twice.step(0)
        lengths.append(reward)
    number = 0
    terminated = False
    while not terminated:
        _, _, terminated, _, _ = plain.step(0)
        number += 1
    assert sum(lengths) == number and set(lengths[:-1]) == {2.0}
