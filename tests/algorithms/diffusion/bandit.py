"""Generative policies in a bandit of one step: tables for their losses, and training on actions and
rewards of any distribution."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.types import Batch, TimeStep, Transition
from tests.kit import stub

ENV = envs.make("two_sides")


def key(name=""):
    """The random key of a loss."""
    return jax.random.fold_in(random.key(5), zlib.crc32(name.encode()))


def transitions(n, seed=0):
    """Transitions [n] with the actions [n, 1] of a table."""
    x = stub.transitions(n, actions=0, seed=seed)
    return dataclasses.replace(x, action=x.action[:, None])


def batch_of(action, reward):
    """One step each, from the same observation, that ends the episode."""
    n = len(reward)
    no, yes = jnp.zeros(n, bool), jnp.ones(n, bool)
    before = TimeStep(jnp.zeros((n, 1)), jnp.zeros(n), no, no, no)
    after = TimeStep(jnp.zeros((n, 1)), reward, yes, no, no)
    return Batch(Transition(before, action[:, None], after, (), {}), jnp.float32(0))


def trainer(agent, data, updates, n=128):
    """Compile training: changes of hyperparameters -> state after updates on fresh batches.

    data: key, n -> actions [n] and rewards [n].
    """

    @jax.jit
    def run(hyper):
        def step(state, key):
            data_key, update_key = jax.random.split(key)
            return agent.update(state, batch_of(*data(data_key, n)), update_key)[0], None

        state = agent.init(random.key(0), hyper)
        return jax.lax.scan(step, state, jax.random.split(random.key(1), updates))[0]

    all_of = lambda hyper: {k: jnp.float32(v) for k, v in (dict(agent.hyper) | hyper).items()}
    return lambda **hyper: run(all_of(hyper))


def actions(agent, state, n=2000, greedy=False, **hyper):
    """Sample n actions [n] of the policy, with other hyperparameters if given."""
    changed = dataclasses.replace(state, hyper=state.hyper | hyper) if hyper else state
    no = jnp.zeros(n, bool)
    seen = TimeStep(jnp.zeros((n, 1)), jnp.zeros(n), no, no, ~no)
    act = jax.jit(lambda s: agent.act(s, seen, agent.memory(n), random.key(9), greedy)[0])
    return np.asarray(act(changed))[:, 0]


def two_modes(key, n):
    """Actions about -0.6 and 0.6, as likely; the right ones earn 1, the left ones 0.5."""
    side_key, noise_key = jax.random.split(key)
    side = jnp.where(jax.random.bernoulli(side_key, 0.5, (n,)), 1.0, -1.0)
    action = 0.6 * side + 0.05 * jax.random.normal(noise_key, (n,))
    return action, jnp.where(side > 0, 1.0, 0.5)


def shares(action):
    """Shares of actions at the left mode, at the right mode, and elsewhere."""
    left, right = (np.mean(np.abs(action - at) < 0.2) for at in (-0.6, 0.6))
    return left, right, 1 - left - right
