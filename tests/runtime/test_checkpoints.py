"""Checkpoints: values come back bit for bit, and damage is reported."""

import json
import logging
import os
import random as pyrandom
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Tree, static, struct
from jaxrl.runtime import checkpoint_files, checkpoints
from jaxrl.runtime.checkpoints import CheckpointError

DTYPES = ["bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32"]
DTYPES += ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "complex64"]


@struct
class Inner:
    weights: Tree
    nothing: Tree = None


@struct
class Outer:
    inner: Inner
    key: jax.Array
    name: str = static("x")


def outer(size: int = 3) -> Outer:
    return Outer(
        Inner({"w": (jnp.arange(size, dtype=jnp.float32), jnp.int32(7))}), random.key(0, "pcg")
    )


def bits(x) -> tuple:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return str(x.dtype), x.shape, np.asarray(jax.random.key_data(x)).tobytes()
    x = np.asarray(x)
    return x.dtype.name, x.shape, x.tobytes()


def assert_same_bits(a: Tree, b: Tree) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert bits(x) == bits(y)


def there_and_back(folder: Path, tree: Tree, like: Tree | None = None) -> Tree:
    path = checkpoints.save(folder, 1, tree, {})
    restored, _ = checkpoints.restore(path, tree if like is None else like)
    return restored


# ---------------------------------------------------------------------------- what comes back


@pytest.mark.slow
def test_every_dtype_comes_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    tree = {d: jnp.asarray(rng.integers(0, 2, (2, 5)) * 3 % 8, jnp.dtype(d)) for d in DTYPES} | {
        f"scalar {d}": jnp.ones((), jnp.dtype(d)) for d in DTYPES
    }
    restored = there_and_back(tmp_path, tree)
    assert_same_bits(tree, restored)
    for leaf in jax.tree.leaves(restored):
        assert isinstance(leaf, jax.Array) and not leaf.committed and not leaf.weak_type


def test_bits_of_nans_and_of_negative_zeros_survive(tmp_path):
    tree = {
        "nans": np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000001], np.uint32).view("f4"),
        "bf16": np.array([0x7FC1, 0xFFC2, 0x7F81], np.uint16).view(ml_dtypes.bfloat16),
        "-0": np.full((100,), -0.0, np.float32),  # a fill value except for the sign
        "-0 alone": np.float32(-0.0),
        "inf": jnp.array([jnp.inf, -jnp.inf]),
    }
    assert_same_bits(tree, there_and_back(tmp_path, tree))


@pytest.mark.parametrize("generator", ["pcg", "threefry2x32"])
def test_keys_come_back_with_their_generator(tmp_path, generator):
    key = random.key(3, generator)
    tree = {"one": key, "many": jax.random.split(key, (2, 3)), "none": jax.random.split(key, 0)}
    like = jax.eval_shape(lambda: tree)
    restored = there_and_back(tmp_path, tree, like)
    assert_same_bits(tree, restored)
    assert random.generator_name(restored["many"]) == generator
    assert bits(jax.random.normal(restored["one"], (4,))) == bits(jax.random.normal(key, (4,)))
    raw, _ = checkpoints.restore_raw(checkpoints.latest(tmp_path))
    np.testing.assert_array_equal(raw["['one']"], jax.random.key_data(key))


def test_a_generator_of_jax_alone_works_too(tmp_path):
    assert_same_bits([k := jax.random.key(1, impl="rbg")], there_and_back(tmp_path, [k]))


def test_empty_leaves_nested_structs_and_none(tmp_path):
    tree = (
        outer(),
        {"empty": jnp.zeros((0, 3), jnp.bfloat16), "none": None, "unit": ()},
        [np.zeros((2, 0), bool), jnp.ones((1, 1))],
    )
    restored = there_and_back(tmp_path, tree, jax.eval_shape(lambda: tree))
    assert_same_bits(tree, restored)
    assert restored[0].inner.nothing is None and restored[1]["none"] is None


@pytest.mark.parametrize("tree", [(), None, {"a": jnp.zeros((0,))}], ids=str)
def test_a_tree_without_numbers(tmp_path, tree):
    assert_same_bits(tree, there_and_back(tmp_path, tree))


