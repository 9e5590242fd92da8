"""Data of the right form in no time, for tests that only read what is learned from it."""

from __future__ import annotations

import pytest

from jaxrl.core import random
from jaxrl.core.types import Environment
from jaxrl.datasets import cache, making
from jaxrl.datasets.data import Dataset, References
from jaxrl.envs.policies import random_policy


@pytest.fixture
def no_training(monkeypatch):
    """Every dataset that has to be made by a training run is a few random steps instead."""

    def load(env: Environment, name: str, size: int = 50_000, seed: int = 0) -> Dataset:
        assert name in cache.NAMES
        steps = making.record(env, random_policy(env), random.key(seed), min(size, 400))
        return Dataset(name, steps, References(0.0, 1.0))

    monkeypatch.setattr(cache, "load", load)
