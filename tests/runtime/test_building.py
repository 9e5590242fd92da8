"""Building the functions of an Experiment: refusals."""

import pytest

from jaxrl.core.errors import UserError
from jaxrl.runtime import building, configuration

ARCHIVE = {"descriptor": ["observation.0"], "low": [-1.0], "high": [1.0], "cells": [4]}


@pytest.mark.parametrize(
    ("algorithm", "agent"),
    [
        ("ppga", {**ARCHIVE, "ppo": {"rollouts": {"num_envs": 8, "num_shards": 8}}}),
        ("evolution_strategy", {}),
    ],
)
def test_what_is_not_split_runs_on_one_device(algorithm, agent):
    settings = {"algorithm": algorithm, "agent": agent}
    with pytest.raises(UserError) as raised:
        building.build(configuration.experiment(settings | {"devices": 8}))
    assert str(raised.value) == f"'{algorithm}' runs on one device; devices is 8."
    building.build(configuration.experiment(settings))


FOUR = {"num_envs": 8, "num_shards": 4}


@pytest.mark.parametrize(
    ("algorithm", "env", "agent"),
    [
        ("ppo", "cartpole", {"rollouts": FOUR}),
        ("dqn", "cartpole", {"replay": FOUR}),
        ("league", "kuhn_poker", {"ppo": {"rollouts": FOUR}}),
        ("neupl", "kuhn_poker", {"ppo": {"rollouts": FOUR}}),
        ("lifelong_ppo", "corners", {"ppo": {"rollouts": FOUR}}),
    ],
)
def test_shards_are_spread_evenly(algorithm, env, agent):
    settings = {"algorithm": algorithm, "env": env, "agent": agent}
    for devices in (1, 2, 4):
        building.build(configuration.experiment(settings | {"devices": devices}))
    with pytest.raises(UserError, match=r"^devices is 8, which does not divide num_shards=4"):
        building.build(configuration.experiment(settings | {"devices": 8}))
