"""Minari's files are read as the minari package writes them, and written as it reads them."""

import jax
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.datasets import minari_format
from jaxrl.datasets.data import References
from tests.datasets.files import counted_steps

minari = pytest.importorskip("minari")
gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


def write_with_minari(folder, monkeypatch, observation_space, observe):
    """Let the package write a dataset of two episodes, one terminated after 3 steps and one
    truncated after 2. Returns its folder and the episodes."""
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    rng = np.random.default_rng(0)
    episodes = []
    for number, (steps, terminated) in enumerate(((3, True), (2, False))):
        flags = np.zeros((2, steps), bool)
        flags[0 if terminated else 1, -1] = True
        episodes.append(
            EpisodeBuffer(
                id=number,
                observations=observe(rng.normal(size=(steps + 1, 3)).astype(np.float32)),
                actions=rng.normal(size=(steps, 2)).astype(np.float32),
                rewards=rng.normal(size=steps).tolist(),
                terminations=flags[0].tolist(),
                truncations=flags[1].tolist(),
                infos=None,
            )
        )
    minari.create_dataset_from_buffers(
        "environment/small-v0",
        buffer=episodes,
        observation_space=observation_space,
        action_space=spaces.Box(-9.0, 9.0, (2,), np.float32),
    )
    return folder / "environment" / "small-v0", episodes


BOX = spaces.Box(-9.0, 9.0, (3,), np.float32)


def test_files_of_the_package_are_read(tmp_path, monkeypatch):
    folder, (a, b) = write_with_minari(tmp_path, monkeypatch, BOX, lambda x: x)
    # The package writes reference scores only for datasets with a Gymnasium environment.
    minari.load_dataset("environment/small-v0").storage.update_metadata(
        {"ref_min_score": -1.0, "ref_max_score": 3.0}
    )
    data = minari_format.read(folder)
    x = data.transitions
    np.testing.assert_array_equal(x.observation, [*a.observations[:-1], *b.observations[:-1]])
    np.testing.assert_array_equal(x.next_observation, [*a.observations[1:], *b.observations[1:]])
    np.testing.assert_array_equal(x.action, [*a.actions, *b.actions])
    np.testing.assert_allclose(x.reward, [*a.rewards, *b.rewards], rtol=1e-6)
    np.testing.assert_array_equal(x.terminated, [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(x.truncated, [0, 0, 0, 0, 1])
    np.testing.assert_array_equal(x.first, [1, 0, 0, 1, 0])
    assert data.references == References(-1.0, 3.0)


def test_goals(tmp_path, monkeypatch):
    goal = spaces.Box(-9.0, 9.0, (1,), np.float32)
    space = spaces.Dict({"observation": BOX, "desired_goal": goal, "achieved_goal": goal})
    observe = lambda x: {"observation": x, "desired_goal": x[:, :1], "achieved_goal": x[:, 1:2]}
    folder, (a, b) = write_with_minari(tmp_path, monkeypatch, space, observe)
    data = minari_format.read(folder)
    goals = [e.observations["desired_goal"][:-1] for e in (a, b)]
    np.testing.assert_array_equal(data.transitions.timestep.goal, np.concatenate(goals))
    minari_format.write(tmp_path / "again.hdf5", data)
    again = minari_format.read(tmp_path / "again.hdf5")
    assert_same(data, again)


def test_the_package_reads_our_files(tmp_path, monkeypatch):
    folder, _ = write_with_minari(tmp_path, monkeypatch, BOX, lambda x: x)
    counts = counted_steps()
    minari_format.write(folder / "data" / minari_format.MAIN, counts)
    assert_same(counts, minari_format.read(folder))
    episodes = list(minari.load_dataset("environment/small-v0").storage.get_episodes(range(4)))
    x = counts.transitions
    for number, episode in enumerate(episodes):
        rows = slice(3 * number, 3 * number + 3)
        assert len(episode["observations"]) == 4
        np.testing.assert_array_equal(episode["observations"][:-1], x.observation[rows])
        np.testing.assert_array_equal(episode["observations"][1:], x.next_observation[rows])
        np.testing.assert_array_equal(episode["rewards"], x.reward[rows])
        np.testing.assert_array_equal(episode["truncations"], [0, 0, 1])


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x.hdf5").write_text("no such thing")
    with pytest.raises(UserError, match="Minari"):
        minari_format.read(tmp_path / "x.hdf5")
    with pytest.raises(UserError, match=r"main_data\.hdf5"):
        minari_format.read(tmp_path)


def assert_same(a, b):
    """Compare all but the channels that files do not have."""
    x, y = a.transitions, b.transitions
    for part in ("observation", "next_observation", "action", "reward", "terminated", "truncated"):
        jax.tree.map(np.testing.assert_array_equal, getattr(x, part), getattr(y, part))
    np.testing.assert_array_equal(x.first, y.first)
    assert (x.timestep.goal is None) == (y.timestep.goal is None)
