"""TD3+BC: its losses against NumPy, what alpha makes of it at both ends, and its delay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import td3_bc
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.core.spaces import Box
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit.stub import losses_of, stub, transitions

ENV = envs.make("pendulum")  # actions in [-2, 2]
CONFIG = replace(td3_bc.Config(), {"hidden": (8,), "delay": 2})
LOSSES = losses_of(td3_bc.recipe(ENV, Static(CONFIG)))
N = 64
RNG = np.random.default_rng(2)
SAID = RNG.uniform(-2, 2, 2 * N).astype(np.float32)
CRITICS, COPIES = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


def test_the_targets_are_td3s():
    x, key = transitions(N, actions=0), random.key(3)
    net = stub(
        critic=lambda s, a: CRITICS[s.observation] + a[..., None],
        target={
            "actor": lambda s: SAID[s.observation],
            "critic": lambda s, a: COPIES[s.observation] * a[..., None],
        },
        key=lambda: key,
        hyper={
            "discount": 0.9,
            "reward_scale": 0.5,
            "target_noise": 0.4,
            "target_noise_clip": 0.3,
        },
    )
    output = LOSSES["critic_loss"](net, x)
    loss, report = output.value, output.metrics
    noise = 2 * np.clip(0.4 * np.asarray(jax.random.normal(key, (N,))), -0.3, 0.3)
    least = (COPIES[N:] * np.clip(SAID[N:] + noise, -2, 2)[:, None]).min(-1)
    target = 0.5 * x.reward + 0.9 * ~x.terminated * least
    q = CRITICS[:N] + x.action[:, None]
    expected = 0.5 * ((q - target[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(report["value"], q.mean(-1), rtol=1e-5)


def test_the_policy_climbs_its_value_and_stays_near_the_data():
    x = transitions(N, actions=0)
    table = lambda s, a: CRITICS[s.observation] + 3 * np.asarray(a)[..., None]
    known = stub(actor=lambda s: SAID[s.observation], critic=table, hyper={"alpha": 2.5})
    loss = LOSSES["actor_loss"](known, x)
    q = CRITICS[:N, 0] + 3 * SAID[:N]
    expected = -2.5 / np.abs(q).mean() * q + ((SAID[:N] - x.action) / 2) ** 2
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)


def test_an_infinite_alpha_is_td3_and_0_is_cloning():
    q, action = jnp.float32([1.0, -2.0]), jnp.float32([[0.3], [0.1]])
    near, far = jnp.float32([[0.2], [0.0]]), jnp.float32([[-1.0], [1.0]])
    loss = lambda action, data, alpha: td3_bc.clone_or_improve(q, action, data, jnp.float32(alpha))
    gradient = jax.grad(lambda *x: loss(*x).sum())
    np.testing.assert_allclose(loss(action, near, np.inf), -q / 1.5, rtol=1e-6)
    np.testing.assert_array_equal(loss(action, near, np.inf), loss(action, far, np.inf))
    np.testing.assert_array_equal(gradient(action, near, np.inf), 0.0)
    np.testing.assert_allclose(loss(action, near, 0.0), [0.01, 0.01], rtol=1e-5)
    assert (gradient(action, near, 2.5) != 0).all()


@pytest.mark.slow
def test_policy_and_copies_wait():
    agent = td3_bc.td3_bc.agent(ENV, CONFIG)
    no = jnp.zeros(3, bool)
    seen = TimeStep(jnp.linspace(-1, 1, 9).reshape(3, 3), jnp.arange(3.0), no, no, no)
    batch = Batch(Transition(seen, jnp.ones((3, 1)), seen, (), {}), jnp.float32(0))
    states = [jax.jit(agent.init)(random.key(0), agent.hyper)]
    update = jax.jit(agent.update)
    for i in range(2):
        states.append(update(states[-1], batch, random.key(i))[0])

    def changed_names(before, after):
        """Return the names of what an update changed."""
        flat = lambda state: jax.tree_util.tree_leaves_with_path(state.parts)
        pairs = zip(flat(before), flat(after), strict=True)
        changed = [path for (path, x), (_, y) in pairs if (x != y).any()]
        return {(path[0].key, path[1].name) for path in changed}

    critic = {("critic", "params"), ("critic", "optimizer")}
    others = {("actor", name) for name in ("params", "optimizer", "target")}
    assert changed_names(*states[:2]) == critic
    assert changed_names(*states[1:]) == critic | others | {("critic", "target")}


@pytest.mark.parametrize("bound", [np.inf, -np.inf])
def test_actions_without_bounds_are_refused(bound):
    space = Box(min(bound, -1.0), max(bound, 1.0), (1,))
    with pytest.raises(UserError, match=r"td3_bc cannot act in Box.*needs a bounded Box"):
        td3_bc.td3_bc.agent(dataclasses.replace(ENV, action_space=space), CONFIG)
