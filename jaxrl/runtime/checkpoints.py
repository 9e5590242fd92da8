"""Checkpoints that survive a kill at any moment, and that detect and name damage to their files.

One checkpoint is one folder, `step_000000001234/`:

    arrays/         the leaves, written by orbax as a flat dictionary "00000", "00001"...; small
                    leaves are concatenated as the bytes "packed", since each file costs time
    meta.json       the caller's meta data, each leaf's path, shape, dtype and generator, and
                    which leaves are packed
    checksums.json  size and sha256 of every other file; written last

It is written under a hidden temporary name, flushed to the disk and then renamed, so under its
own name it is either whole or absent. Every checksum is compared before anything is read, since
tensorstore returns a flipped byte without an error.

Typed keys are stored as their data and their generator's name, since orbax cannot restore keys of
a generator that a fresh process has not defined. Empty arrays, which orbax refuses, exist only in
`meta.json`. One process writes; on several hosts only the first one may save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Tree
from jaxrl.runtime import files
from jaxrl.runtime.checkpoint_files import CheckpointError, check_seal, flush, seal
from jaxrl.runtime.checkpoint_leaves import Leaf, describe, difference, empty_array, to_host, to_jax
from jaxrl.runtime.errors import first_line
from jaxrl.runtime.quiet_orbax import quiet_orbax

try:
    import fcntl
except ImportError:  # not Unix: two processes must then not save to one folder at once
    fcntl = None

_FORMAT = 2
_READABLE = (1, 2)  # format 1 packs nothing
_ARRAYS, _META, _PACKED = "arrays", "meta.json", "packed"
_SMALL = 2**16  # bytes
_NAME = re.compile(r"step_(\d{12,})")
_REPLACED = re.compile(r"\.(step_(\d{12,}))\.replaced")


# ---------------------------------------------------------------------------------- writing


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of a tree on the host, as `save` stores it."""

    leaves: list[Leaf]
    arrays: list[np.ndarray]


def copy_to_host(tree: Tree) -> Copy:
    """Return a copy of `tree` to save later; its buffers may be donated as soon as this returns.

    Raises:
        UserError: for a leaf that is not an array.
    """
    return Copy(*to_host(tree))


