"""Datasets of scripted players: what each kind holds, and that the environment played it."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline.shared import imagined_tasks, making, scripted
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.datasets.data import score
from jaxrl.datasets.transitions import returns, spans

MAZE = envs.make("point_maze_medium", dt=0.05)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(scripted, "EPISODES", 16)


def plays(env, x, atol=2e-4):
    """Return whether the environment leads from each step where the data says."""

    def play(timestep, action):
        return env.step(jax.random.key(0), env.state_of(timestep), action, env.params)[1]

    played = jax.jit(jax.vmap(play))(x.timestep, x.action)
    same = np.isclose(played.observation, x.next_observation, atol=atol).all(-1)
    return same & (played.reward == x.reward) & (played.terminated == x.terminated)


def test_conservative_data_are_of_a_weaker_controller():
    env = envs.make("double_mass")
    data = making.load(env, "conservative", 1_000, 0)
    found = score(returns(data.transitions).mean(), data.references)
    assert 45 < found < 85
    bound = np.abs(data.transitions.action).max()
    assert any(bound == pytest.approx(factor, abs=1e-6) for factor in scripted.WEAKENED)
    again = making.load(env, "conservative", 1_000, 0)  # from the cache
    np.testing.assert_array_equal(again.transitions.action, data.transitions.action)


def test_no_factor_makes_a_conservative_controller(monkeypatch):
    monkeypatch.setattr(scripted, "WEAKENED", (1.0,))
    with pytest.raises(UserError, match="No factor on the expert's actions in 'double_mass'"):
        making.load(envs.make("double_mass"), "conservative", 1_000, 0)


def test_an_environments_own_privileged_channel_is_kept():
    env = envs.make("planned_maze", size=2, plans=2)
    data = scripted.demonstrations(env, 20, 0)
    for timestep in (data.timestep, data.next_timestep):
        assert set(timestep.privileged) == set(example_timestep(env).privileged)


def test_play_is_cut_into_episodes_where_goals_are_reached():
    data = making.load(MAZE, "play", 1_500, 0)
    x = data.transitions
    assert plays(MAZE, x).all()
    episodes = spans(x)
    assert len(episodes) > 10
    for rows in episodes:
        goals = x.timestep.goal[rows]
        np.testing.assert_array_equal(goals, np.repeat(goals[:1], len(goals), 0))
        assert not x.terminated[rows][:-1].any()
    reached = x.terminated[[rows.stop - 1 for rows in episodes]]
    assert reached.mean() > 0.9
    # Most begin where the last goal was reached, with the velocity there.
    moving = np.abs(x.observation[[rows.start for rows in episodes], 2:]).max(-1) > 0.1
    assert moving.mean() > 0.5


def test_scripted_players_are_of_several_skills():
    x = making.load(envs.make("pendulum"), "scripted", 4_000, 0).transitions
    found = returns(x)
    assert found.min() < -900 and found.max() > -400


def test_imaginary_rollouts_break_the_rules_and_only_for_novel_goals():
    cells = "######## #cc##rr# #cc#rrr# ##ccr### #cc#rrr# #c#cr#r# #ccc#rr# ########"
    env = envs.make("point_maze", maze=cells, dt=0.05)
    novel = imagined_tasks.with_novel_goals(env)
    walls = np.asarray(env.params.walls)
    known = set(env.params.goals[: env.params.num_goals].tolist())
    others = set(novel.params.goals[: novel.params.num_goals].tolist())
    assert not known & others and len(known | others) == (walls == 0).sum()

    def halves(name):
        x = making.load(env, name, 1_600, 0).transitions
        center = np.array([[3.5, 3.5]])
        place = np.stack([x.timestep.goal[:, 0], -x.timestep.goal[:, 1]], -1) + center
        cell = np.round(place).astype(int)
        played = np.isin(cell[:, 1] * walls.shape[1] + cell[:, 0], list(known))
        take = lambda rows: jax.tree.map(lambda leaf: leaf[rows], x)
        return take(played), take(~played)

    real, dreamed = halves("imaginary")
    assert len(real.reward) > 100 and len(dreamed.reward) > 100
    assert plays(env, real).all() and plays(novel, dreamed).mean() < 0.05
    row = np.floor(4 - dreamed.observation[:, 1]).astype(int).clip(0, 7)
    column = np.floor(dreamed.observation[:, 0] + 4).astype(int).clip(0, 7)
    assert walls[row, column].mean() > 0.02  # through walls
    real, oracle = halves("all-tasks")
    assert plays(env, real).all() and plays(novel, oracle).all() and len(oracle.reward) > 100
    with pytest.raises(UserError, match="there is no augmentation for 'pendulum'"):
        making.load(envs.make("pendulum"), "imaginary", 100, 0)
