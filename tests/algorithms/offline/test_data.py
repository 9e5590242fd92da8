"""Sources of offline algorithms: a dataset, an environment, or both."""

import jax
import pytest

from jaxrl.algorithms.offline.shared import data
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import start_source
from jaxrl.envs import make
from jaxrl.envs.policies import random_policy
from tests.datasets.stand_in import no_training

__all__ = ["no_training"]

ENV = make("pendulum")
SET = {"name": "random", "batch_size": 8, "updates": 2}
ONLINE = {"num_envs": 4, "num_steps": 2, "warmup": 8, "capacity": 400}


def rows(source):
    """Number of transitions in a batch."""

    def draw(key):
        policy = random_policy(ENV)
        state = start_source(source, key, source.hyper, policy)
        state, fresh, _ = source.collect(state, policy, key)
        return source.sample(state, fresh, key).transitions.reward

    return jax.eval_shape(draw, random.key(0)).shape


@pytest.mark.parametrize(
    "settings,name,env_steps",
    [
        (SET, "dataset(random)", 2),
        (SET | ONLINE, "mixed(dataset(random), uniform replay(rollouts(pendulum)))", 8),
        (SET | ONLINE | {"name": ""}, "uniform replay(rollouts(pendulum))", 8),
    ],
)
def test_data_a_environment_or_both(settings, name, env_steps, no_training):
    source = data.Data(**settings).source(ENV)
    assert (source.name, source.env_steps, rows(source)) == (name, env_steps, (8,))


def test_a_share_is_from_the_dataset(no_training, monkeypatch):
    monkeypatch.setattr(data, "mixed", lambda offline, online, num_shards: (offline, online))
    settings = data.Data(**SET, **ONLINE, offline_share=0.25)
    assert [rows(source) for source in settings.source(ENV)] == [(2,), (6,)]


def test_settings_that_cannot_work(no_training):
    with pytest.raises(UserError, match="nothing to learn from"):
        data.Data(name="").source(ENV)
    with pytest.raises(UserError, match=r"offline_share is 0\.01; in a batch of 8, at least"):
        data.Data(**SET, **ONLINE, offline_share=0.01).source(ENV)
