"""Meanings from the lines that declare settings, and values and ranges as text."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from jaxrl.core import describe
from jaxrl.core.hyper import hyper, static
from jaxrl.core.settings import group
from jaxrl.core.types import struct


@struct
class Parent:
    mass: float = 1.0  # kg
    # A comment on a line of its own belongs to no field.
    length: float = 2.0


@struct
class Child(Parent):
    """The docstring of the class belongs to no field."""

    length: float = 3.0  # m | of the rope
    shape: tuple[float, ...] = (
        1.0,
        2.0,
    )  # [2]


@group
class Settings:
    rate: float = hyper(0.5, low=0, high=1)  # the docstring below wins
    """Share of the whole
    that moves."""
    width: int = static(8, low=1)


def test_the_meaning_of_a_field_is_the_comment_on_its_line_or_the_docstring_below():
    assert describe.meanings(Child) == {"mass": "kg", "length": "m | of the rope", "shape": "[2]"}
    assert describe.meanings(Settings) == {"rate": "Share of the whole that moves.", "width": ""}


def test_values_are_written_as_the_command_line_takes_them():
    values = [
        True,
        3,
        0.5,
        1 / 3,
        -math.inf,
        "sparse",
        None,
        (8, 0.5),
        np.zeros((2, 3), np.float32),
    ]
    written = "true|3|0.5|0.333333|-inf|sparse|none|[8, 0.5]|float32 [2, 3]"
    assert "|".join(map(describe.value_text, values)) == written


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (hyper(0.5, low=0, high=1), "between 0 and 1"),
        (hyper(1.0, above=0, high=math.inf), "above 0, or infinite"),
        (hyper(1.0), ""),
        (static(4, low=1), "at least 1"),
        (static(0.9, low=0, below=1), "at least 0 and below 1"),
        (static(None, low=1), "at least 1, or none"),
        (static("a", choices=("a", "b")), "one of a, b"),
        (static((), choices=("a", "b")), "each one of a, b"),
        (static((8,), low=1, least_length=1), "each at least 1; at least 1 of them"),
        (dataclasses.field(default=False), "true or false"),
        (dataclasses.field(default=3), ""),
    ],
)
def test_ranges_in_words(field, text):
    assert describe.range_text(field.metadata.get("range"), field.default) == text
