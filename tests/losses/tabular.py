"""Small random environments with known optimal values, to test that targets converge."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Environment(NamedTuple):
    prob: np.ndarray  # [S, A, S]
    reward: np.ndarray  # [S, A, S]
    terminated: np.ndarray  # [S, A, S]
    discount: float


def random_environment(seed: int = 0, states: int = 5, actions: int = 3, stochastic: bool = True):
    rng = np.random.default_rng(seed)
    prob = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    if not stochastic:
        prob = np.eye(states)[prob.argmax(-1)]
    reward = rng.normal(size=(states, actions, states))
    terminated = rng.uniform(size=(states, actions, states)) < 0.2
    return Environment(prob, reward, terminated, 0.9)


def backup(environment: Environment, next_value: np.ndarray) -> np.ndarray:
    """Return backed-up values [S, A] from a value for each state, by a float64 loop."""
    states, actions, _ = environment.prob.shape
    q = np.zeros((states, actions))
    for s in range(states):
        for a in range(actions):
            for t in range(states):
                follows = (
                    0 if environment.terminated[s, a, t] else environment.discount * next_value[t]
                )
                q[s, a] += environment.prob[s, a, t] * (environment.reward[s, a, t] + follows)
    return q


def solve(environment: Environment, value: Callable[[np.ndarray], np.ndarray], number: int = 250):
    """Return the fixed point of Q <- backup(value(Q)); value is e.g. the maximum over actions."""
    q = np.zeros(environment.prob.shape[:2])
    for _ in range(number):
        q = backup(environment, value(q))
    return q


def converge(environment: Environment, target: Callable, number: int = 250) -> np.ndarray:
    """Return the same fixed point by target(q, reward, terminated, discount, next_q_values)."""
    prob, reward, terminated = map(jnp.asarray, environment[:3])
    reward = reward.astype(jnp.float32)

    @jax.jit
    def run():
        def step(_, q):
            next_q = jnp.broadcast_to(q, (*reward.shape[:2], *q.shape))
            return (prob * target(q, reward, terminated, environment.discount, next_q)).sum(-1)

        return jax.lax.fori_loop(0, number, step, jnp.zeros(reward.shape[:2]))

    return np.asarray(run())
