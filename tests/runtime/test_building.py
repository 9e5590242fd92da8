"""From an Experiment to its functions: what is refused there."""

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import building, configuration

ARCHIVE = {"descriptor": ["observation.0"], "low": [-1.0], "high": [1.0], "cells": [4]}


@pytest.mark.parametrize(
    ("algorithm", "agent"),
    [
        ("ppga", {**ARCHIVE, "num_envs": 8, "num_steps": 16, "num_shards": 8}),
        ("reinforce", {}),
        ("dreamer", {}),
        ("evolution_strategy", {}),
    ],
)
def test_what_is_not_split_runs_on_one_device(algorithm, agent):
    settings = {"algorithm": algorithm, "agent": agent}
    with pytest.raises(UserError) as raised:
        building.build(configuration.experiment(settings | {"devices": 8}))
    assert str(raised.value) == f"'{algorithm}' runs on one device; devices is 8."
    building.build(configuration.experiment(settings))


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_shards_are_spread_evenly(algorithm):
    settings = {"algorithm": algorithm, "agent": {"num_envs": 8, "num_shards": 4}}
    for devices in (1, 2, 4):
        building.build(configuration.experiment(settings | {"devices": devices}))
    with pytest.raises(UserError, match=r"^devices is 8, which does not divide num_shards=4"):
        building.build(configuration.experiment(settings | {"devices": 8}))
