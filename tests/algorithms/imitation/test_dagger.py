"""DAgger: the loss against NumPy, and who acts when."""

import dataclasses

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.imitation import dagger
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from tests.kit.stub import stub, transitions

N = 4_096
HYPER = {"decay": 0.5, "iteration_steps": 100.0}


def advise(x, action):
    timestep = dataclasses.replace(x.timestep, privileged={EXPERT_ACTION: jnp.asarray(action)})
    return dataclasses.replace(x, timestep=timestep)


def test_what_the_expert_would_have_done_is_cloned():
    x = transitions(N, 3)
    logits = np.random.default_rng(2).normal(size=(N, 3)).astype(np.float32)
    wanted = np.arange(N) % 3
    net = stub(actor=lambda timestep: distrax.Categorical(logits=logits))
    output = dagger.cloning_loss(net, advise(x, wanted))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(output.value, -log_probs[np.arange(N), wanted], rtol=1e-5)
    np.testing.assert_array_equal(output.metrics["agreement"], wanted == x.action)


@pytest.mark.parametrize(("steps", "share"), [(0, 1.0), (99, 1.0), (100, 0.5), (250, 0.25)])
def test_the_expert_acts_less_and_less(steps, share):
    net = stub(hyper=HYPER, env_steps=jnp.float32(steps))
    np.testing.assert_allclose(dagger.share_of_expert(net), share)
    own = lambda net, timestep, memory, key, greedy: (jnp.zeros(N, jnp.int32), memory, {})
    act = dagger.act_beside_expert(own)
    x = advise(transitions(N), np.ones(N, np.int32))
    timestep = jax.tree.map(jnp.asarray, x.timestep)
    action, _, _ = act(net, timestep, (), random.key(0), False)
    assert abs(np.mean(np.asarray(action)) - share) < 4 * np.sqrt(0.25 / N)
    for seen, greedy in ((timestep, True), (dataclasses.replace(timestep, privileged=None), False)):
        action, _, _ = act(net, seen, (), random.key(0), greedy)
        assert not np.any(action)


def test_it_needs_an_expert():
    with pytest.raises(UserError, match="has none"):
        dagger.dagger.agent(envs.make("hopper"), {"hidden": (8,)})
