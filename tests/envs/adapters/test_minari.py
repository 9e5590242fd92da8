"""Environments of Minari's datasets."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.runtime import host
from tests.envs.adapters.hosting import constant


def test_the_environment_of_a_dataset(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    gymnasium = pytest.importorskip("gymnasium")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    recorder = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=30))
    recorder.reset(seed=0)
    for _ in range(40):
        *_, terminated, truncated, _ = recorder.step(1)
        if terminated or truncated:
            recorder.reset()
    recorder.create_dataset("cartpole/pushed-v0")
    env = envs.make("minari/cartpole/pushed-v0")
    assert env.max_steps == 30 and env.observation_space.shape == (4,)
    played = host.evaluate(env, constant(jnp.int32(1)), random.key(0), 2)
    assert played.finished.all() and played.returns.max() < 15
    with pytest.raises(UserError, match="Unknown dataset on this machine 'cartpole/pulled-v0'"):
        envs.make("minari/cartpole/pulled-v0")
