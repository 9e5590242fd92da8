"""The cache of datasets: what is not as it was written is one sentence, before any training."""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import zipfile

import numpy as np
import pytest

from experiments import dataset as script
from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.datasets import cache, making
from jaxrl.datasets.data import Dataset, References
from jaxrl.runtime import command_line
from tests.datasets.files import counted, environment


@pytest.fixture(autouse=True)
def no_training(monkeypatch, tmp_path):
    """A cache of its own, and a run that takes no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Dataset("medium", counted().transitions, References(0.0, 1.0))
    monkeypatch.setattr(making, "make", lambda env, size, seed: {"medium": made})


@pytest.fixture
def folder():
    cache.load(environment(), "medium")
    return next(cache.root().iterdir())


def refused(match):
    with pytest.raises(UserError, match=match) as raised:
        cache.load(environment(), "medium")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 600


def resealed(folder, content):
    """Another .npz, and its checksum in the profile."""
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
    x, y = cache.load(environment(), "medium").transitions, counted().transitions
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
def test_a_profile_that_is_none(folder, text):
    (folder / "profile.json").write_text(text)
    refused(r"not as it was written .*remove the folder")


@pytest.mark.parametrize(
    "references",
    [
        *(None, 3, {}, {"random": 0}, {"random": 0, "expert": 1, "else": 2}),
        *({"random": "0", "expert": 1}, {"random": 0, "expert": None}, {"random": 1, "expert": 0}),
    ],
)
def test_references_of_wrong_types(folder, references):
    known = json.loads((folder / "profile.json").read_text())
    known["medium"]["references"] = references
    (folder / "profile.json").write_text(json.dumps(known))
    refused(r"not as it was written .*remove the folder")


def test_a_cache_without_its_profile_is_not_made_again(folder, monkeypatch):
    (folder / "profile.json").unlink()
    monkeypatch.setattr(making, "make", None)
    refused(r"profile\.json.*remove the folder")
    (folder / "profile.json").mkdir()
    refused(r"profile\.json.*remove the folder")
    (folder / "profile.json").rmdir()
    (folder / "profile.json").write_bytes(b"\xff\xfe")
    refused("remove the folder")


def test_npz_files_that_are_none(folder):
    whole = (folder / "medium.npz").read_bytes()
    (folder / "medium.npz").write_bytes(whole[:-10])
    refused("checksum")
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
        resealed(folder, content)
        refused(r"not as it was written .*remove the folder")


def test_damaged_npz_files_are_refused_or_read(folder):
    """With the checksum of the damage, since otherwise that is all that is looked at."""
    whole, refusals = (folder / "medium.npz").read_bytes(), 0
    for place in range(0, len(whole), 17):
        data = bytearray(whole)
        data[place] ^= 255
        resealed(folder, bytes(data))
        try:
            cache.load(environment(), "medium")
        except UserError:
            refusals += 1
    assert refusals > 30


class Harmful:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "ran",)


def test_pickled_objects_are_never_loaded(folder, tmp_path):
    resealed(folder, npz(folder, **{".action": np.array([Harmful()] * 12, object)}))
    refused("pickle")
    assert not (tmp_path / "ran").exists()


def test_arrays_that_are_not_what_they_should_be(folder):
    whole = npz(folder)

    def one(match, **changes):
        resealed(folder, whole)
        resealed(folder, npz(folder, **changes))
        refused(match)

    one("action", **{".action": None})
    one("is 9 in row 3", **{".action": np.array([0, 0, 0] + [9] * 9)})
    one("must have 12 rows", **{".action": np.zeros(7, np.int32)})
    one("real numbers", **{".action": np.array(["x"] * 12)})
    one("is nan in row 0", **{".next_timestep.reward": np.full(12, np.nan, np.float32)})
    one("must be bool", **{".timestep.first": np.zeros(12)})
    one(r"observations .* are \[3, 1\]", **{
        f".{part}.observation": np.zeros((12, 3, 1)) for part in ("timestep", "next_timestep")
    })  # fmt: skip


def test_a_declared_array_is_not_allocated(folder):
    """An array of 4 TB in a hundred bytes."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    header += b" " * (117 - len(header)) + b"\n"
    out = io.BytesIO(npz(folder, **{".action": None}))
    with zipfile.ZipFile(out, "a") as file:
        file.writestr(".action.npy", b"\x93NUMPY\x01\x00" + bytes([118, 0]) + header)
    resealed(folder, out.getvalue())
    refused("remove the folder")


def test_a_cache_that_cannot_be_written_is_said_before_the_training(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "make", None)
    (tmp_path / "jaxrl").write_text("a file")
    refused("XDG_CACHE_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", homeless)
    refused("XDG_CACHE_HOME")


def test_what_no_data_set_is_made_of(monkeypatch):
    monkeypatch.undo()
    for env, size, match in (
        (dataclasses.replace(environment(), name="gymnasium/x"), 9, "Minari"),
        (dataclasses.replace(environment(), max_steps=None), 9, "no time limit"),
        (environment(), 0, "size must be at least 1"),
        (environment(), 10**30, "size must be at least 1 and below"),
    ):
        with pytest.raises(UserError, match=match):
            making.make(env, size)


def test_a_full_disk_leaves_nothing_half_made(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    refused("No space left")
    assert list(cache.root().iterdir()) == []


def test_a_name_is_the_set_and_a_path_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "medium").mkdir()
    assert len(cache.load(environment(), "medium")) == 12
    with pytest.raises(UserError, match="holds no main_data"):
        cache.load(environment(), "./medium")
    with pytest.raises(UserError, match=r"'\./large'"):
        cache.load(environment(), "./large")


@pytest.mark.parametrize(
    "options,match",
    [
        (["--size", "x"], "--size is 'x'"),
        (["--size", "9" * 5000], "--size"),
        (["--seed", "1.5"], "--seed is '1.5'"),
        (["--run", "nowhere"], "'nowhere' has no summary"),
        (["--run", "odd"], "'odd' has no summary"),
        (["--write", "odd"], "cannot be written"),
    ],
)
def test_the_command_line(folder, tmp_path, monkeypatch, capsys, options, match):
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(envs, "make", lambda name: environment())
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "summary.json").write_text('{"returns": [[1], null]}')
    assert command_line.call(script.main, ["counting", "medium", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and match in error


def test_scores_of_a_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(envs, "make", lambda name: environment())
    (tmp_path / "summary.json").write_text('{"returns": [0.5, 1]}')
    words = ["counting", "medium", "--run", str(tmp_path)]
    assert command_line.call(script.main, words) == 0
    assert "Scores: [50.0, 100.0]" in capsys.readouterr().out
