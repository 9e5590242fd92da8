"""Files of D4RL and Hugging Face become whole episodes, in which no step is invented."""

import h5py
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.datasets import files, minari_format
from tests.datasets.files import counted_steps

# Episodes of 3 steps (terminated), 2 (timeout), 1 (terminated) and 2 (cut off).
TERMINAL = np.array([0, 0, 1, 0, 0, 1, 0, 0], bool)
TIMEOUT = np.array([0, 0, 0, 0, 1, 0, 0, 0], bool)
N = len(TERMINAL)
STEPS = {
    "observations": 10.0 + np.arange(N, dtype=np.float32)[:, None],
    "actions": np.arange(2 * N, dtype=np.float32).reshape(N, 2),
    "rewards": np.arange(N) + 0.5,
    "terminals": TERMINAL,
    "timeouts": TIMEOUT,
}


def write(path, steps):
    with h5py.File(path, "w") as file:
        for name, values in steps.items():
            file[name] = values
        file["metadata/algorithm"] = "SAC"  # text, which is not read
        file["infos/qpos"] = np.zeros((1, 1))
    return path


def test_d4rl_with_next_observations(tmp_path):
    after = STEPS["observations"] + 100
    x = files.read(write(tmp_path / "a.hdf5", STEPS | {"next_observations": after})).transitions
    np.testing.assert_array_equal(x.observation, STEPS["observations"])
    np.testing.assert_array_equal(x.next_observation[:, 0], [11, 12, 112, 14, 114, 115, 17, 117])
    np.testing.assert_array_equal(x.action, STEPS["actions"])
    np.testing.assert_array_equal(x.reward, STEPS["rewards"].astype(np.float32))
    np.testing.assert_array_equal(x.terminated, TERMINAL)
    np.testing.assert_array_equal(x.truncated, [0, 0, 0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(x.first, [1, 0, 0, 1, 0, 1, 1, 0])


def test_d4rl_without_next_observations_ends_a_step_earlier(tmp_path):
    x = files.read(write(tmp_path / "a.hdf5", STEPS)).transitions
    kept = [0, 1, 2, 3, 5, 6]  # the rows at a timeout and at the end are successors alone
    np.testing.assert_array_equal(x.observation, STEPS["observations"][kept])
    np.testing.assert_array_equal(x.next_observation[:, 0], [11, 12, 12, 14, 15, 17])
    np.testing.assert_array_equal(x.reward, STEPS["rewards"][kept].astype(np.float32))
    np.testing.assert_array_equal(x.terminated, TERMINAL[kept])
    np.testing.assert_array_equal(x.truncated, [0, 0, 0, 1, 0, 1])


def test_without_timeouts_only_terminations_end_episodes(tmp_path):
    steps = {name: x for name, x in STEPS.items() if name != "timeouts"}
    x = files.read(write(tmp_path / "a.h5", steps)).transitions
    np.testing.assert_array_equal(x.first, [1, 0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(x.observation[:, 0], [10, 11, 12, 13, 14, 15, 16])


def test_damaged_d4rl_files_are_refused_by_name(tmp_path):
    wrong = {
        "There are no rewards": {k: v for k, v in STEPS.items() if k != "rewards"},
        "7 actions, 8 observations": STEPS | {"actions": STEPS["actions"][:-1]},
        "field 'terminals' is 2": STEPS | {"terminals": TERMINAL * 2},
        "There are no episodes": {k: v[:1] for k, v in STEPS.items()},
    }
    for message, steps in wrong.items():
        with pytest.raises(UserError, match=message) as error:
            files.read(write(tmp_path / "wrong.hdf5", steps))
        assert "wrong.hdf5' is not a dataset in D4RL's format" in str(error.value)


def test_files_of_minari_are_told_from_those_of_d4rl(tmp_path):
    data = counted_steps()
    minari_format.write(tmp_path / "main_data.hdf5", data)
    found = files.read(tmp_path / "main_data.hdf5").transitions
    np.testing.assert_array_equal(found.observation, data.transitions.observation)
    (tmp_path / "none.hdf5").write_text("none")
    for name in ("none.hdf5", "missing.hdf5"):
        with pytest.raises(UserError, match="in Minari's format"):
            files.read(tmp_path / name)


def table(**columns):
    pyarrow = pytest.importorskip("pyarrow")
    parts = np.split(np.arange(N), [3, 5, 6])
    of = lambda name: [STEPS[name][rows].tolist() for rows in parts]
    default = {name: of(name) for name in ("observations", "actions", "rewards")}
    return pyarrow.table(default | {"dones": of("terminals")} | columns)


def test_parquet_has_an_episode_in_each_row(tmp_path):
    from pyarrow import parquet

    expected = files.read(write(tmp_path / "a.hdf5", STEPS)).transitions
    parquet.write_table(table(), tmp_path / "a.parquet")
    whole = table()
    (tmp_path / "parts").mkdir()
    for i in range(2):
        parquet.write_table(whole.slice(2 * i, 2), tmp_path / "parts" / f"{i}.parquet")
    for path in (tmp_path / "a.parquet", tmp_path / "parts"):
        x = files.read(path).transitions
        np.testing.assert_array_equal(x.observation, expected.observation)
        np.testing.assert_array_equal(x.next_observation, expected.next_observation)
        np.testing.assert_array_equal(x.reward, expected.reward)
        np.testing.assert_array_equal(x.terminated, expected.terminated)
        np.testing.assert_array_equal(x.truncated, expected.truncated)


def test_damaged_parquet_is_refused_by_name(tmp_path):
    from pyarrow import parquet

    wrong = {
        "no column dones": table().drop_columns(["dones"]),
        "row 1 has 2 rewards and 1 dones": table(dones=[[0, 0, 1], [0], [1], [0, 0]]),
        "1 numbers in one step and 2 in another": table(
            actions=[[[1.0], [1.0, 2.0], [1.0]], [[1.0]] * 2, [[1.0]], [[1.0]] * 2]
        ),
        "must have a list in each row": table(rewards=[1.0, 2.0, 3.0, 4.0]),
    }
    path = tmp_path / "wrong.parquet"
    for message, content in wrong.items():
        parquet.write_table(content, path)
        with pytest.raises(UserError, match=message) as error:
            files.read(path)
        assert "wrong.parquet' is not a dataset in Parquet" in str(error.value)
    path.write_text("none")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        files.read(path)
