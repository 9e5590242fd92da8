"""PQN's returns and its loss against plain recursions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.pqn import Sample, estimate_targets, pqn, q_loss
from jaxrl.core import random
from jaxrl.core.settings import Static
from jaxrl.networks.q_network import QNetwork
from tests.kit.stub import mask_actions, stub, transitions

CARTPOLE = envs.make("cartpole")
T, B, A, GAMMA = 6, 16, 3, 0.9
N = T * B
RECIPE = pqn.recipe(CARTPOLE, Static(pqn.Config()))
TABLE = np.random.default_rng(1).normal(size=(2 * N, A)).astype(np.float32)
HYPER = {"discount": GAMMA, "exploration.start": 1.0, "exploration.end": 1.0}


def net_of(q_lambda=0.7):
    q = lambda s: jnp.asarray(TABLE)[s.observation][..., None]
    hyper = HYPER | {"q_lambda": q_lambda, "exploration.steps": 1.0}
    return stub(q=q, hyper=hyper, env_steps=jnp.float32(0))


def window(legal):
    x = transitions(N, A)
    x = mask_actions(x, A) if legal else x
    return jax.tree.map(lambda leaf: leaf.reshape(T, B, *leaf.shape[1:]), x)


@pytest.mark.parametrize("legal", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("q_lambda", [0.0, 0.7, 1.0])
def test_targets_are_a_plain_recursion(q_lambda, legal):
    x = window(legal)
    sample = estimate_targets(net_of(q_lambda), x)
    q = TABLE[x.next_timestep.observation]
    q = np.where(x.next_timestep.legal_actions, q, -np.inf) if legal else q
    best = q.max(-1)
    target = np.zeros((T, B))
    for t in reversed(range(T)):
        for b in range(B):
            value = best[t, b]  # after a truncation, and after the window
            if x.terminated[t, b]:
                value = 0.0
            elif not x.truncated[t, b] and t < T - 1:
                value = (1 - q_lambda) * best[t, b] + q_lambda * target[t + 1, b]
            target[t, b] = x.reward[t, b] + GAMMA * value
    np.testing.assert_allclose(sample.target, target, rtol=1e-5, atol=1e-5)
    assert x.truncated.any() and x.terminated.any()


def test_the_loss_is_half_the_squared_distance():
    target = np.linspace(-1, 1, N).astype(np.float32)
    x = transitions(N, A)
    q = TABLE[np.arange(N), x.action]
    output = q_loss(net_of(), Sample(x.timestep, x.action, target))
    np.testing.assert_allclose(output.value, (q - target) ** 2 / 2, rtol=1e-5, atol=1e-6)


def test_only_legal_actions_are_chosen():
    timestep = mask_actions(transitions(N, A), A).timestep
    for greedy in (False, True):
        action = RECIPE.act(net_of(), timestep, (), random.key(2), greedy)[0]
        assert timestep.legal_actions[np.arange(N), action].all()


def test_there_is_no_target_network_and_every_layer_is_normalized():
    """Inputs of activations do not change with the scale of the layer's weights."""
    part = RECIPE.parts["q"]
    assert not part.target
    net = QNetwork(CARTPOLE.observation_space, 2, widths=(8, 8), layer_norm=True)
    timestep = dataclasses.replace(part.inputs[0], observation=jnp.float32([[1.0, -2, 3, 0.5]]))
    params = net.init(random.key(0), timestep)
    layers = params["params"]
    larger = {
        n: jax.tree.map(lambda x: 50 * x, p) for n, p in layers.items() if "LayerNorm" not in n
    }
    head = [n for n in layers if n.startswith("Dense")][-1]
    scaled = {"params": layers | larger | {head: layers[head]}}
    np.testing.assert_allclose(net.apply(scaled, timestep), net.apply(params, timestep), rtol=1e-3)
    assert part.network.layer_norm
