"""List an algorithm's update on one page: its source, and that of every function which it calls.

The functions are found by following names in the code, from the update and the losses of the
recipe, through `jaxrl.algorithms` and `jaxrl.losses`. The text is that of `inspect`, with
docstrings cut to their first paragraph.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from jaxrl.algorithms import registry
from jaxrl.core.settings import Static
from jaxrl.kit import AlgorithmBuilder, DirectBuilder
from jaxrl.kit.parts import Loss

ROOT = Path(__file__).resolve().parents[1]
INLINED = ("jaxrl.algorithms", "jaxrl.losses", "jaxrl.gradients", "jaxrl.kit.recipe")


class Listed(NamedTuple):
    """A function of a listing.

    function: a `FunctionType`.
    names: other names by which the listing calls it, such as that of an argument which it is
        passed as.
    """

    function: Any
    names: list[str]

    @property
    def path(self) -> str:
        """Return its file, from the root of the repository."""
        return f"{self.function.__module__.replace('.', '/')}.py"


@functools.cache
def roots(name: str) -> tuple[FunctionType, ...]:
    """Return the functions by which an algorithm learns.

    For a recipe, its update and its losses; for other algorithms, the function that builds them.
    """
    build = registry.builder(name)[0]
    if isinstance(build, AlgorithmBuilder):
        env, config = registry.tiny(name)
        recipe = build.recipe(env, Static(config))
        found = [recipe.update, *recipe.losses]
    else:
        found = [build.build if isinstance(build, DirectBuilder) else build]
    return tuple(x for x in map(plain_function, found) if x)


def plain_function(value: Any) -> FunctionType | None:
    """Return the Python function behind a value, if it is one that listings inline."""
    if isinstance(value, Loss):
        value = value.function
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) and not isinstance(value, type) else value
    inlined = isinstance(value, FunctionType) and value.__module__.startswith(INLINED)
    return value if inlined and value.__name__ != "<lambda>" else None


def listing(start: Sequence[FunctionType]) -> list[Listed]:
    """Return `start` and every inlined function that they call, each followed by its own."""
    found: dict[Any, Listed] = {}

    def visit(function: FunctionType, name: str) -> None:
        key = function.__code__
        known = key in found
        entry = found.setdefault(key, Listed(function, []))
        if name not in (function.__name__, *entry.names):
            entry.names.append(name)
        if not known:
            for called_as, called in calls(function):
                visit(called, called_as)

    for function in start:
        visit(function, function.__name__)
    return list(found.values())


def calls(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the inlined functions that a function names, with the names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = function.__globals__ | {name: cell.cell_contents for name, cell in cells}
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    names = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute)]
    for node in sorted(names, key=lambda node: (node.lineno, node.col_offset)):
        name = ast.unparse(node)
        called = plain_function(_lookup(scope, name))
        if called and called is not function:
            yield name.removeprefix("losses.").removeprefix("losses_."), called


def _lookup(scope: dict[str, Any], name: str) -> Any:
    """Return what a dotted name stands for, None for what only a call would tell."""
    first, *rest = name.split(".")
    if first not in scope:
        return None
    value = scope[first]
    for part in rest:
        try:
            value = getattr(value, part)
        except AttributeError:
            return None
    return value


def source(function: Callable[..., Any]) -> str:
    """Return the text of a function, with docstrings cut to their first paragraph."""
    text = textwrap.dedent(inspect.getsource(function))
    lines = text.splitlines()
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    for node in sorted(defined, key=lambda node: -node.lineno):
        said = ast.get_docstring(node)
        if said and "\n" in said.strip():
            first, indent = node.body[0], " " * node.body[0].col_offset
            short = ['"""' + said.split("\n\n")[0] + '"""']
            short = textwrap.indent("\n".join(short), indent).splitlines()
            lines[first.lineno - 1 : first.end_lineno] = short
    return "\n".join(lines)


def text(name: str) -> str:
    """Return the listing of an algorithm as Python: each function below the name of its file."""
    sections, last = [], ""
    for entry in listing(roots(name)):
        head = [] if entry.path == last else [f"# {'-' * 10} {entry.path}"]
        if entry.names:
            head.append(f"# called {' and '.join(entry.names)} elsewhere in this listing")
        sections.append("\n".join([*head, source(entry.function)]))
        last = entry.path
    return "\n\n\n".join(sections)


def losses_of(name: str) -> dict[str, str]:
    """Return the functions of `jaxrl.losses` that an algorithm's code calls: name -> file."""
    from jaxrl import losses

    listed = [x for x in listing(roots(name)) if x.path.startswith("jaxrl/algorithms/")]
    called = [Listed(function, []) for x in listed for _, function in calls(x.function)]
    return {
        x.function.__name__: x.path
        for x in called
        if x.path.startswith("jaxrl/losses/") and hasattr(losses, x.function.__name__)
    }
