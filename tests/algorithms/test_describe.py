"""Descriptions of algorithms and their settings."""

from __future__ import annotations

import pytest

from jaxrl.algorithms import describe, registry
from jaxrl.core.settings import replace


@pytest.mark.parametrize("name", registry.names())
def test_every_setting_has_a_meaning_and_every_module_a_source(name):
    rows = describe.settings(registry.default_config(name))
    assert [row.name for row in rows if not row.meaning] == []
    assert len(describe.text(name)) > 40


def test_settings_are_those_of_the_groups_with_the_defaults_of_the_config():
    config = replace(registry.default_config("ppo"), {"clip": 0.3})
    rows = {row.name: row for row in describe.settings(config)}
    rate, clip = rows["optimizer.learning_rate"], rows["clip"]
    assert (rate.default, rate.range, rate.swept) == ("0.0003", "at least 0", True)
    assert rate.meaning == "Step size at the start."
    assert clip.default == "0.3" and clip.range == "above 0, or infinite"
    assert not rows["torso.hidden"].swept and rows["torso.hidden"].default == "[64, 64]"


def test_groups_explain_their_defaults():
    said = describe.groups(registry.default_config("ppo"))
    assert list(said) == ["optimizer"] and "table 3" in said["optimizer"]
