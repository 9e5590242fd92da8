"""IQ-Learn: its loss is `losses.iq_learn`, and on a table it finds the expert's policy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl import losses
from jaxrl.algorithms.imitation import iq_learn
from jaxrl.algorithms.imitation.shared.adversarial import Beside
from tests.kit.stub import stub, transitions

N, ACTIONS, DISCOUNT, TEMPERATURE, ALPHA = 32, 3, 0.9, 0.5, 0.7
HYPER = {"discount": DISCOUNT, "temperature": TEMPERATURE, "alpha": ALPHA}


def test_the_mean_is_the_loss_of_all_steps():
    rng = np.random.default_rng(0)
    tables = jnp.asarray(rng.normal(size=(2 * N, ACTIONS, 1)), jnp.float32)
    net = stub(q=lambda timestep: tables[timestep.observation], hyper=HYPER)
    x, y = (jax.tree.map(jnp.asarray, transitions(N, ACTIONS, seed)) for seed in (0, 1))
    output = iq_learn.iq_loss(net, Beside(x, y))
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), x, y)
    soft = lambda timestep: losses.soft_value(tables[timestep.observation][..., 0], TEMPERATURE)
    expected = losses.iq_learn(
        losses.at_action(tables[both.observation][..., 0], both.action),
        soft(both.timestep),
        soft(both.next_timestep),
        jnp.arange(2 * N) >= N,
        both.terminated,
        DISCOUNT,
        ALPHA,
    )
    np.testing.assert_allclose(output.value.mean(), expected, rtol=1e-5)


def test_the_policy_is_the_experts_where_it_was_seen():
    """Three states in a ring, and steps of an expert alone, whose policy is a soft one: Q's softmax
    is its policy."""
    rng = np.random.default_rng(1)
    expert = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.1, 0.3, 0.6]])
    state = rng.integers(0, 3, 3000)
    action = np.array([rng.choice(3, p=expert[s]) for s in state])
    after = (state + action) % 3
    no = jnp.zeros(3000, bool)
    x = jax.tree.map(jnp.asarray, transitions(3000, ACTIONS))
    at = lambda timestep, seen: dataclasses.replace(
        timestep, observation=jnp.asarray(seen), terminated=no
    )
    x = dataclasses.replace(
        x,
        timestep=at(x.timestep, state),
        action=jnp.asarray(action),
        next_timestep=at(x.next_timestep, after),
    )

    def mean_loss(table):
        net = stub(q=lambda timestep: table[timestep.observation][..., None], hyper=HYPER)
        output = iq_learn.iq_loss(net, Beside(x, x))
        return output.value.mean()

    optimizer = optax.adam(0.05)

    def step(carry, _):
        table, state = carry
        updates, state = optimizer.update(jax.grad(mean_loss)(table), state)
        return (optax.apply_updates(table, updates), state), None

    begin = jnp.zeros((3, 3))
    (table, _), _ = jax.jit(lambda x: jax.lax.scan(step, x, None, 600))(
        (begin, optimizer.init(begin))
    )
    found = jax.nn.softmax(table / TEMPERATURE)
    # The regularizer of rewards pulls it toward the uniform policy, but keeps its order.
    np.testing.assert_array_equal(np.argsort(found), np.argsort(expert))
