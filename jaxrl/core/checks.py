"""Checks of the arguments of `jaxrl.losses`, by the shapes that the docstrings state.

`check_arguments` reads "value, target: [...]" or "q_values: [..., E]" from a docstring, so that
a shape is written once and its documentation cannot disagree with its check. Shapes are static:
nothing is left of a check in a compiled program.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])
Sizes = tuple[int, ...]

# Arguments that are truths or indices; every other array takes part in arithmetic.
DISCRETE = {
    "action",
    "correct",
    "cut",
    "desirable",
    "done",
    "end",
    "expert",
    "first",
    "free",
    "hinted",
    "intervened",
    "label",
    "masked",
    "members",
    "next_action",
    "next_intervened",
    "occupied",
    "option",
    "outcome",
    "reached",
    "role",
    "safe",
    "satisfied",
    "segment",
    "skill",
    "terminated",
    "token",
}

_SHAPE = r"\[[^\[\]]*\]"
_NAME = r"[a-z_]\w*(?: \([^()]*\))?"
_ENTRY = re.compile(rf"({_NAME}(?:, {_NAME})*): (.*)", re.DOTALL)
_EXACT = re.compile(rf"(?:\w+, |bool )?({_SHAPE})(?!,? or (?!None))(?: and ({_SHAPE}))?")
_LOOSE = re.compile(rf"(?:broadcasts? to |\] or |scalar or )({_SHAPE})")
# Arguments of which a docstring says this have axes [...] of their own.
_INDEPENDENT = ("another shape", "broadcast to each other")


class Stated(NamedTuple):
    """A shape in a docstring: [*front, ..., *back].

    dots: whether there is a `...`.
    exact: whether an argument has all of the axes, and not only broadcasts to them.
    """

    front: tuple[str, ...]
    back: tuple[str, ...]
    dots: bool
    exact: bool

    def __str__(self) -> str:
        return f"[{', '.join((*self.front, *['...'] * self.dots, *self.back))}]"


def check_arguments(function: F) -> F:
    """Check the shapes of array arguments, and convert booleans and integers to floats.

    Integers and booleans become floats, of the other arguments' precision, unless their name is in
    `DISCRETE` or ends with `mask`: the mean of a group's rewards 1, 0, 0 is 1/3 in any type.

    Raises (from the function that is returned):
        UserError: if an argument lacks an axis that its docstring names, if sizes of one axis
            differ, or if arguments of different ranks would broadcast to a shape that none of
            them has, such as [B] and [B, 1] to [B, B]. Scalars broadcast to anything.
    """
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    stated = stated_shapes(inspect.getdoc(function) or "")
    shapes_are_right = functools.lru_cache(1024)(
        functools.partial(_check, function.__name__, stated)
    )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        arrays = {k: x for k, x in given.items() if isinstance(x, jax.Array | np.ndarray)}
        shapes_are_right(tuple((k, x.shape) for k, x in arrays.items() if k in stated))
        discrete = [k for k, x in arrays.items() if x.dtype.kind in "biu" and _is_real(k)]
        if not discrete or len(given) != len(args) + len(kwargs):
            return function(*args, **kwargs)
        floats = [x for x in arrays.values() if jnp.issubdtype(x.dtype, jnp.floating)]
        dtype = jnp.result_type(*floats) if floats else jnp.result_type(float)
        return function(**given | {k: jnp.asarray(arrays[k], dtype) for k in discrete})

    call.__dict__["checks"] = stated
    return call  # pyright: ignore[reportReturnType]


def check_equal_shapes(name: str, **arrays: jax.Array) -> None:
    """Raise `UserError` if arguments of the function `name` differ in shape."""
    (one, first), *others = arrays.items()
    for k, x in others:
        if jnp.shape(x) != jnp.shape(first):
            raise UserError(
                f"`{name}` needs {one} and {k} of one shape, not {_text(jnp.shape(first))} and "
                f"{_text(jnp.shape(x))}."
            )


def _is_real(name: str) -> bool:
    return not (name in DISCRETE or name.endswith("mask"))


def stated_shapes(docstring: str) -> dict[str, Stated]:
    """Return the shapes in the section "Args:" of a docstring, by argument."""
    found = re.search(r"^Args:(.*?)^Returns:", docstring, re.DOTALL | re.MULTILINE)
    text = textwrap.dedent(found[1].lstrip("\n")) if found else ""
    # An entry begins a line, or follows a semicolon, and its continuation is indented.
    lines = re.sub(r"\n +", " ", text).replace("; ", "\n")
    shapes: dict[str, Stated] = {}
    for entry in lines.splitlines():
        parsed = _ENTRY.match(entry.strip())
        if parsed and not any(x in parsed[2] for x in _INDEPENDENT):
            each = [re.sub(r" \(.*", "", x) for x in re.split(r", (?![^()]*\))", parsed[1])]
            shapes |= _entry(each, parsed[2])
    return shapes


def _entry(names: list[str], text: str) -> dict[str, Stated]:
    exact, loose = _EXACT.match(text), _LOOSE.findall(text.split(";")[0])
    if exact:
        shapes = [x for x in exact.groups() if x]
    else:
        shapes = loose[-1:]
    stated = [_parse(x, bool(exact)) for x in shapes]
    if len(stated) == 1:
        stated *= len(names)
    found = zip(names, stated, strict=False)
    return {name: shape for name, shape in found if shape is not None}


def _parse(text: str, exact: bool) -> Stated | None:
    axes = [x.strip() for x in text[1:-1].split(",")] if text != "[]" else []
    if "..." not in axes:
        return Stated(tuple(axes), (), False, exact)
    if axes.count("...") > 1:  # an axis for each of N players
        return None
    dots = axes.index("...")
    return Stated(tuple(axes[:dots]), tuple(axes[dots + 1 :]), True, exact)


def _check(name: str, stated: dict[str, Stated], given: tuple[tuple[str, Sizes], ...]) -> None:
    """Raise `UserError` if the shapes of the arguments do not fit those that are stated."""
    shapes = {k: shape for k, shape in given if shape and k in stated}
    exact = {k: stated[k] for k, _ in given if k in stated and stated[k].exact}
    for k, shape in given:
        if k in exact:
            fixed = len(exact[k].front) + len(exact[k].back)
            if shape and (len(shape) < fixed or (len(shape) > fixed and not exact[k].dots)):
                raise UserError(f"`{name}` needs {k} of shape {exact[k]}, not {_text(shape)}.")
    named = _named_sizes(name, exact, shapes)
    free = {
        k: v[len(exact[k].front) : len(v) - len(exact[k].back)]
        for k, v in shapes.items()
        if k in exact and exact[k].dots
    }
    _check_ranks(name, exact, shapes, free)
    joint = _broadcast(name, exact, shapes, free)
    sizes = lambda axes: tuple(int(x) if x.isdigit() else named[x] for x in axes)
    for k, shape in shapes.items():
        axes = (*stated[k].front, *stated[k].back)
        if k not in exact and stated[k].dots and all(x in named or x.isdigit() for x in axes):
            whole = sizes(stated[k].front) + joint + sizes(stated[k].back)
            result = _result(whole, shape)
            alike = len(shape) == len(whole)
            if result is None or not (alike or result in (whole, shape)):
                raise UserError(
                    f"`{name}` needs {k} that broadcasts to {stated[k]}, here {_text(whole)}; it "
                    f"has shape {_text(shape)}."
                )


def _named_sizes(name: str, exact: dict[str, Stated], shapes: dict[str, Sizes]) -> dict[str, int]:
    """Return the size of each named axis. Raises `UserError` if arguments differ in one."""
    found: dict[str, tuple[str, int]] = {}
    for k, shape in shapes.items():
        if k not in exact:
            continue
        front, back = exact[k].front, exact[k].back
        fixed = shape[: len(front)] + shape[len(shape) - len(back) :]
        for axis, size in zip(front + back, fixed, strict=True):
            other, before = found.get(axis, (k, size))
            if 1 not in (before, size) and before != size:
                raise UserError(
                    f"`{name}` needs {other} {exact[other]} and {k} {exact[k]} with the same "
                    f"{axis}, not of shapes {_text(shapes[other])} and {_text(shape)}."
                )
            if axis not in found or before == 1:
                found[axis] = k, size
    return {axis: size for axis, (_, size) in found.items()}


def _check_ranks(
    name: str, exact: dict[str, Stated], shapes: dict[str, Sizes], free: dict[str, Sizes]
) -> None:
    """Raise `UserError` if the arguments with more named axes have fewer free axes than others."""
    most: dict[Stated, str] = {}  # of the arguments with the same axes, one with most free axes
    for k in free:
        most[exact[k]] = max(most.get(exact[k], k), k, key=lambda k: len(free[k]))
    for one in most:
        for other in most:
            fixed, fewer = (len(x.front) + len(x.back) for x in (one, other))
            if fixed > fewer and len(free[most[one]]) < len(free[most[other]]):
                raise _unequal(name, exact, shapes, most[one], most[other])


def _broadcast(
    name: str, exact: dict[str, Stated], shapes: dict[str, Sizes], free: dict[str, Sizes]
) -> Sizes:
    """Return the shape that the free axes broadcast to.

    Arguments of one rank may broadcast to each other, [B, 1] and [1, A] to [B, A], but one of a
    lower rank must broadcast to the others, as [A] does: [B] and [B, 1] are not legal.
    """
    joint: Sizes = ()
    order = sorted(free, key=lambda k: -len(free[k]))
    for k in order:
        result = _result(joint, free[k])
        if result is None or (joint and result != joint and len(free[k]) < len(joint)):
            raise _unequal(name, exact, shapes, order[0], k)
        joint = result
    return joint


def _unequal(
    name: str, exact: dict[str, Stated], shapes: dict[str, Sizes], one: str, other: str
) -> UserError:
    first, second = (k for k in shapes if k in (one, other))
    return UserError(
        f"`{name}` needs {first} {exact[first]} and {second} {exact[second]} with the same axes "
        f"[...], not of shapes {_text(shapes[first])} and {_text(shapes[second])}."
    )


def _result(a: Sizes, b: Sizes) -> Sizes | None:
    """Return the shape that two shapes broadcast to, or None."""
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def _text(shape: Sizes) -> str:
    return f"[{', '.join(map(str, shape))}]"
