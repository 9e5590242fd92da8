"""Arrays of numbers from an HDF5 file that anyone may have written.

HDF5 can name an object twice, point to other files, and declare arrays that it does not hold. All
of these are refused: everything that is wanted is listed and checked first, and only then read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UserError

DEPTH = 16  # of groups within groups
RATIO = 1032  # bytes that deflate, HDF5's own compression, can make of one
# Errors of h5py for a file, or a part of one, that it cannot make sense of.
DAMAGE = (OSError, RuntimeError, ValueError, KeyError, TypeError, ArithmeticError, MemoryError)


def read(path: Path, wanted: Callable[[tuple[str, ...]], bool]) -> dict[str, Any]:
    """Read a file: its groups as nested dicts, its datasets as NumPy arrays [rows, ...].

    wanted: whether to read an object, from the names that lead to it from the root. The members of
        a group that is not wanted are not looked at.

    Raises `UserError`, which says what is wrong with the file but not its name, for a file that is
    not HDF5, cannot be opened or is damaged. Among wanted objects it also refuses links, datasets
    in other files (external or virtual), objects with two names, groups more than 16 deep, arrays
    without rows or of anything but numbers, and arrays of which one is over 1032 times the size of
    what is stored of it, or which are together over 1032 times the size of the file.
    """
    h5py = package()
    with _file(path) as file:
        listing = _list(h5py, file, (), wanted, {_address(h5py, file)})
        _check_size(listing, path.stat().st_size)
        return _load(listing)


def members(path: Path) -> list[str]:
    """Return the names at the root of a file. Raises `UserError`, which does not name the file, if
    it cannot be opened as HDF5."""
    with _file(path) as file:
        return list(file)


@contextlib.contextmanager
def _file(path: Path) -> Iterator[Any]:
    """Open a file; damage that is met while it is open becomes a `UserError`."""
    h5py = package()
    try:
        if not path.is_file():
            raise UserError("there is no such file.")
        with h5py.File(path, "r") as file:
            yield file
    except UserError:
        raise
    except DAMAGE as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"it cannot be read as an HDF5 file ({said}).") from error


def package() -> Any:
    """Import h5py. Raises `UserError` if it is not installed."""
    try:
        import h5py
    except ImportError:
        raise UserError(
            'Reading HDF5 needs h5py: pip install "jaxrl-research[datasets]".'
        ) from None
    return h5py


def _address(h5py: Any, node: Any) -> int:
    return h5py.h5o.get_info(node.id).addr


def _list(
    h5py: Any,
    group: Any,
    place: tuple[str, ...],
    wanted: Callable[[tuple[str, ...]], bool],
    seen: set[int],
) -> dict[str, Any]:
    """List the wanted members of a group, all checked; `seen` has the addresses of all so far."""
    found = {}
    for name in group:
        here = (*place, name)
        if not wanted(here):
            continue
        where = "/".join(here)
        if len(here) > DEPTH:
            raise UserError(f"its groups are more than {DEPTH} deep, as {where!r} is.")
        # A hard link names an object in this file; other links are paths and may lead elsewhere.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise UserError(f"{where!r} is a link to another place; it must hold the data itself.")
        node = group[name]
        address = _address(h5py, node)
        if address in seen:
            raise UserError(f"{where!r} is an object that has another name as well.")
        seen.add(address)
        if isinstance(node, h5py.Group):
            found[name] = _list(h5py, node, here, wanted, seen)
        else:
            _check(h5py, node, where)
            found[name] = node
    return found


def _check(h5py: Any, node: Any, where: str) -> None:
    if not isinstance(node, h5py.Dataset):
        raise UserError(f"{where!r} is a type; a group or an array is expected.")
    if node.is_virtual or node.external:
        raise UserError(f"{where!r} lies in other files; it must hold the data itself.")
    if node.dtype.kind not in "biuf":
        raise UserError(f"{where!r} is an array of {node.dtype}; it must be one of real numbers.")
    if not node.shape:
        raise UserError(f"{where!r} is a single value; it must be an array with a row for a step.")


def _check_size(listing: dict[str, Any], file_size: int) -> None:
    arrays = [(math.prod(x.shape) * x.dtype.itemsize, x) for x in _leaves(listing)]
    for size, array in arrays:
        stored = array.id.get_storage_size()
        if size > RATIO * stored:
            raise UserError(
                f"its array {array.name!r} is declared to have {size} bytes, more than {stored} "
                f"stored bytes can hold (it has the shape {list(array.shape)})."
            )
    declared, limit = sum(size for size, _ in arrays), RATIO * file_size
    if declared > limit:
        largest = max(arrays, key=lambda pair: pair[0])[1]
        raise UserError(
            f"its arrays are declared to have {declared} bytes, more than a file of {file_size} "
            f"bytes can hold ({largest.name!r} has the shape {list(largest.shape)})."
        )


def _leaves(listing: Any) -> list[Any]:
    if not isinstance(listing, dict):
        return [listing]
    return [leaf for part in listing.values() for leaf in _leaves(part)]


def _load(listing: Any) -> Any:
    if isinstance(listing, dict):
        return {name: _load(part) for name, part in listing.items()}
    values = listing[()]
    return values.astype(values.dtype.newbyteorder("="), copy=False)
