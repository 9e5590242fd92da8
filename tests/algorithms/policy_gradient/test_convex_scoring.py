"""Risk by convex scoring functions, against NumPy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.convex_scoring import convex_scoring
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition

T, B, TAIL, WEIGHT, LAMBDA = 5, 4, 0.5, 0.4, 0.8
ENV = envs.make("cliff_walking", observation="index")
RNG = np.random.default_rng(0)
NO = np.zeros((T, B), bool)


def recipe(score):
    return convex_scoring.recipe(ENV, replace(convex_scoring.Config(), {"score": score}))


def test_an_episode_keeps_its_v_and_accumulates_its_cost():
    seen = []

    def actor_critic(timestep, memory):
        seen.append(np.asarray(timestep.observation)[:, 48:])
        return types.SimpleNamespace(mode=lambda: jnp.zeros(2, int)), None, ()

    net = types.SimpleNamespace(
        actor_critic=actor_critic, extra=7.0, hyper=types.SimpleNamespace(spread=1.0)
    )
    first, no = np.array([True, False]), np.zeros(2, bool)
    timestep = TimeStep(np.array([3, 4]), np.array([0.0, -2.0], np.float32), no, no, first)
    memory = jnp.array([5.0, 5.0]), jnp.array([1.0, 1.0])
    _, memory, extras = recipe("shortfall").act(net, timestep, memory, jax.random.key(0), True)
    np.testing.assert_array_equal(seen[0], [[0, 7], [7, 1]])
    assert memory[0].tolist() == extras["so_far"].tolist() == [0, 7]
    assert memory[1].tolist() == extras["v"].tolist() == [7, 1]


@pytest.mark.parametrize("score", ("shortfall", "variance"))
def test_the_only_reward_is_the_score_at_the_end_of_an_episode(score):
    done, mask = NO.copy(), ~NO
    done[2, 0] = done[-1, 1:] = True
    mask[3:, 0] = False
    reward, value = RNG.normal(size=(2, T, B)).astype(np.float32)
    v = np.broadcast_to(RNG.normal(size=B).astype(np.float32), (T, B))
    so_far = -np.cumsum(np.concatenate((np.zeros((1, B)), reward[:-1])), 0)
    before = TimeStep(np.zeros((T, B), int), np.zeros((T, B), np.float32), NO, NO, NO)
    after = TimeStep(np.zeros((T, B), int), reward, done, NO, NO)
    x = Transition(before, np.zeros((T, B), int), after, (), {"so_far": so_far, "v": v})
    found = types.SimpleNamespace(extra=jnp.float32(0))
    found.hyper = types.SimpleNamespace(tail=TAIL, weight=WEIGHT, gae_lambda=LAMBDA)
    found.actor_critic = lambda timestep, memory, method: (None, jnp.asarray(value), ())
    found.descend = lambda loss, x, mask, weight: setattr(found, "x", x) or found
    found.replace = lambda extra: setattr(found, "extra", extra) or found
    found.report = lambda v: found
    recipe(score).update(found, Batch(x, jnp.float32(0), mask=jnp.asarray(mask)))

    ends = np.array([2, T - 1, T - 1, T - 1])
    cost = -np.array([reward[: n + 1, b].sum() for b, n in enumerate(ends)])
    risky = np.maximum(cost - v[0], 0) / TAIL + v[0]
    risky = (cost - v[0]) ** 2 if score == "variance" else risky
    expected = np.zeros((T, B))
    for b, n in enumerate(ends):
        to_come = 0.0
        for t in reversed(range(n + 1)):
            gain = value[t + 1, b] if t < n else -(1 - WEIGHT) * cost[b] - WEIGHT * risky[b]
            to_come = gain - value[t, b] + LAMBDA * to_come
            expected[t, b] = to_come
    steps = found.x
    np.testing.assert_allclose(steps.advantage, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(steps.target, expected + value, rtol=1e-4, atol=1e-4)
    best = np.sort(cost)[1] if score == "shortfall" else cost.mean()
    np.testing.assert_allclose(found.extra, best, rtol=1e-5)
