"""Odd HDF5 files are refused in one sentence, and no other file is opened."""

import os
import pathlib
import tracemalloc

import numpy as np
import pytest

from experiments import dataset as script
from jaxrl.commands import command_line
from jaxrl.core.errors import UserError
from jaxrl.datasets import hdf5, minari_format
from tests.datasets.files import counted_steps

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Write a good file with episodes of 3 steps."""
    file = tmp_path_factory.mktemp("good") / "x.hdf5"
    minari_format.write(file, counted_steps())
    return file.read_bytes()


@pytest.fixture
def path(tmp_path, good):
    (tmp_path / "x.hdf5").write_bytes(good)
    return tmp_path / "x.hdf5"


def change_file(path, change, name="rewards"):
    """Remove the array `name` of the second episode from the file, and call `change`."""
    with h5py.File(path, "r+") as file:
        group = file["episode_1"]
        del group[name]
        change(file, group, name)
    return path


def assert_refused(path, match):
    with pytest.raises(UserError, match=match) as raised:
        minari_format.read(path)
    message = str(raised.value)
    assert "\n" not in message and str(path) in message and len(message) < 600
    return message


def test_the_good_file_is_read(path):
    assert len(minari_format.read(path)) == 12


def cycle(file, group, name):
    group[name] = group


def back_to_the_root(file, group, name):
    group.create_group(name)["deeper"] = file


def twice(file, group, name):
    group[name] = file["episode_0"][name]


def exponential(file, group, name):
    """Make ten groups, each of which holds the next under two names: a thousand paths."""
    group = group.create_group(name)
    for _ in range(10):
        group["a"] = group["b"] = file.create_group(None)
        group = group["a"]


def deep(file, group, name):
    group.create_group(name + "/x" * 2000)


def soft(file, group, name):
    group[name] = h5py.SoftLink(f"/episode_0/{name}")


def soft_cycle(file, group, name):
    group[name] = h5py.SoftLink(f"/episode_1/{name}")


def external_link(file, group, name):
    group[name] = h5py.ExternalLink("/etc/passwd", "/x")


def external_storage(file, group, name):
    group.create_dataset(name, (3,), "f4", external=[("/etc/passwd", 0, 12)])


def virtual(file, group, name):
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", (3,))
    group.create_virtual_dataset(name, layout)


def huge(file, group, name):
    group.create_dataset(name, (10**12,), "f4", chunks=(1024,))


def array(values):
    return lambda file, group, name: group.create_dataset(name, data=values)


def named_type(file, group, name):
    group[name] = np.dtype("f8")


@pytest.mark.parametrize(
    "change,match",
    [
        (cycle, "another name"),
        (back_to_the_root, "another name"),
        (twice, "another name"),
        (exponential, "another name"),
        (deep, "16 deep"),
        (soft, "'episode_1/rewards' is a link"),
        (soft_cycle, "is a link"),
        (external_link, "is a link"),
        (external_storage, "other files"),
        (virtual, "other files"),
        (huge, r"4000000000\d\d\d bytes.*shape \[1000000000000\]"),
        (named_type, "is a type"),
        (array(np.zeros(3, [("a", "f4")])), r"array of \[\('a'"),
        (array(["a", "b", "c"]), "array of object"),
        (array(np.zeros(3, "S2")), r"array of \|S2"),
        (array(np.zeros(3, complex)), "array of complex128"),
        (array(1.0), "single value"),
        (array(h5py.Empty("f4")), "single value"),
        (array(np.zeros((3, 1))), r"shape \[3, 1\]"),
        (array(np.zeros(4)), "4 rewards and 4 observations; it needs 5"),
        (array(np.zeros(0)), "no step"),
        (lambda file, group, name: group.create_group(name), "without an array"),
        (lambda file, group, name: None, "has no rewards"),
    ],
)
def test_odd_objects_are_refused(path, change, match):
    change_file(path, change)
    assert_refused(path, match)


def test_huge_declared_arrays_are_not_allocated(path):
    change_file(path, huge)
    tracemalloc.start()
    assert_refused(path, "bytes")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_a_padded_file_does_not_excuse_a_declared_array(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", shape=(10**9,), dtype="u1", chunks=(10**6,), compression="gzip")
        file.create_dataset("b", data=np.zeros(10**6, np.uint8))
    with pytest.raises(UserError, match="'/a' is declared to have 1000000000 bytes"):
        hdf5.read(tmp_path / "x", lambda place: True)


def test_compressed_files_may_be_much_smaller_than_their_arrays(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", data=np.zeros(10**7, np.uint8), compression="gzip")
    assert os.path.getsize(tmp_path / "x") < 10**7 / 200
    assert hdf5.read(tmp_path / "x", lambda place: True)["a"].shape == (10**7,)


def test_numbers_are_of_this_machines_byte_order(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", data=np.arange(3, dtype=">f8"))
    found = hdf5.read(tmp_path / "x", lambda place: True)["a"]
    assert found.dtype.isnative and found.tolist() == [0, 1, 2]


def test_objects_that_are_not_wanted_may_be_anything(path):
    with h5py.File(path, "r+") as file:
        file["self"] = file
        file["episode_0/infos"] = h5py.ExternalLink("other", "/")
    assert len(minari_format.read(path)) == 12


@pytest.mark.parametrize(
    "names,match",
    [
        (["_index_0", "_index_2"], "_index_1"),
        (["_index_0", "_index_x"], "_index_x"),
    ],
)
def test_tuples_must_be_whole(path, names, match):
    def change(file, group, name):
        for part in names:
            group.create_dataset(f"{name}/{part}", data=np.zeros(3))

    change_file(path, change, "actions")
    assert_refused(path, match)


@pytest.mark.parametrize("name", ["episode_x", "episode_", "episode_" + "9" * 5000])
def test_episodes_have_numbers(path, name):
    with h5py.File(path, "r+") as file:
        file.copy("episode_0", name)
    with pytest.raises(UserError, match="has no number"):
        minari_format.read(path)


def test_an_episode_is_a_group(path):
    with h5py.File(path, "r+") as file:
        file["episode_7"] = np.zeros(3)
    assert_refused(path, "must be a group")


@pytest.mark.parametrize(
    "content,match",
    [
        (b"", "HDF5"),
        (b"no such thing", "HDF5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5"),
    ],
)
def test_files_that_are_not_hdf5(tmp_path, content, match):
    (tmp_path / "x.hdf5").write_bytes(content)
    assert_refused(tmp_path / "x.hdf5", match)


def test_a_file_without_an_episode(tmp_path):
    h5py.File(tmp_path / "x.hdf5", "w").close()
    assert_refused(tmp_path / "x.hdf5", "no episodes")


def test_truncated_and_damaged_files_are_refused_or_read(path):
    whole = path.read_bytes()
    for length in range(0, len(whole), 997):
        path.write_bytes(whole[:length])
        assert_refused(path, "HDF5")
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(300):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=4):
            data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data))
        try:
            minari_format.read(path)
        except UserError:
            refusals += 1
    assert refusals > 30


def test_files_that_cannot_be_opened(path, tmp_path, monkeypatch):
    (tmp_path / "folder.hdf5").mkdir()
    assert_refused(tmp_path / "folder.hdf5", "holds no main_data")
    assert_refused(tmp_path / "none.hdf5", "no such file")
    os.mkfifo(tmp_path / "pipe.hdf5")  # opening it would wait forever
    assert_refused(tmp_path / "pipe.hdf5", "no such file")
    with pytest.raises(UserError, match="name too long"):
        minari_format.read(tmp_path / ("x" * 300 + ".hdf5"))

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(h5py, "File", forbidden)  # root may open everything
    assert_refused(path, "Permission denied")
    monkeypatch.setattr(pathlib.Path, "is_dir", forbidden)
    assert_refused(path, "Permission denied")


@pytest.mark.parametrize(
    "text,match",
    [
        ("{", "metadata.json"),
        ("[" * 10**5, "metadata.json"),
        ("[]", "metadata.json"),
        ('{"ref_min_score": "0", "ref_max_score": 1}', "'0'"),
        ('{"ref_min_score": NaN, "ref_max_score": 1}', "nan"),
        ('{"ref_min_score": 1, "ref_max_score": 1}', "must be larger"),
        (f'{{"ref_min_score": 0, "ref_max_score": 1{"0" * 400}}}', "must be a number"),
    ],
)
def test_metadata(path, text, match):
    (path.parent / "metadata.json").write_text(text)
    with pytest.raises(UserError, match=match):
        minari_format.read(path)


def test_metadata_need_not_have_scores(path):
    (path.parent / "metadata.json").write_text('{"ref_min_score": null}')
    assert minari_format.read(path).references is None


def test_a_file_that_is_there_is_replaced_by_a_whole_one_or_stays(path, tmp_path, monkeypatch):
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(minari_format, "_write_episode", full)
        with pytest.raises(UserError, match="No space left"):
            minari_format.write(path, counted_steps())
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.hdf5"]
    (tmp_path / "folder.hdf5").mkdir()
    for place in (tmp_path / "folder.hdf5", path / "below.hdf5"):
        with pytest.raises(UserError, match="cannot be written"):
            minari_format.write(place, counted_steps())


def test_the_command_line_prints_one_sentence(path, capsys):
    change_file(path, cycle)
    assert command_line.call(script.main, ["pendulum", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
