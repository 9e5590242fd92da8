"""The initial weights of an algorithm's networks are those that its settings name."""

import dataclasses
import re

import jax
import pytest

from jaxrl.algorithms import registry
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.kit import AlgorithmBuilder

FAMILIES = ("continuous_control", "diffusion", "planning", "policy_gradient", "value")


def initializers(config, group=""):
    """Yield the dotted names of all settings of initial weights."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from initializers(value, f"{group}{field.name}.")
        elif field.name == "initializer":
            yield group + field.name


def program(name, changes):
    """Return the program that draws the first state, without the places of functions in it."""
    env, config = registry.tiny(name)
    agent = registry.builder(name)[0].agent(env, replace(config, changes))
    begin = jax.make_jaxpr(lambda key: jax.tree.leaves(agent.init(key, agent.hyper)))
    return re.sub("0x[0-9a-f]+", "", str(begin(random.key(0))))


NAMES = [n for n, place in registry.built_in().items() if place.split(".")[2] in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_a_torso_begins_as_its_settings_say(name):
    if not isinstance(registry.builder(name)[0], AlgorithmBuilder):
        return  # it has no agent that could be built alone
    for setting in initializers(registry.default_config(name)):
        assert program(name, {setting: "torch"}) != program(name, {setting: "lecun"})
