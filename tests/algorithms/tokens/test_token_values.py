"""ILQL and MC returns: errors of tokens against loops over texts; how values steer a policy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.tokens import ilql as ilql_file
from jaxrl.algorithms.tokens import mc_returns as mc_file
from jaxrl.algorithms.tokens.ilql import ilql
from jaxrl.algorithms.tokens.shared.token_values import Valued, steer
from jaxrl.core.errors import UserError
from jaxrl.core.types import TimeStep
from jaxrl.networks.heads import Categorical
from tests.kit.stub import stub

T, B, TOKENS, DISCOUNT, EXPECTILE, CONSERVATIVE = 9, 6, 4, 0.7, 0.8, 0.1


def example():
    """Return texts with random decisions, rewards at any step, and ends."""
    rng = np.random.default_rng(0)
    end = rng.integers(4, T, B)
    within = np.arange(T)[:, None] <= end
    decides = (rng.random((T, B)) < 0.6) & within
    decides[end, np.arange(B)] = True
    reward = np.where(within, rng.normal(size=(T, B)), 0).astype(np.float32)
    reward = np.where(np.cumsum(decides, 0) > 0, reward, 0)
    done = np.arange(T)[:, None] == end
    action = rng.integers(0, TOKENS, (T, B))
    legal = rng.random((T + 1, B, TOKENS)) < 0.7
    legal[np.arange(T)[:, None], np.arange(B), action] = True
    no = np.zeros((T + 1, B), bool)
    text = TimeStep(no, no, no, no, no, legal_actions=jnp.asarray(legal))
    arrays = map(jnp.asarray, (action, reward, done, done, decides))
    return Valued(text, *arrays), (end, decides, reward, action, legal)


def net_of(heads):
    rng = np.random.default_rng(1)
    q, held = rng.normal(size=(2, T + 1, B, heads, TOKENS)).astype(np.float32)
    v = rng.normal(size=(T + 1, B)).astype(np.float32)
    part = lambda q, v: lambda text, memory, method: (jnp.asarray(q), jnp.asarray(v), ())
    initial = type("Network", (), {"initial": lambda self, n: ()})
    hyper = {"discount": DISCOUNT, "expectile": EXPECTILE, "conservative": CONSERVATIVE}
    targets = {"values": part(held, v * 0)}
    net = stub(targets, hyper, values=part(q, v), network=lambda name: initial())
    return net, q, held, v


def cross_entropy(q, legal, action):
    """Return it for the heads [K, V], summed."""
    return sum(np.log(np.exp(head[legal]).sum()) - head[action] for head in q)


def compare(found, expected):
    assert abs(found - expected) < 1e-4 * (1 + abs(expected))


def test_ilql_learns_from_the_next_decision():
    x, (end, decides, reward, action, legal) = example()
    net, q, held, v = net_of(2)
    found = np.asarray(ilql_file.values_loss(net, x).value)
    for b in range(B):
        for t in np.flatnonzero(decides[:, b]):
            later = [u for u in range(t + 1, end[b] + 1) if decides[u, b]]
            following = v[later[0], b] if later else 0.0
            paid = reward[t : (later or [T])[0], b].sum()
            target = paid + DISCOUNT * following
            a = action[t, b]
            loss = ((q[t, b, :, a] - target) ** 2).sum() / 2
            gap = held[t, b, :, a].min() - v[t, b]
            loss += (EXPECTILE if gap > 0 else 1 - EXPECTILE) * gap**2 / 2
            loss += CONSERVATIVE * cross_entropy(q[t, b], legal[t, b], a)
            compare(found[t, b], loss)


def test_mc_learns_returns_of_decisions():
    x, (_, decides, reward, action, legal) = example()
    net, q, _, _ = net_of(1)
    found = np.asarray(mc_file.values_loss(net, x).value)
    for b in range(B):
        places = np.flatnonzero(decides[:, b])
        for i, t in enumerate(places):
            paid = np.add.reduceat(reward[:, b], places)[i:]
            to_come = (DISCOUNT ** np.arange(len(paid)) * paid).sum()
            a = action[t, b]
            loss = (q[t, b, 0, a] - to_come) ** 2 / 2
            loss += CONSERVATIVE * cross_entropy(q[t, b], legal[t, b], a)
            compare(found[t, b], loss)


def test_the_smaller_value_steers_the_cloned_policy():
    rng = np.random.default_rng(2)
    legal = np.array([[True, True, False, True]] * B)
    logits = np.where(legal, rng.normal(size=(B, TOKENS)), -1e9).astype(np.float32)
    logits = np.asarray(jax.nn.log_softmax(logits))
    q = rng.normal(size=(B, 2, TOKENS)).astype(np.float32)
    policy = lambda timestep, memory: (Categorical(jnp.asarray(logits)), None, memory + 1)
    values = lambda timestep, memory: (jnp.asarray(q), None, memory + 10)
    net = stub({"values": values}, {"strength": 3.0}, actor_critic=policy)
    steered, allowed, memory = steer(net, None, (0, 0))
    expected = np.where(legal, np.exp(logits) * np.exp(3 * q.min(1)), 0)
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(steered.probs, expected, rtol=1e-4, atol=1e-7)
    assert memory == (1, 10) and allowed is None


def test_texts_without_rewards_are_refused():
    for changes in ({"texts.count": 0}, {"texts.file": "texts.txt"}):
        with pytest.raises(UserError, match="ilql learns from a dataset"):
            ilql(envs.make("guess_letter"), {"recurrent": 8, "transformer": 0} | changes)
