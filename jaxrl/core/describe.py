"""Text about settings: meanings, from the lines that declare them, values and ranges."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import math
import textwrap
import tokenize
from typing import Any

from jaxrl.core.hyper import Range, bounds_text


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """Return what each field of a dataclass means, inherited fields included: name -> the docstring
    below the field, or else the comment at the end of its line, in one line; "" without either."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__dataclass_fields__" in vars(base):
            found |= _own_meanings(base)
    return found


def _own_meanings(cls: type) -> dict[str, str]:
    """Read the meanings of the fields that `cls` itself declares from its source."""
    source = textwrap.dedent(inspect.getsource(cls))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string[1:].strip() for t in tokens if t.type == tokenize.COMMENT}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for line, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            below = after.value if isinstance(after, ast.Expr) else None
            text = below.value if isinstance(below, ast.Constant) else None
            comment = comments.get(line.end_lineno or 0, "")
            found[line.target.id] = " ".join(text.split()) if isinstance(text, str) else comment
    return found


def value_text(value: Any) -> str:
    """Write a value as a command line or a YAML file takes it; an array as its dtype and shape."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(value_text, value))}]"
    return f"{value.dtype} {list(value.shape)}" if hasattr(value, "shape") else str(value)


def range_text(within: Range | None, default: Any) -> str:
    """Describe the values that a setting with this default may have: `between 0 and 1`, `above 0,
    or infinite`; "" for a setting without a range."""
    if isinstance(default, bool):
        return "true or false"
    if within is None:
        return ""
    text = f"one of {', '.join(within.choices)}" if within.choices else bounds_text(within)
    if isinstance(default, tuple):
        text = text and f"each {text}"
        if within.least_length:
            text += f"{'; ' if text else ''}at least {within.least_length} of them"
    if within.high == math.inf:
        text += f"{', or ' if text else ''}infinite"
    return f"{text}, or none" if default is None else text
