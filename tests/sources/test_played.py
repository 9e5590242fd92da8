"""Datasets that each run plays: what is recorded, views within episodes, goals in hindsight."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.shared import is_shared
from jaxrl.core.types import Goals, Policy, TimeStep, Transition
from jaxrl.envs.goals import relabel
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers import time_limit
from jaxrl.sources.hindsight import Shares, hindsight
from jaxrl.sources.played import played_dataset, steps, viewed_dataset, windows
from tests.counting import counting

NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())
LENGTH = 7  # of an episode
# Achieved are the time and the episode's tag, which no other episode has.
GOALS = Goals(
    lambda observation: observation[..., :2],
    lambda achieved, goal, params: (jnp.float32(0), (achieved == goal).all(-1)),
)
ENV = dataclasses.replace(time_limit(counting(terminates_after=10**6), LENGTH), goals=GOALS)
HYPER = {"discount": jnp.float32(0.7)}
N = 4000


def draw(source, seed=0, hyper=HYPER):
    @jax.jit
    def run(key):
        state = source.init(key, hyper, NOBODY)
        state, fresh, _ = source.collect(state, NOBODY, key)
        return state, source.sample(state, fresh, random.key(1))

    return jax.tree.map(np.asarray, run(random.key(seed)))


def play(view=None, size=300, n=N, env=ENV, **options):
    return played_dataset(env, random_policy(env), size, n, view, streams=4, **options)


def relabeled_steps(own, others=None, subgoal_steps=0, **options):
    return draw(play(hindsight(ENV, own, others, subgoal_steps), **options))[1].transitions


def test_goals_are_reached_also_where_the_episode_goes_on():
    env = envs.make("point_maze", continuing=True)
    view = hindsight(env, Shares(here=1.0))
    x = draw(played_dataset(env, random_policy(env), 300, 64, view, streams=4))[1].transitions
    assert x.terminated.all() and (x.reward == 0).all()


def test_steps_are_recorded_with_their_episodes():
    state, batch = draw(play())
    data = state.data
    t, tag = data.transitions.observation[:, 0], data.transitions.observation[:, 1]
    assert len(t) == 300 and batch.transitions.reward.shape == (N,) and batch.mask is None
    np.testing.assert_array_equal(data.time, t)
    # 75 steps of a stream are 10 episodes of 7 steps and 5 steps of another one.
    cut = np.arange(300) % 75 >= 70
    np.testing.assert_array_equal(data.whole, ~cut)
    np.testing.assert_array_equal(t[data.end], np.where(cut, 4, LENGTH - 1))
    np.testing.assert_array_equal(tag[data.end], tag)
    for row in (0, 3, 6, 71, 74, 75, 298):
        rest = data.transitions.reward[row : data.end[row] + 1]
        np.testing.assert_allclose(data.to_go[row], rest.sum(), rtol=1e-6)
    assert set(np.unique(batch.transitions.observation[:, 0])) == set(range(LENGTH))


def test_windows_stay_within_whole_episodes():
    batch = draw(play(windows(3)))[1]
    x = batch.transitions
    assert x.reward.shape == (3, N) and batch.mask.all()
    t, tag = x.observation[..., 0], x.observation[..., 1]
    np.testing.assert_array_equal(t, t[0] + np.arange(3)[:, None])
    np.testing.assert_array_equal(tag, np.broadcast_to(tag[0], tag.shape))
    np.testing.assert_array_equal(x.extras["time"], t)
    # Windows begin at the first 5 of 7 steps, equally often, in the 40 whole episodes alone.
    np.testing.assert_allclose(np.bincount(t[0].astype(int)) / N, [0.2] * 5, atol=0.03)
    assert len(np.unique(tag)) == 40
    np.testing.assert_allclose(
        x.extras["to_go"][0] - x.extras["to_go"][2], x.reward[:2].sum(0), rtol=1e-5
    )


def test_padded_windows_begin_at_any_step():
    batch = draw(play(windows(3, pad=True)))[1]
    x = batch.transitions
    t, tag = x.observation[..., 0], x.observation[..., 1]
    expected = t[0] + np.arange(3)[:, None]
    np.testing.assert_array_equal(batch.mask, expected < LENGTH)
    np.testing.assert_array_equal(t, np.minimum(expected, LENGTH - 1))
    np.testing.assert_array_equal(tag, np.broadcast_to(tag[0], tag.shape))
    np.testing.assert_array_equal(x.extras["time"], t)
    np.testing.assert_allclose(np.bincount(t[0].astype(int)) / N, [1 / LENGTH] * LENGTH, atol=0.03)
    assert len(np.unique(tag)) == 40  # whole episodes
    rest = np.where(batch.mask, x.reward, 0).sum(0)
    last = t[0] >= LENGTH - 3
    np.testing.assert_allclose(x.extras["to_go"][0][last], rest[last], rtol=1e-5)


def test_a_view_of_a_dataset_is_one_of_its_episodes():
    """Episodes of 3, 1 and 2 steps, the second of which a clock ended; returns-to-go are those of
    what was recorded."""
    rewards, ends = np.array([1.0, 2, 4, 8, 16, 32], np.float32), [2, 3, 5]
    at = np.arange(6)
    no, first, last = np.zeros(6, bool), np.isin(at, [0, 3, 4]), np.isin(at, ends)
    before = TimeStep(at[:, None].astype(np.float32), rewards, no, no, first)
    after = TimeStep(at[:, None] + 1.0, rewards, last & (at != 3), last & (at == 3), no)
    x = Transition(before, at, after, (), {})
    state, batch = draw(viewed_dataset(x, N, windows(2, pad=True), updates=3))
    assert is_shared(state.data) and state.batches == 3
    drawn, row = batch.transitions, batch.transitions.action[0]
    assert set(row) == set(range(6))
    np.testing.assert_array_equal(drawn.extras["to_go"][0], np.array([7, 6, 4, 8, 48, 32])[row])
    np.testing.assert_array_equal(drawn.extras["time"][0], np.array([0, 1, 2, 0, 0, 1])[row])
    np.testing.assert_array_equal(batch.mask[1], np.isin(row, [0, 1, 4]))
    np.testing.assert_array_equal(drawn.action[1], np.where(batch.mask[1], row + 1, row))
    cut = jax.tree.map(lambda a: a[:2], x)
    with pytest.raises(UserError, match="the dataset '' has none"):
        viewed_dataset(cut, 4, windows(2))
    assert viewed_dataset(cut, 4, steps()).env_steps == 1
    with pytest.raises(UserError, match="batch_size must be at least 1"):
        viewed_dataset(x, 0, steps())


def test_runs_play_their_own_data_or_share_it():
    first, other = (draw(play(), seed)[0].data.transitions.action for seed in (0, 1))
    assert (first != other).any()
    states = [jax.eval_shape(play(seed=3).init, random.key(0), HYPER, NOBODY)]
    assert is_shared(states[0].data)
    first, other = (draw(play(seed=3), seed)[0].data.value.transitions.action for seed in (0, 1))
    np.testing.assert_array_equal(first, other)


def test_later_goals_are_k_steps_away_and_within_the_episode():
    """A goal one step away is the one that the step reaches; no goal is beyond the episode's end,
    whatever the discount says."""
    for geometric in (True, False):
        x = relabeled_steps(Shares(geometric=geometric))
        t, goal = x.observation[:, 0], x.timestep.goal
        np.testing.assert_array_equal(goal[:, 1], x.observation[:, 1])  # the same episode
        distance = goal[:, 0] - t
        assert distance.min() == 1 and (distance <= LENGTH - t).all()
        np.testing.assert_array_equal(x.terminated, distance == 1)
        np.testing.assert_array_equal(x.reward, np.full(N, -1.0))
        assert not x.truncated.any()
        at = distance[t == 0]  # episodes that were cut off at 5 steps are few
        share = 0.3 * 0.7 ** np.arange(LENGTH - 1)
        share = np.append(share, 1 - share.sum()) if geometric else np.full(LENGTH, 1 / LENGTH)
        np.testing.assert_allclose(np.bincount(at.astype(int))[1:] / len(at), share, atol=0.06)


def test_goals_of_the_state_itself_and_from_elsewhere():
    x = relabeled_steps(Shares(here=0.25, elsewhere=0.5))
    same = x.timestep.goal[:, 1] == x.observation[:, 1]
    here = same & (x.timestep.goal[:, 0] == x.observation[:, 0])
    np.testing.assert_allclose(here.mean(), 0.25, atol=0.03)
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.04)
    np.testing.assert_array_equal(x.reward, np.where(here, 0.0, -1.0))
    reached = (x.next_observation[:, :2] == x.timestep.goal).all(-1)
    np.testing.assert_array_equal(x.terminated, here | reached)
    np.testing.assert_array_equal(x.timestep.goal, x.next_timestep.goal)


def test_reached_means_what_relabel_means():
    env = envs.make("goal_maze", layout="u_maze", observe="position")
    view = hindsight(env, Shares(0.2, 0.3, True))
    x = draw(play(view, env=env, n=256))[1].transitions
    other = jax.vmap(relabel, in_axes=(None, 0, 0))(env, x, x.timestep.goal)
    here = x.reward == 0
    np.testing.assert_array_equal(x.terminated[~here], other.terminated[~here])
    np.testing.assert_array_equal(here, (x.observation == x.timestep.goal).all(-1))


def test_subgoals_lie_on_the_way():
    x = relabeled_steps(Shares(), {"high_goal": Shares()}, subgoal_steps=3)
    t, high = x.observation[:, 0], x.extras["high_goal"]
    subgoal, low = x.extras["subgoal"].observation, x.extras["low_goal"]
    end = np.where(t + 3 <= LENGTH, t + 3, LENGTH)
    np.testing.assert_array_equal(subgoal[:, 1], x.observation[:, 1])
    cut = low[:, 0] < end  # by the end of the record
    assert cut.mean() < 0.1
    np.testing.assert_array_equal(low[~cut, 0], end[~cut])
    np.testing.assert_array_equal(subgoal[:, 0], np.minimum(low[:, 0], high[:, 0]))
    elsewhere = relabeled_steps(Shares(), {"high_goal": Shares(elsewhere=1.0)}, subgoal_steps=3)
    far = elsewhere.extras["high_goal"][:, 1] != elsewhere.observation[:, 1]
    np.testing.assert_array_equal(
        elsewhere.extras["subgoal"].observation[far, :2], elsewhere.extras["low_goal"][far]
    )


def test_bad_settings():
    bare = counting()
    for make, what in (
        (lambda: play(size=0), "size must be at least 1"),
        (lambda: play(windows(3), size=20), "needs whole episodes"),
        (lambda: windows(0), "length of windows must be at least 1"),
        (lambda: hindsight(bare, Shares()), "has no goals"),
        (lambda: hindsight(ENV, Shares(), subgoal_steps=2), "high_goal"),
        (lambda: Shares(here=0.6, elsewhere=0.6), "at most 1 together"),
    ):
        with pytest.raises(UserError, match=what):
            make()
