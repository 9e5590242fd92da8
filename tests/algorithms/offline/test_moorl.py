"""MOORL: Reptile's step, and that an update learns from one source alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import moorl
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch
from tests.kit.stub import transitions

ENV = envs.make("pendulum")
PARTS = ("actor", "critic", "temperature")
SETTINGS = {k: v for k, v in moorl.TINY.items() if k != "env"} | {
    "normalization.observation": False,
    "num_shards": 1,
    "batch_size": 4,
}
CONFIG = replace(moorl.Config(), SETTINGS)
N = 2 * CONFIG.inner_steps * CONFIG.data.batch_size
HALF = N // 2


def batch(seed=0):
    """A batch [N]: rows of data first, then as many steps of the agent."""
    rng = np.random.default_rng(seed)
    x = transitions(N, actions=0, seed=seed)
    seen = rng.normal(size=(2 * N, 3)).astype(np.float32)
    before = dataclasses.replace(x.timestep, observation=seen[:N])
    after = dataclasses.replace(x.next_timestep, observation=seen[N:])
    x = dataclasses.replace(x, timestep=before, next_timestep=after, action=x.action[:, None])
    return Batch(jax.tree.map(jnp.asarray, x), env_steps=jnp.float32(0))


def with_rewards(batch, reward):
    x = batch.transitions
    after = dataclasses.replace(x.next_timestep, reward=reward)
    return dataclasses.replace(batch, transitions=dataclasses.replace(x, next_timestep=after))


@pytest.fixture(scope="module")
def learn():
    agent = moorl.moorl.agent(ENV, CONFIG)

    @jax.jit
    def run(batch, rate, chance):
        hyper = hypers(CONFIG) | {"meta_rate": rate, "offline_chance": chance}
        begun = agent.init(random.key(0), {k: jnp.float32(v) for k, v in hyper.items()})
        state, info = agent.update(begun, batch, random.key(1))
        return begun.parts, state.parts, info.metrics["learned_from_data"]

    return lambda batch, rate=1.0, chance=1.0: jax.device_get(run(batch, rate, chance))


def test_parameters_move_a_part_of_the_way(learn):
    begun, whole, _ = learn(batch())
    _, part, _ = learn(batch(), rate=0.25)
    for name in PARTS:
        moved = jax.tree.map(np.subtract, whole[name].params, begun[name].params)
        assert max(np.abs(x).max() for x in jax.tree.leaves(moved)) > 1e-4
        expected = jax.tree.map(lambda a, b: a + 0.25 * b, begun[name].params, moved)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7)
        jax.tree.map(close, part[name].params, expected)
        # Optimizers have been through all steps, whatever the rate.
        jax.tree.map(close, part[name].optimizer, whole[name].optimizer)
    rate = CONFIG.target.rate
    jax.tree.map(
        lambda old, new, target: np.testing.assert_allclose(
            target, old + rate * (new - old), rtol=1e-4, atol=1e-6
        ),
        begun["critic"].params,
        part["critic"].params,
        part["critic"].target,
    )


def test_an_update_learns_from_one_source_alone(learn):
    plain = batch()
    first = jnp.arange(N) < HALF
    reward = plain.transitions.reward
    without = {
        1.0: with_rewards(plain, jnp.where(first, reward, jnp.nan)),  # data are the first half
        0.0: with_rewards(plain, jnp.where(first, jnp.nan, reward)),
    }
    for chance, given in without.items():
        _, after, from_data = learn(given, chance=chance)
        _, expected, _ = learn(plain, chance=chance)
        jax.tree.map(
            np.testing.assert_array_equal, after["critic"].params, expected["critic"].params
        )
        assert from_data == chance
    other = learn(plain, chance=0.0)[1]
    same = jax.tree.map(np.array_equal, other["critic"].params, expected["critic"].params)
    assert all(jax.tree.leaves(same))
    differs = jax.tree.map(np.array_equal, other["critic"].params, learn(plain)[1]["critic"].params)
    assert not all(jax.tree.leaves(differs))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data.num_envs": 0}, r"^moorl learns from a dataset and an environment"),
        ({"data.name": ""}, r"^moorl learns from a dataset and an environment"),
        ({"data.batch_size": 6, "data.num_shards": 4}, r"^data.batch_size is 6"),
    ],
)
def test_a_missing_source_is_refused(settings, said):
    with pytest.raises(UserError, match=said):
        moorl.moorl.agent(ENV, replace(moorl.Config(), settings))
