"""Find parts by name: built-in ones, or a user's own as `my_package.module:attribute`."""

from __future__ import annotations

import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxrl.core import errors
from jaxrl.core.errors import UserError

_PATH = re.compile(r"([\w-]+(?:\.[\w-]+)*):(\w+)")  # module:attribute
_SUITE_PATH = re.compile(r"[^/:]+/[^:]*:.*", re.DOTALL)  # suite/module:name; a suite imports it
_OWN = "jaxrl"


def find(
    kind: str,
    name: str,
    built_in: Mapping[str, str],
    fits: Callable[[Any], bool] = lambda value: False,
) -> Any:
    """Import a part by its name.

    kind: what the part is, for messages.
    name: a key of `built_in`, or a path `module:attribute`.
    built_in: name -> path; nothing of it is imported before it is asked for.
    fits: whether a value of a user's module may be meant, besides functions defined there.

    Raises `UserError` for a name that is neither, a module that cannot be imported, and an
    attribute that does not exist; the last suggests the nearest name that may be meant.
    """
    path = built_in.get(name, name) if isinstance(name, str) else ""
    parts = _PATH.fullmatch(path)
    if not parts:
        raise errors.unknown(kind, str(name), built_in)
    module_name, attribute = parts.groups()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # anything, since importing runs a user's code
        raise UserError(
            f"The module '{module_name}' of {kind} '{name}' cannot be imported "
            f"({type(error).__name__}: {error}); it must be importable from the current folder."
        ) from error
    if not hasattr(module, attribute):
        known = _candidates(module, fits)
        if known:
            raise errors.unknown(f"{kind} of module '{module_name}'", attribute, known)
        raise UserError(f"The module '{module_name}' has no '{attribute}', nor any {kind}.")
    return getattr(module, attribute)


def foreign(data: Any) -> frozenset[str]:
    """Return the texts in `data` (nested mappings, lists and tuples of plain values) that name code
    outside of jaxrl, which `find` or another package's registry would import.

    Every text counts, at any depth, since an environment's settings may name another environment.
    """
    return frozenset(text for text in _texts(data) if _is_foreign(text))


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _texts(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _texts(value)


def _is_foreign(text: str) -> bool:
    parts = _PATH.fullmatch(text)
    if parts:
        return parts[1].partition(".")[0] != _OWN
    return bool(_SUITE_PATH.fullmatch(text))


def type_hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, also beneath a cache: argument -> type, and `return` ->
    type of the result. Empty for anything but a Python function, and if they name unknown types.

    (Only functions that declare themselves builders are called, since any other function in a
    module that somebody names may do anything.)
    """
    try:
        function = inspect.unwrap(function)
        return typing.get_type_hints(function) if inspect.isfunction(function) else {}
    except Exception:  # an annotation is an expression of the user's
        return {}


def package(name: str, extra: str) -> types.ModuleType:
    """Import the module `name` of a package that the extra `extra` of jaxrl installs. Raises
    `UserError` if it is missing or broken."""
    top = name.partition(".")[0]
    try:
        importlib.import_module(top)
        return importlib.import_module(name)
    except Exception as error:  # anything, since importing runs another package's code
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            raise UserError(
                f"The package '{top}' is not installed; pip install -e '.[{extra}]' in jaxrl's "
                "repository brings it."
            ) from error
        raise UserError(
            f"The package '{top}' cannot be imported ({type(error).__name__}: {error}); "
            f"pip install -e '.[{extra}]' in jaxrl's repository brings versions that work together."
        ) from error


def _candidates(module: types.ModuleType, fits: Callable[[Any], bool]) -> list[str]:
    """Return the public names of `module` that a user may have meant."""

    def is_candidate(value: Any) -> bool:
        function = callable(value) and inspect.isfunction(inspect.unwrap(value))
        return fits(value) or (function and value.__module__ == module.__name__)

    return [k for k, v in vars(module).items() if not k.startswith("_") and is_candidate(v)]