def test_python_scalars_get_the_dtype_that_jax_gives_them(tmp_path):
    restored = there_and_back(tmp_path, {"b": True, "i": -3, "f": 0.1, "c": 1j})
    expected = {"b": jnp.bool_(True), "i": jnp.int32(-3), "f": jnp.float32(0.1), "c": jnp.array(1j)}
    assert_same_bits(expected, restored)


def test_numbers_of_64_bits_are_not_cut(tmp_path):
    tree = {"i": np.array([2**40 + 1]), "f": np.array(0.1)}
    assert_same_bits(tree, there_and_back(tmp_path, tree))


def test_a_large_array_and_a_slice_of_one(tmp_path):
    big = np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)
    tree = {"big": jnp.asarray(big), "strided": big[::7, ::3], "fortran": np.asfortranarray(big)}
    assert_same_bits(tree, there_and_back(tmp_path, tree))


def test_what_was_saved_may_be_donated_afterwards(tmp_path):
    state = {"w": jnp.arange(1000.0)}
    path = checkpoints.save(tmp_path, 1, state, {})
    expected = np.arange(1000, dtype=np.float32)
    jax.jit(lambda s: {"w": s["w"] * 0 - 1}, donate_argnums=0)(state)
    restored, _ = checkpoints.restore(path, {"w": jax.ShapeDtypeStruct((1000,), jnp.float32)})
    assert bits(restored["w"]) == bits(expected)
    jax.jit(lambda s: {"w": s["w"] + 1}, donate_argnums=0)(
        restored
    )  # restored arrays may be donated too


def test_meta_comes_back_and_lists_the_leaves(tmp_path):
    meta = {"seed": 3, "config": {"rate": 1e-3, "layers": [64, 64]}, "note": "é", "none": None}
    path = checkpoints.save(tmp_path, 12, outer(), meta)
    assert path == tmp_path / "step_000000000012"
    assert checkpoints.restore(path, outer())[1] == meta
    raw, raw_meta = checkpoints.restore_raw(path)
    assert raw_meta == meta
    assert sorted(raw) == [".inner.weights['w'][0]", ".inner.weights['w'][1]", ".key"]
    np.testing.assert_array_equal(raw[".inner.weights['w'][0]"], np.arange(3, dtype=np.float32))
    leaves = json.loads((path / "meta.json").read_text())["leaves"]
    assert [leaf["generator"] for leaf in leaves] == [None, None, "pcg"]


def test_a_relative_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = checkpoints.save(Path("runs/a"), 1, outer(), {})
    assert path.is_absolute()
    assert_same_bits(checkpoints.restore(checkpoints.latest("runs/a"), outer())[0], outer())


def test_it_works_inside_a_running_event_loop(tmp_path):  # as in a notebook
    import asyncio

    async def cell():
        return there_and_back(tmp_path, outer())

    assert_same_bits(asyncio.run(cell()), outer())


# ---------------------------------------------------------------------------- what is broken


FILES = ["meta.json", "checksums.json", "arrays/manifest.ocdbt", "arrays/_METADATA", "the biggest"]


def one(folder: Path, name: str) -> tuple[Path, Path]:
    tree = {"big": jnp.asarray(np.random.default_rng(0).random(5000, np.float32)), "b": jnp.ones(3)}
    path = checkpoints.save(folder, 1, tree, {"a": 1})
    files = [f for f in path.rglob("*") if f.is_file()]
    biggest = max(files, key=lambda f: f.stat().st_size)
    assert biggest.stat().st_size > 10_000 and biggest.is_relative_to(path / "arrays")
    return path, biggest if name == "the biggest" else path / name


def flip(file: Path, where: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(where * (len(content) - 1))] ^= 0x20  # changes the case of a hexadecimal digit
    file.write_bytes(content)


