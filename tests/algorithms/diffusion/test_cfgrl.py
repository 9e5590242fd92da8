"""CFGRL: conditions and loss against tables, and improvement by guidance alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.diffusion import cfgrl
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.diffusion import Flow
from tests.algorithms.diffusion import bandit
from tests.kit.stub import losses_of, stub

N = 32
RNG = np.random.default_rng(2)
VALUE = RNG.normal(size=2 * N).astype(np.float32)
COPIES = RNG.normal(size=(2 * N, 2)).astype(np.float32)
CONFIG = replace(cfgrl.Config(), {"steps": 4, "hidden": (8,)})
RECIPE = cfgrl.recipe(bandit.ENV, Static(CONFIG))


def actor(s, noisy, level, told):
    return (
        0.3 * noisy + 0.1 * level[..., None] + (told * jnp.float32([0, -1, 2])).sum(-1)[..., None]
    )


def test_what_the_flow_is_told():
    advantage = jnp.float32(RNG.normal(size=20_000)).at[:100].set(0.0)
    told = np.asarray(cfgrl.conditions(random.key(0), advantage, jnp.float32(0.1)))
    assert (told.sum(-1) == 1).all() and abs(told[:, 0].mean() - 0.1) < 0.01
    kept = told[:, 0] == 0
    np.testing.assert_array_equal(told[kept, 2] == 1, np.asarray(advantage)[kept] >= 0)
    assert abs(told[np.asarray(advantage) >= 0, 0].mean() - 0.1) < 0.02


def test_the_flow_is_matched_given_the_condition():
    x = bandit.transitions(N)
    net = stub(
        actor=actor,
        value=lambda s: VALUE[s.observation],
        target={"critic": lambda s, a: COPIES[s.observation] + a},
        key=bandit.key,
        hyper={"drop": np.float32(0.3)},
    )
    output = losses_of(RECIPE)["actor_loss"](net, x)
    advantage = (COPIES[:N] + x.action).min(-1) - VALUE[:N]
    told = cfgrl.conditions(bandit.key("drop"), jnp.asarray(advantage), 0.3)
    noised = Flow().add_noise(bandit.key("noise"), jnp.asarray(x.action))
    said = actor(x.timestep, noised.noisy, noised.level, told)
    np.testing.assert_allclose(output.value, np.square(said - noised.target).mean(-1), rtol=1e-4)
    np.testing.assert_array_equal(output.metrics["optimal"], advantage >= 0)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_actions_follow_the_guided_velocity(weight):
    n = 6
    net = stub(target={"actor": actor}, hyper={"guidance": np.float32(weight)})
    action = RECIPE.act(net, stub(reward=np.zeros(n)), (), random.key(3), True)[0]
    x = np.asarray(jax.random.normal(jax.random.split(random.key(3))[0], (n, 1)), np.float64)
    for i in range(4):  # the velocity is 0.3 x + 0.1 t, and 2 more for optimal actions
        x = x + (0.3 * x + 0.1 * i / 4 + weight * 2) / 4
    np.testing.assert_allclose(action, np.clip(x, -1, 1), atol=1e-5)


@pytest.mark.slow
def test_guidance_improves_the_policy_without_training():
    """Actions of the data are uniform, and earn what they are: the optimal ones are the positive
    half. Weight 0 is the data, 1 the optimal half, and more weight earns more."""
    settings = {"hidden": (32, 32), "average.rate": 0.02, "target.rate": 0.05, "expectile": 0.5}
    agent = cfgrl.cfgrl.agent(bandit.ENV, replace(cfgrl.Config(), settings))

    def uniform(key, n):
        action = jax.random.uniform(key, (n,), minval=-1.0)
        return action, action

    rates = {"actor.learning_rate": 3e-3, "critic.learning_rate": 3e-3}
    state = bandit.trainer(agent, uniform, 1000)(**rates)
    found = [bandit.actions(agent, state, guidance=jnp.float32(w)) for w in (0, 1, 2, 4)]
    earned = [x.mean() for x in found]
    np.testing.assert_allclose(earned[:2], [0.0, 0.5], atol=0.1)
    np.testing.assert_allclose([found[0].std(), found[1].std()], [0.58, 0.29], atol=0.13)
    assert earned[1] < earned[2] - 0.1 < earned[3] - 0.1
