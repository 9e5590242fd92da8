"""TD3: its target against NumPy, and its counts where several environments meet several updates.

What it shares with TD3+BC is tested there too.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.continuous_control import td3
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import advance, start
from jaxrl.sources.packing import unpack
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
N = 64
RNG = np.random.default_rng(5)
SAID = RNG.uniform(-2, 2, 2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


def test_the_target_is_the_most_cautious_copys_of_a_smeared_action():
    loss = losses_of(td3.recipe(ENV, Static(td3.Config())))["critic_loss"]
    x, key = transitions(N, actions=0), random.key(3)
    net = stub(
        critic=lambda s, a: CRITICS[s.observation] + a[..., None],
        target={
            "actor": lambda s: SAID[s.observation],
            "critic": lambda s, a: COPIES[s.observation] * a[..., None],
        },
        key=lambda: key,
        hyper={"discount": 0.9, "target_noise": 0.4, "target_noise_clip": 0.3},
    )
    noise = 2 * np.clip(0.4 * np.asarray(jax.random.normal(key, (N,))), -0.3, 0.3)
    least = (COPIES[N:] * np.clip(SAID[N:] + noise, -2, 2)[:, None]).min(-1)
    target = x.reward + 0.9 * ~x.terminated * least
    q = CRITICS[:N] + x.action[:, None]
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(loss(net, x).value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_four_environments_three_updates_and_a_delay_of_two():
    """Counts of everything after three steps of the whole program; nothing learns, so that the
    copies' way has a closed form."""
    settings = {
        "num_envs": 4, "num_steps": 1, "updates": 3, "batch_size": 8, "capacity": 64,
        "warmup": 8, "hidden": (8,), "delay": 2, "target.rate": 0.1,
        "normalization.observation": True, "optimizer.learning_rate": 0.0,
    }  # fmt: skip
    algorithm = td3.td3(ENV, replace(td3.Config(), settings))
    run = start(algorithm, random.key(0))
    inner = run.state.agent.agent
    nothing = {
        n: dataclasses.replace(p, target=jax.tree.map(jnp.zeros_like, p.params))
        for n, p in inner.parts.items()
    }
    inner = dataclasses.replace(inner, parts=nothing)
    begun = dataclasses.replace(run.state.agent, agent=inner)
    run = dataclasses.replace(run, state=dataclasses.replace(run.state, agent=begun))
    step = jax.jit(lambda run: advance(algorithm, run)[0])
    for _ in range(3):
        run = step(run)
    wrapped, ring = run.state.agent, run.state.source
    state = wrapped.agent
    # Three gradient steps for each four of the environments, after a warm-up of eight.
    assert (int(state.updates), float(state.env_steps)) == (9, 8 + 3 * 4)
    counts = {n: int(p.optimizer.count) for n, p in state.parts.items()}
    assert counts == {"critic": 9, "actor": 9 // 2}
    for part in state.parts.values():
        jax.tree.map(
            lambda p, t: np.testing.assert_allclose(t, (1 - 0.9**4) * p, rtol=1e-5),
            part.params,
            part.target,
        )
    # The replay holds observations as they are; what is learned from them is standardized anew.
    held = np.asarray(unpack(ring.transitions).observation)[: int(ring.filled)]
    assert int(ring.filled) == 5
    np.testing.assert_allclose(np.square(held[..., :2]).sum(-1), 1.0, rtol=1e-5)
    (moments,) = wrapped.own
    assert float(moments.count) == 9 * 8
    assert (moments.mean >= held.min((0, 1))).all() and (moments.mean <= held.max((0, 1))).all()


def test_target_networks_have_no_period_beside_the_delay():
    td3.td3.agent(ENV, {"delay": 1, "target.period": 3})
    with pytest.raises(UserError, match="period is 3; the target networks of td3 move"):
        td3.td3.agent(ENV, {"target.period": 3})