def assert_broken(path: Path, file: Path, fault: str) -> None:
    name = file.relative_to(path).as_posix()
    for read in (
        checkpoints.verify,
        checkpoints.restore_raw,
        lambda p: checkpoints.restore(p, {"big": jnp.zeros(5000), "b": jnp.ones(3)}),
    ):
        with pytest.raises(CheckpointError) as error:
            read(path)
        message = str(error.value)
        assert str(path) in message and f"its file {name} is {fault}." in message


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(tmp_path, name):
    path, file = one(tmp_path, name)
    file.unlink()
    assert_broken(path, file, "missing")


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(tmp_path, name):
    path, file = one(tmp_path, name)
    size = file.stat().st_size
    for length in (size - 1, size // 2, 0):
        os.truncate(file, length)
        assert_broken(path, file, "truncated")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.37, 0.9])
def test_one_flipped_bit(tmp_path, name, where):
    path, file = one(tmp_path, name)
    flip(file, where)
    assert_broken(path, file, "altered")


def test_every_file_of_a_checkpoint_is_checked(tmp_path):
    path, _ = one(tmp_path, "meta.json")
    files = [f for f in path.rglob("*") if f.is_file()]
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole + b"\n")
        assert_broken(path, file, "altered")
        file.write_bytes(whole)
    checkpoints.verify(path)


def test_a_missing_arrays_folder_and_no_checkpoint_at_all(tmp_path):
    path, _ = one(tmp_path, "meta.json")
    shutil.rmtree(path / "arrays")
    with pytest.raises(CheckpointError, match=r"its file arrays/\S+ is missing"):
        checkpoints.restore(path, {})
    with pytest.raises(CheckpointError, match=r"There is no checkpoint .*step_9"):
        checkpoints.verify(tmp_path / "step_9")


