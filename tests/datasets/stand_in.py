"""Stand-ins for datasets, for tests that do not need what a training run collects."""

from __future__ import annotations

import pytest

from jaxrl.algorithms.multi_agent.shared import team_datasets
from jaxrl.algorithms.offline.shared import imagined_tasks, making, scripted
from jaxrl.core import random
from jaxrl.core.types import Environment
from jaxrl.datasets.data import Dataset, References
from jaxrl.envs.policies import random_policy


@pytest.fixture
def no_training(monkeypatch):
    """Replace every dataset that a training run would make by a few random steps."""

    def load(env: Environment, name: str, size: int = 50_000, seed: int = 0) -> Dataset:
        assert name in (*making.NAMES, *making.HOLES, *scripted.NAMES, *imagined_tasks.NAMES)
        steps = making.record(env, random_policy(env), random.key(seed), min(size, 400))
        return Dataset(name, steps, References(0.0, 1.0))

    def load_team(env: Environment, name: str, size: int, seed: int) -> Dataset:
        assert name in team_datasets.NAMES
        steps = making.record(env, random_policy(env), random.key(seed), min(size, 400))
        return Dataset(name, steps, References(0.0, 1.0))

    monkeypatch.setattr(making, "load", load)
    monkeypatch.setattr(team_datasets, "load", load_team)
