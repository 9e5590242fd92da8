"""Tests of the warnings about settings that never come due."""

import re

import pytest

from jaxrl.runtime import configuration, due
from jaxrl.runtime.building import build
from tests.runtime import tiny


def sentences(varied=(), **data):
    config = configuration.experiment(data)
    return list(due.never_due(config, build(config)[1], varied))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"algorithm": "discrete_sac", "steps": 30_000},
            "agent.target.period is 8,000, but this run makes 2,500 updates: the target network",
        ),
        (
            {"algorithm": "dqn", "env": "catch", "steps": 5000, "agent": {"target.period": 1}},
            "agent.exploration.steps is 10,000, but this run has 5,000 steps: the probability of",
        ),
        (
            {"steps": 9000, "agent": {"learning_rate_steps": 20_000}},
            "agent.optimizer.learning_rate_steps is 20,000, .* the step size goes only 45% of",
        ),
        (
            {"algorithm": "td3", "env": "pendulum", "steps": 1064, "agent": {"delay": 100}},
            r"agent.delay is 100, but this run makes \d+ updates?: the policy is never updated",
        ),
        (
            {"algorithm": "sac", "env": "pendulum", "steps": 1000},
            "agent.replay.warmup is 1,000, but this run has 1,000 steps: it ends after one round",
        ),
    ],
    ids=lambda x: x["algorithm"] if isinstance(x, dict) and "algorithm" in x else "",
)
def test_each_setting_that_never_comes_due_is_said_once(data, said):
    (found,) = [x for x in sentences(**data) if x.split(" is ")[0] == said.split(" is ")[0]]
    assert re.match(said, found) and found.endswith(".")


def test_nothing_is_said_of_settings_that_come_due():
    assert sentences() == []
    assert sentences(algorithm="discrete_sac", steps=120_000) == []
    assert sentences(agent={"learning_rate_steps": 500_000}) == []
    schedule = {"learning_rate_steps": 1e9}
    assert sentences(["optimizer.learning_rate_steps"], agent=schedule) == []


def test_it_is_said_before_training_starts(tmp_path, capsys):
    tiny.train(tmp_path, "run", "--agent.learning-rate-steps", "1e6")
    assert "Warning: agent.optimizer.learning_rate_steps is 1,000,000" in capsys.readouterr().err