def test_a_checkpoint_of_another_format(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_FORMAT", 3)
    path = checkpoints.save(tmp_path, 1, {}, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"has format 3; .* reads formats 1 and 2"):
        checkpoints.restore(path, {})


def test_small_leaves_are_packed_and_a_checkpoint_without_is_read_too(tmp_path, monkeypatch):
    tree = {
        "byte": np.uint8(3),
        "large": np.ones((2, 9000)),
        "wide": np.arange(5.0),
    }  # unaligned offsets
    new = checkpoints.save(tmp_path, 2, tree, {})
    monkeypatch.setattr(checkpoints, "_FORMAT", 1)
    monkeypatch.setattr(checkpoints, "_SMALL", 0)
    old = checkpoints.save(tmp_path, 1, tree, {})
    monkeypatch.undo()
    assert "packed" in (new / "meta.json").read_text()
    assert json.loads((old / "meta.json").read_text())["packed"] == []
    for path in (old, new):
        raw, _ = checkpoints.restore_raw(path)
        for name, value in tree.items():
            np.testing.assert_array_equal(raw[f"['{name}']"], value)


def test_latest_falls_back_and_says_so(tmp_path):
    for step in (5, 10, 20):
        checkpoints.save(tmp_path, step, outer(), {"step": step})
    flip(checkpoints.latest(tmp_path) / "meta.json", 0.5)
    (tmp_path / "step_000000000010" / "checksums.json").unlink()
    said = []
    assert checkpoints.latest(tmp_path, warn=said.append).name == "step_000000000005"
    assert len(said) == 2
    assert "step_000000000020" in said[0] and "meta.json is altered" in said[0]
    assert "step_000000000010" in said[1] and "checksums.json is missing" in said[1]
    with pytest.warns(UserWarning, match="It is skipped"):
        checkpoints.latest(tmp_path)
    (tmp_path / "step_000000000005" / "meta.json").unlink()
    with pytest.raises(CheckpointError, match="All 3 checkpoints"):
        checkpoints.latest(tmp_path, warn=said.append)


def test_no_checkpoint_at_all(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        assert checkpoints.steps(folder) == []
        with pytest.raises(CheckpointError, match="There is no checkpoint in"):
            checkpoints.latest(folder)


# ---------------------------------------------------------------------------- another structure


@pytest.mark.parametrize(
    "like, sentence",
    [
        (outer(4), r"leaf '.inner.weights\['w'\]\[0\]' is float32\[3\] instead of float32\[4\]"),
        (
            Outer(Inner({"w": (jnp.arange(3), jnp.int32(7))}), random.key(0, "pcg")),
            r"leaf '.inner.weights\['w'\]\[0\]' is float32\[3\] instead of int32\[3\]",
        ),
        (
            Outer(Inner({"v": jnp.ones(2)}), random.key(0, "pcg")),
            r"lacks the leaf '.inner.weights\['v'\]', float32\[2\]",
        ),
        (Outer(outer().inner, None), r"has a surplus leaf '.key', key<pcg>\[\]"),
        (
            Outer(outer().inner, random.key(0, "threefry2x32")),
            r"leaf '.key' is key<pcg>\[\] instead of key<fry>\[\]",
        ),
        (
            Outer(outer().inner, jax.random.key_data(random.key(0, "pcg"))),
            r"leaf '.key' is key<pcg>\[\] instead of uint32\[2\]",
        ),
    ],
)
def test_another_structure_is_named_by_its_first_leaf(tmp_path, like, sentence):
    path = checkpoints.save(tmp_path, 1, outer(), {})
    with pytest.raises(CheckpointError, match=sentence):
        checkpoints.restore(path, like)
    with pytest.raises(CheckpointError, match=sentence):
        checkpoints.restore(path, jax.eval_shape(lambda: like))


# ---------------------------------------------------------------------------- writing


def test_keep_and_protect(tmp_path):
    for step in range(1, 7):
        checkpoints.save(tmp_path, step, {}, {}, keep=2, protect=[1, 3])
    assert checkpoints.steps(tmp_path) == [1, 3, 5, 6]
    checkpoints.save(tmp_path, 2, {}, {}, keep=1)  # as in a run that was set back
    assert checkpoints.steps(tmp_path) == [2, 6]
    assert {p.name for p in tmp_path.iterdir()} == {"step_000000000002", "step_000000000006"}


def test_steps_sort_as_numbers(tmp_path):
    for step in (0, 10**12, 999, 10**13):
        checkpoints.save(tmp_path, step, {}, {})
    (tmp_path / "step_000000000001").write_text("a file")
    (tmp_path / "step_2").mkdir()
    assert checkpoints.steps(tmp_path) == [0, 999, 10**12, 10**13]
    assert checkpoints.latest(tmp_path).name == "step_10000000000000"


def test_the_same_step_is_replaced(tmp_path):
    checkpoints.save(tmp_path, 1, {"a": jnp.ones(3)}, {"which": "old"})
    path = checkpoints.save(tmp_path, 1, {"a": jnp.zeros(2)}, {"which": "new"})
    assert checkpoints.restore(path, {"a": jnp.zeros(2)})[1] == {"which": "new"}
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000000001"]


def test_a_kill_between_the_renames_of_a_replacement_loses_nothing(tmp_path):
    path = checkpoints.save(tmp_path, 1, {}, {"which": "old"})
    path.rename(tmp_path / ".step_000000000001.replaced")
    assert checkpoints.steps(tmp_path) == [1]
    assert checkpoints.restore(checkpoints.latest(tmp_path), {})[1] == {"which": "old"}
    checkpoints.save(tmp_path, 2, {}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000000000001", "step_000000000002"]


def test_leftovers_are_ignored_and_swept(tmp_path):
    whole = checkpoints.save(tmp_path, 1, outer(), {})
    for name in (".step_000000000002.1-aa.tmp", ".step_000000000003.1-bb.tmp"):
        shutil.copytree(whole, tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert checkpoints.steps(tmp_path) == [1] and checkpoints.latest(tmp_path) == whole
    checkpoints.save(tmp_path, 2, outer(), {})
    names = ["notes", "step_000000000001", "step_000000000002"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_what_another_process_is_writing_is_not_swept(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    other = tmp_path / ".step_000000000002.1-aa.tmp"
    other.mkdir()
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as another process holds it while it writes
    checkpoints.save(tmp_path, 1, {}, {})
    assert other.exists() and checkpoints.steps(tmp_path) == [1]
    os.close(handle)
    checkpoints.save(tmp_path, 3, {}, {})
    assert not other.exists()


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, 1, outer(), {"which": "old"})

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "flush", full)
    for step in (1, 2):
        with pytest.raises(CheckpointError, match=r"cannot be written: .*No space left"):
            checkpoints.save(tmp_path, step, outer(), {})
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000000001"]
    assert checkpoints.restore(checkpoints.latest(tmp_path), outer())[1] == {"which": "old"}


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(CheckpointError, match=r"runs.* cannot be written"):
        checkpoints.save(tmp_path / "runs", 1, {}, {})


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((1, {"a": "text"}, {}), r"leaf '\['a'\]' is a str"),
        ((1, {"a": np.array(["text"])}, {}), r"leaf '\['a'\]' is a ndarray of <U4"),
        ((1, [jax.ShapeDtypeStruct((), jnp.int32)], {}), r"leaf '\[0\]' is a ShapeDtypeStruct"),
        ((1, [2**40], {}), r"leaf '\[0\]' cannot be stored: 1099511627776 does not fit int32"),
        ((1, {}, {"path": Path()}), "must be JSON: .*Path"),
        ((-1, {}, {}), "got step=-1"),
        ((1, {}, {}, 0), "keep=0"),
    ],
)
def test_bad_input_is_said_and_writes_nothing(tmp_path, arguments, sentence):
    step, tree, meta, *keep = arguments
    with pytest.raises(UserError, match=sentence):
        checkpoints.save(tmp_path / "runs", step, tree, meta, keep=keep[0] if keep else None)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_orbax_is_imported_late_and_quiet(tmp_path):
    program = f"""
import logging, sys
from jaxrl.runtime import checkpoints
assert not any(name.startswith("orbax") for name in sys.modules)
path = checkpoints.save({str(tmp_path)!r}, 1, dict(a=1.0), {{}})
checkpoints.restore(path, dict(a=0.0))
checkpoints.save({str(tmp_path)!r}, 1, dict(a=1.0), {{}})
assert not logging.getLogger().handlers and not logging.getLogger("absl").filters
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_root_logger_of_the_users_own_is_left_alone(tmp_path, caplog):
    before = list(logging.getLogger().handlers), logging.getLogger().level
    with caplog.at_level(logging.DEBUG, "absl"):
        there_and_back(tmp_path, outer())
        logging.getLogger("absl").info("another library's line")
    assert [r.getMessage() for r in caplog.records if r.name == "absl"] == [
        "another library's line"
    ]
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


# ---------------------------------------------------------------------------- kill -9

SAVER = """
import itertools, sys
import jax.numpy as jnp, numpy as np
from jaxrl.core import random
from jaxrl.runtime import checkpoints

folder, first = sys.argv[1], int(sys.argv[2])
for step in itertools.count(first):
    tree = dict(a=np.full((300, 300), step), b=jnp.float32(step), key=random.key(step))
    # every third one replaces the one before, so that kills fall into replacements as well
    checkpoints.save(folder, step - step % 3 // 2, tree, dict(made=step), keep=3)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    moments = pyrandom.Random(0)
    first, like = 1, {"a": np.zeros((300, 300), int), "b": 0.0, "key": random.key(0)}
    for _ in range(6):
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(tmp_path), str(first)], stdout=subprocess.PIPE
        )
        assert saver.stdout is not None
        assert saver.stdout.readline(), "the saver died by itself"
        time.sleep(moments.uniform(0.0, 0.4))
        saver.send_signal(signal.SIGKILL)
        done = [first, *map(int, saver.stdout.read().split())][-1]
        assert saver.wait() == -signal.SIGKILL
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none is damaged, so none is skipped
            tree, meta = checkpoints.restore(checkpoints.latest(tmp_path), like)
        assert done <= meta["made"] <= done + 1
        assert (np.asarray(tree["a"]) == meta["made"]).all() and tree["b"] == meta["made"]
        assert bits(tree["key"]) == bits(random.key(meta["made"]))
        first = meta["made"] + 1
    leftovers = [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert len(leftovers) <= 2  # from the last kill; earlier ones were removed
