"""GRPO for function calls: what entropy adds to an advantage, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.tokens import function_call_grpo as module
from jaxrl.algorithms.tokens.function_call_grpo import shape_advantage
from jaxrl.networks.heads import Categorical
from tests.algorithms.tokens.answers import make_batch
from tests.kit.stub import stub


@pytest.mark.parametrize(("temperature", "scale"), [(1.0, 0.4), (0.5, 0.4), (1.0, 0.0)])
def test_entropy_adds_to_advantages_within_bounds(monkeypatch, temperature, scale):
    """The entropy is that of what answers are sampled from."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3, 5)) * 2
    logits[2] = 0  # undecided: the clip holds there
    advantage = np.broadcast_to([1.2, 0.0, -0.8], (6, 3))
    policy = Categorical(jnp.asarray(logits))
    monkeypatch.setattr(module, "unroll", lambda part, net, timestep: (policy, None))
    hyper = {"sampling.temperature": temperature, "entropy_scale": scale, "entropy_bound": 2.0}
    batch = make_batch(np.zeros((6, 3), int), np.ones((6, 3), bool), np.zeros((6, 3)))
    net = stub(hyper=hyper, actor_critic=None)
    found = np.asarray(shape_advantage(net, batch, jnp.asarray(advantage)))
    p = np.exp(logits / temperature)
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(p)).sum(-1)
    bonus = np.minimum(scale * entropy, np.abs(advantage) / 2)
    np.testing.assert_allclose(found, advantage + bonus, rtol=1e-4, atol=1e-5)
    assert (np.sign(found) == np.sign(advantage)).all() and not found[:, 1].any()
    if scale:
        clipped = scale * entropy > np.abs(advantage) / 2
        assert clipped[2].all() and not clipped.all()
