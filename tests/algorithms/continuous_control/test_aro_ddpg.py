"""ARO-DDPG: its losses against NumPy, and its average reward in a loop of two states."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.continuous_control import aro_ddpg
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")
N = 64
RNG = np.random.default_rng(2)
SAID = RNG.uniform(-2, 2, 2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)
LOSSES = losses_of(aro_ddpg.recipe(ENV, Static(aro_ddpg.Config())))


def stub_net(rate):
    return stub(
        actor=lambda s: SAID[s.observation],
        critic=lambda s, a: CRITICS[s.observation] + 3 * np.asarray(a)[..., None],
        rate=lambda: rate,
        target={
            "actor": lambda s: -SAID[s.observation],
            "critic": lambda s, a: COPIES[s.observation] * a[..., None],
        },
    )


def test_critics_and_rate_descend_the_differential_errors():
    x = transitions(N, actions=0)
    loss = lambda rate: LOSSES["critic_loss"](stub_net(rate), x).value
    after = (COPIES[N:] * -SAID[N:, None]).min(-1)
    q = CRITICS[:N] + 3 * x.action[:, None]
    # What follows a termination is worth 0; a time limit is looked past.
    error = (x.reward + ~x.terminated * after)[:, None] - 0.4 - q
    np.testing.assert_allclose(loss(jnp.float32(0.4)), (error**2).sum(-1), rtol=1e-4, atol=1e-5)
    slope = jax.jacfwd(loss)(jnp.float32(0.4))
    np.testing.assert_allclose(slope, -error.sum(-1), rtol=1e-4, atol=1e-4)
    assert x.truncated.any() and x.terminated.any()


def test_the_policy_climbs_the_smaller_value():
    loss = LOSSES["actor_loss"](stub_net(jnp.float32(0)), transitions(N, actions=0))
    np.testing.assert_allclose(loss, -(CRITICS[:N] + 3 * SAID[:N, None]).min(-1), rtol=1e-4)


def test_the_rate_of_a_loop_is_its_mean_reward():
    """Two states in turn, rewarded 1 and 0: rho = 1/2, and the first is worth 1/2 more."""
    table = types.SimpleNamespace(
        init=lambda key, *_: jnp.zeros((2, 2)), apply=lambda w, s, a: w[s.observation]
    )
    still = types.SimpleNamespace(
        init=lambda key, *_: jnp.zeros(1), apply=lambda a, s: jnp.broadcast_to(a, (2, 1))
    )
    settings = {"optimizer.name": "sgd", "optimizer.learning_rate": 0.3, "rate.name": "sgd",
                "rate.learning_rate": 0.1, "target.rate": 0.2}  # fmt: skip
    config = replace(aro_ddpg.Config(), settings)
    agent = aro_ddpg.aro_ddpg.agent(ENV, config, {"critic": table, "actor": still})
    no = jnp.zeros(2, bool)
    seen = lambda states, reward: TimeStep(jnp.int32(states), jnp.float32(reward), no, no, no)
    data = Transition(seen([0, 1], [0, 0]), jnp.zeros((2, 1)), seen([1, 0], [1, 0]), (), {})
    batch = Batch(data, jnp.float32(0))
    turn = lambda _, state: agent.update(state, batch, random.key(0))[0]
    begun = agent.init(random.key(0), agent.hyper)
    state = jax.jit(lambda state: jax.lax.fori_loop(0, 2000, turn, state))(begun)
    rate = state.parts["rate"].params["params"]["value"]
    np.testing.assert_allclose(rate, 0.5, atol=1e-3)
    first, second = state.parts["critic"].params
    np.testing.assert_allclose(first - second, 0.5, atol=1e-2)