def save(
    folder: Path | str,
    step: int,
    tree: Tree,
    meta: dict[str, Any],
    *,
    keep: int | None = None,
    protect: Collection[int] = (),
) -> Path:
    """Write `tree` as the checkpoint of `step`, and wait until the disk has it.

    Args:
        folder: where the checkpoints of one run lie; created if needed.
        step: a number of at least 0. A checkpoint of the same step is replaced.
        tree: a pytree of JAX arrays, typed keys, NumPy arrays and Python scalars (stored with the
            dtype that JAX gives them), or the result of `copy_to_host`.
        meta: anything that JSON can hold; tuples come back as lists.
        keep: number of the newest checkpoints to keep; None keeps all.
        protect: steps to keep whatever their age.

    Returns:
        The checkpoint's folder, as an absolute path.

    Raises:
        UserError: for a leaf that is not an array, a `meta` that is not JSON, or a bad `step` or
            `keep`.
        CheckpointError: if it cannot be written (a full disk). What was there before is untouched.
    """
    if step < 0 or (keep is not None and keep < 1):
        raise UserError(
            f"A checkpoint needs a step of at least 0 and a keep of at least 1 or None; got "
            f"step={step} and keep={keep}."
        )
    folder = Path(folder).absolute()
    copy = tree if isinstance(tree, Copy) else copy_to_host(tree)
    leaves, arrays = copy.leaves, copy.arrays
    text = _to_json(meta, step, leaves, [(i, x.dtype.name, x.shape) for i, x in _small(arrays)])
    final = folder / _name(step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _writer_lock(folder):
            temporary = folder / f".{final.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
            try:
                _write(temporary, arrays, text)
                _publish(temporary, final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            if keep is not None:
                _remove_old(folder, keep, {*protect, step})
    except UserError:
        raise
    except Exception as error:  # orbax passes on tensorstore's errors: ValueError for a full disk
        raise CheckpointError(
            f"The checkpoint {final} cannot be written: {first_line(error)}"
        ) from error
    return final


def _small(arrays: list[np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """Return the arrays to pack, each with its index among the leaves."""
    return [(i, x) for i, x in enumerate(arrays) if 0 < x.nbytes <= _SMALL]


def _to_json(
    meta: dict[str, Any], step: int, leaves: list[Leaf], packed: Sequence[tuple] = ()
) -> str:
    content = {
        "format": _FORMAT,
        "step": int(step),
        "meta": meta,
        "leaves": [dataclasses.asdict(leaf) for leaf in leaves],
        "packed": packed,
    }
    try:
        return json.dumps(content, indent=1)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The meta data of a checkpoint must be JSON: {first_line(error)}"
        ) from error


def _write(folder: Path, arrays: list[np.ndarray], meta: str) -> None:
    """Write a whole checkpoint to the new `folder`, and return once the disk has it."""
    folder.mkdir()
    stored = {f"{i:05d}": array for i, array in enumerate(arrays) if array.nbytes > _SMALL}
    small = [np.frombuffer(array.tobytes(), np.uint8) for _, array in _small(arrays)]
    if small:
        stored[_PACKED] = np.concatenate(small)
    if stored:
        with quiet_orbax() as checkpointer:
            checkpointer.save(folder / _ARRAYS, stored)
    (folder / _META).write_text(meta, encoding="utf-8")
    seal(folder)


def _publish(temporary: Path, final: Path) -> None:
    """Rename a whole checkpoint to its final name.

    An older one of that name is first set aside, under a name by which `_find` still finds it if
    the process is killed in between.
    """
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    temporary.rename(final)
    flush(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _remove_old(folder: Path, keep: int, protect: set[int]) -> None:
    """Remove all but the newest `keep` checkpoints and those of the steps in `protect`."""
    found = _find(folder)
    for step in sorted(found)[:-keep]:
        if step not in protect:
            # Renamed first, so that a kill in between leaves no broken checkpoint under its name.
            trash = folder / f".{_name(step)}.{uuid.uuid4().hex[:8]}.tmp"
            found[step].rename(trash)
            shutil.rmtree(trash, ignore_errors=True)


@contextlib.contextmanager
def _writer_lock(folder: Path) -> Iterator[None]:
    """Hold a shared lock on `folder` while a checkpoint is written.

    Whoever first gets an exclusive lock knows that nobody else writes, and cleans up. The kernel
    releases a killed process's locks, whereas a process id in a file name may belong to another
    process by then.
    """
    if fcntl is None:
        _clean_up(folder)
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _clean_up(folder)
        _lock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, kind: int) -> bool:
    """Return whether the lock was acquired.

    A file system without locks on folders (NFS) is trusted to have one writer only.
    """
    try:
        fcntl.flock(handle, kind)  # pyright: ignore[reportOptionalMemberAccess]
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _clean_up(folder: Path) -> None:
    """Remove what a killed process left behind, and finish a replacement that it had begun."""
    for path in folder.glob(".step_*"):
        replaced = _REPLACED.fullmatch(path.name)
        if replaced and not (folder / replaced[1]).exists():
            path.rename(folder / replaced[1])
        elif replaced or path.suffix == ".tmp":
            shutil.rmtree(path, ignore_errors=True)


# ---------------------------------------------------------------------------------- reading


def restore(path: Path | str, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """Read a checkpoint into the structure of `like`.

    Args:
        path: a checkpoint's folder, as returned by `save` or `latest`.
        like: a pytree of arrays or `jax.ShapeDtypeStruct`s (for example from `jax.eval_shape`).
            Only its structure, shapes and dtypes are read.

    Returns:
        (tree, meta): uncommitted JAX arrays and keys, and the `meta` that `save` was given. A
        64-bit NumPy array comes back as one where JAX is set to 32 bits, which would change it.

    Raises:
        CheckpointError: if it is damaged (see `verify`), or if `like` has another structure; the
            message names the first leaf that differs.
    """
    wanted, structure = jax.tree_util.tree_flatten_with_path(like)
    path, content, leaves = _open(path)
    differs = difference(leaves, [describe(*item) for item in wanted])
    if differs:
        raise CheckpointError(
            f"The checkpoint {path} has a different structure than expected: {differs}."
        )
    arrays = _read(path, leaves, content)
    restored = []
    for i, leaf in enumerate(leaves):
        restored.append(to_jax(arrays[i], leaf.generator))
        arrays[i] = None  # keeps a large tree from being in memory twice
    return jax.tree_util.tree_unflatten(structure, restored), content["meta"]


def restore_raw(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a checkpoint without knowing its structure.

    Returns:
        ({leaf's path, such as ".state['w'][0]": its numbers}, meta); the numbers of a key are its
        data, uint32.

    Raises:
        CheckpointError: if it is damaged (see `verify`).
    """
    path, content, leaves = _open(path)
    names = [leaf.path for leaf in leaves]
    return dict(zip(names, _read(path, leaves, content), strict=True)), content["meta"]


def read_meta(path: Path | str) -> dict[str, Any]:
    """Return the `meta` that `save` was given, without comparing checksums (`latest` does).

    Raises:
        CheckpointError: if it is not what `save` writes.
    """
    return _read_content(Path(path).absolute())["meta"]


def verify(path: Path | str) -> None:
    """Compare every file of a checkpoint with its recorded size and hash.

    Raises:
        CheckpointError: naming the file, and whether it is missing, truncated or altered.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}.")
    check_seal(path)


def steps(folder: Path | str) -> list[int]:
    """Return the steps of the checkpoints in `folder`, damaged or not, in rising order."""
    return sorted(_find(Path(folder)))


def latest(folder: Path | str, warn: Callable[[str], Any] = warnings.warn) -> Path:
    """Return the newest undamaged checkpoint in `folder`.

    `warn` is called with one sentence for each newer one that is damaged.

    Raises:
        CheckpointError: if there is none.
    """
    folder = Path(folder).absolute()
    found = _find(folder)
    for step in sorted(found, reverse=True):
        try:
            verify(found[step])
        except CheckpointError as error:
            warn(f"{error} It is skipped.")
        else:
            return found[step]
    if found:
        raise CheckpointError(f"All {len(found)} checkpoints in {folder} are damaged.")
    raise CheckpointError(f"There is no checkpoint in {folder}.")


def _name(step: int) -> str:
    return f"step_{step:012d}"


def _find(folder: Path) -> dict[int, Path]:
    """Return every checkpoint by its step, damaged or not."""
    if not folder.is_dir():
        return {}
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    aside = {int(m[2]): folder / m[0] for name in names if (m := _REPLACED.fullmatch(name))}
    return aside | {int(m[1]): folder / m[0] for name in names if (m := _NAME.fullmatch(name))}


def _open(path: Path | str) -> tuple[Path, dict[str, Any], list[Leaf]]:
    """Verify a checkpoint and read its `meta.json`: (absolute path, content, leaves)."""
    verify(path)
    path = Path(path).absolute()
    content = _read_content(path)
    if content["format"] not in _READABLE:
        raise CheckpointError(
            f"The checkpoint {path} has format {content['format']}; this version of jaxrl reads "
            f"formats {' and '.join(map(str, _READABLE))}."
        )
    try:
        leaves = [Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in content["leaves"]]
        for leaf in leaves:
            if not isinstance(leaf.path, str) or not isinstance(leaf.dtype, str):
                raise ValueError("a leaf's path and dtype must be texts")
            _size(leaf.shape)
        for i, dtype, shape in content.get("packed", ()):
            _ = leaves[i], jnp.dtype(dtype), _size(shape)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _bad_meta(path, error) from error
    return path, content, leaves


def _size(shape: Sequence[int]) -> int:
    """Return the number of entries of a shape that a file states."""
    if not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError(f"{list(shape)} is not a shape")
    return math.prod(shape)


def _read_content(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's `meta.json`."""
    try:
        content = files.read_json(path / _META)
        if not isinstance(content, dict) or not isinstance(content.get("meta"), dict):
            raise ValueError("it must hold a mapping with a mapping meta")
        return {"format": None, "leaves": None, **content}
    except (OSError, ValueError) as error:
        raise _bad_meta(path, error) from error


def _bad_meta(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"The {_META} of the checkpoint {path} is not what jaxrl writes: {first_line(error)}."
    )


def _read(path: Path, leaves: list[Leaf], content: dict[str, Any]) -> list[Any]:
    """Return the numbers of every leaf as NumPy arrays."""
    stored = {}
    if (path / _ARRAYS).is_dir():
        try:
            with quiet_orbax() as checkpointer:
                stored = checkpointer.restore(path / _ARRAYS)
        except Exception as error:  # orbax and tensorstore raise errors of many types
            raise CheckpointError(
                f"The checkpoint {path} cannot be read: {first_line(error)}"
            ) from error
    packed, at = np.asarray(stored.pop(_PACKED, ())), 0
    for i, name, shape in content.get("packed", ()):
        end = at + math.prod(shape) * jnp.dtype(name).itemsize
        if end > len(packed):
            raise _bad_meta(path, ValueError("it has packed leaves that are not there"))
        stored[f"{i:05d}"] = packed[at:end].view(jnp.dtype(name)).reshape(shape)
        at = end
    return [_checked(path, leaf, stored.pop(f"{i:05d}", None)) for i, leaf in enumerate(leaves)]


def _checked(path: Path, leaf: Leaf, numbers: Any) -> Any:
    """Return the numbers of a leaf, or those of an empty one, which no file holds.

    Raises `CheckpointError` if they are missing, or are not of the leaf's shape and type.
    """
    if numbers is None and math.prod(leaf.shape) == 0:
        return empty_array(leaf)
    if numbers is None:
        raise CheckpointError(f"The checkpoint {path} lacks the numbers of '{leaf.path}', {leaf}.")
    shape, dtype = numbers.shape, numbers.dtype.name
    if leaf.generator is not None:  # the data of a key has an axis more
        shape, dtype = shape[:-1], leaf.dtype if dtype == "uint32" else dtype
    if (tuple(shape), dtype) != (leaf.shape, leaf.dtype):
        raise CheckpointError(
            f"The checkpoint {path} has {dtype}{list(shape)} for '{leaf.path}' instead of {leaf}."
        )
    return numbers
