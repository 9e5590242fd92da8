"""The cache of datasets: a file that is not as it was written is refused in one sentence."""

import hashlib
import io
import json
import os
import pathlib
import zipfile

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.datasets import cache
from jaxrl.datasets.data import Dataset, References
from jaxrl.envs import wrappers
from tests.datasets.files import counted_steps, environment


@pytest.fixture(autouse=True)
def new_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def make():
    return {"medium": Dataset("medium", counted_steps().transitions, References(0.0, 1.0))}


def load(make=make, **changes):
    what = {"size": 100, "seed": 0, "recipe": {"steps": 10}} | changes
    return cache.load(environment(), "medium", make=make, **what)


@pytest.fixture
def folder():
    load()
    return next(cache.root().iterdir())


def assert_refused(match, make=make):
    with pytest.raises(UserError, match=match) as raised:
        load(make)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600


def reseal(folder, content):
    """Replace the .npz file, and its checksum in the profile."""
    (folder / "medium.npz").write_bytes(content)
    known = json.loads((folder / "profile.json").read_text())
    known["medium"]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "profile.json").write_text(json.dumps(known))


def npz(folder, **changes):
    with np.load(folder / "medium.npz") as file:
        arrays = dict(file) | changes
    out = io.BytesIO()
    np.savez(out, **{k: v for k, v in arrays.items() if v is not None})
    return out.getvalue()


def test_what_is_written_is_read(folder):
    x, y = load().transitions, counted_steps().transitions
    np.testing.assert_array_equal(x.observation, y.observation)
    np.testing.assert_array_equal(x.action, y.action)


@pytest.mark.parametrize(
    "text",
    [
        *("", "\x00", "{", "[]", "null", "3", "[" * 10**5),
        *('{"expert": {}}', '{"medium": 3}', '{"medium": {}}'),
        '{"medium": {"sha256": "x", "references": null}}',
    ],
)
def test_broken_profiles_are_refused(folder, text):
    (folder / "profile.json").write_text(text)
    assert_refused(r"not as it was written .*remove the folder")


@pytest.mark.parametrize(
    "references",
    [
        *(None, 3, {}, {"random": 0}, {"random": 0, "expert": 1, "else": 2}),
        *({"random": "0", "expert": 1}, {"random": 0, "expert": None}, {"random": 1, "expert": 0}),
    ],
)
def test_references_of_wrong_types_are_refused(folder, references):
    known = json.loads((folder / "profile.json").read_text())
    known["medium"]["references"] = references
    (folder / "profile.json").write_text(json.dumps(known))
    assert_refused(r"not as it was written .*remove the folder")


def test_a_cache_without_its_profile_is_not_made_again(folder):
    (folder / "profile.json").unlink()
    assert_refused(r"profile\.json.*remove the folder", make=None)
    (folder / "profile.json").mkdir()
    assert_refused(r"profile\.json.*remove the folder", make=None)
    (folder / "profile.json").rmdir()
    (folder / "profile.json").write_bytes(b"\xff\xfe")
    assert_refused("remove the folder", make=None)


def test_datasets_that_differ_in_anything_lie_in_different_folders(folder):
    load(make=None)  # made already
    for changes in ({"size": 101}, {"seed": 1}, {"recipe": {"steps": 11}}):
        count = len(list(cache.root().iterdir()))
        load(**changes)
        load(make=None, **changes)
        assert len(list(cache.root().iterdir())) == count + 1


def test_environments_of_other_settings_have_other_folders():
    name = lambda env: cache._folder(env, 10, 0, {}).name
    sparse, dense = envs.make("point_maze"), envs.make("point_maze", reward="dense")
    # Alike in all but what a step pays.
    assert (sparse.name, sparse.max_steps) == (dense.name, dense.max_steps)
    assert repr(sparse.observation_space) == repr(dense.observation_space)
    assert len({name(sparse), name(dense), name(wrappers.sticky_actions(sparse))}) == 3
    assert name(dense) == name(envs.make("point_maze", reward="dense"))
    limited = [wrappers.cost(envs.make("cartpole"), lambda t, a, n, w=w: w) for w in (0.5, 1.0)]
    assert name(limited[0]) != name(limited[1])


def test_broken_npz_files_are_refused(folder):
    whole = (folder / "medium.npz").read_bytes()
    (folder / "medium.npz").write_bytes(whole[:-10])
    assert_refused("checksum")
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    encrypted = bytearray(whole)
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    for content in (
        b"",
        b"PK\x03\x04",
        whole[: len(whole) // 2],
        bytes(encrypted),
        array.getvalue(),
        b"\x80\x04K\x01.",  # a pickle
    ):
        reseal(folder, content)
        assert_refused(r"not as it was written .*remove the folder")


def test_damaged_npz_files_are_refused_or_read(folder):
    """The checksum is that of the damaged file; otherwise nothing else would be checked."""
    whole, refusals = (folder / "medium.npz").read_bytes(), 0
    for place in range(0, len(whole), 17):
        data = bytearray(whole)
        data[place] ^= 255
        reseal(folder, bytes(data))
        try:
            load()
        except UserError:
            refusals += 1
    assert refusals > 30


class Harmful:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "ran",)


def test_pickled_objects_are_never_loaded(folder, tmp_path):
    reseal(folder, npz(folder, **{".action": np.array([Harmful()] * 12, object)}))
    assert_refused("pickle")
    assert not (tmp_path / "ran").exists()


def test_wrong_arrays_are_refused(folder):
    whole = npz(folder)

    def one(match, **changes):
        reseal(folder, whole)
        reseal(folder, npz(folder, **changes))
        assert_refused(match)

    one("action", **{".action": None})
    one("is 9 in row 3", **{".action": np.array([0, 0, 0] + [9] * 9)})
    one("must have 12 rows", **{".action": np.zeros(7, np.int32)})
    one("real numbers", **{".action": np.array(["x"] * 12)})
    one("is nan in row 0", **{".next_timestep.reward": np.full(12, np.nan, np.float32)})
    one("must be bool", **{".timestep.first": np.zeros(12)})
    one(r"observations .* are \[3, 1\]", **{
        f".{part}.observation": np.zeros((12, 3, 1)) for part in ("timestep", "next_timestep")
    })  # fmt: skip


def test_a_huge_declared_array_is_not_allocated(folder):
    """The header, of a hundred bytes, declares an array of 4 TB."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (117 - len(header)) + b"\n"
    out = io.BytesIO(npz(folder, **{".action": None}))
    with zipfile.ZipFile(out, "a") as file:
        file.writestr(".action.npy", b"\x93NUMPY\x01\x00" + bytes([118, 0]) + header)
    reseal(folder, out.getvalue())
    assert_refused("remove the folder")


def test_a_cache_that_cannot_be_written_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    (tmp_path / "jaxrl").write_text("a file")
    assert_refused("XDG_CACHE_HOME", make=None)
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", homeless)
    assert_refused("XDG_CACHE_HOME", make=None)


def test_a_full_disk_leaves_nothing_half_made(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    assert_refused("No space left")
    assert list(cache.root().iterdir()) == []
