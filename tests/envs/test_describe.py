"""Descriptions of environments."""

from __future__ import annotations

import pytest

from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.types import struct
from jaxrl.envs import describe


@struct
class Physics:
    mass: float = 1.0  # kg


@struct
class Around:
    inner: Physics
    noise: float = 0.0  # standard deviation


def test_params_inside_a_wrapper_are_described_with_it():
    assert describe.params_meanings(Around(Physics())) == {
        "mass": "kg",
        "noise": "standard deviation",
    }
    assert describe.params_meanings(()) == {}


def test_settings_of_the_builder_and_of_params_are_distinguished():
    rows = {row.name: row for row in describe.settings("empty")}
    assert rows["size"].of == "builder" and rows["penalty"].of == "params"
    assert rows["penalty"].default == "0.9" and rows["penalty"].meaning
    with pytest.raises(UserError, match="did you mean 'empty'"):
        describe.settings("empti")


def test_texts_are_those_of_the_builder_and_the_module():
    assert all("CartPole" in text or "pole" in text for text in describe.texts("cartpole"))
    assert describe.texts("gymnax/CartPole-v1") == []


def test_spaces_are_described_in_words():
    assert describe.space(spaces.Discrete(3)) == "3, discrete"
    assert describe.space(spaces.Box(-2.0, 2.0, (1,))) == "float32 [1] from -2 to 2"
