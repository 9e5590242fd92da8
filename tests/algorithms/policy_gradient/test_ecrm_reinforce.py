"""REINFORCE under expected conditional risk measures, against NumPy."""

import types

import jax.numpy as jnp
import numpy as np

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.ecrm_reinforce import ecrm_reinforce
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition

T, B, DISCOUNT, TAIL, WEIGHT = 5, 3, 0.9, 0.2, 0.4
THRESHOLDS = (-1.0, 0.5, 2.0)
ENV = envs.make("cliff_walking", observation="index")
CONFIG = replace(ecrm_reinforce.Config(), {"thresholds": THRESHOLDS, "baseline": False})
RECIPE = ecrm_reinforce.recipe(ENV, CONFIG)


def test_an_action_and_the_next_threshold_are_one_choice():
    """The policy sees the current threshold, and none at first."""
    seen = []

    def policy(timestep, memory):
        seen.append(np.asarray(timestep.observation))
        return types.SimpleNamespace(mode=lambda: jnp.array([7, 2])), None, ()

    no = np.zeros(2, bool)
    timestep = TimeStep(np.array([3, 4]), np.zeros(2, np.float32), no, no, no)
    net = types.SimpleNamespace(policy=policy)
    action, memory, extras = RECIPE.act(net, timestep, jnp.array([-1, 1]), None, True)
    assert action.tolist() == [2, 0] and memory.tolist() == [1, 2]
    assert extras["old"].tolist() == [-1, 1] and extras["new"].tolist() == [1, 2]
    expected = np.zeros((2, 48 + 3))
    expected[0, 3] = expected[1, 4] = expected[1, 48 + 1] = 1
    np.testing.assert_array_equal(seen[0], expected)


def test_the_loss_weights_choices_by_the_risk_to_come():
    rng = np.random.default_rng(0)
    first, done, mask = np.zeros((3, T, B), bool)
    first[0], done[2, 0], done[-1, 1:], mask[:] = True, True, True, True
    mask[3:, 0] = False
    reward = rng.normal(size=(T, B)).astype(np.float32)
    old, new, action = rng.integers(0, 3, (3, T, B))
    no, number = np.zeros((T, B), bool), np.zeros((T, B), int)
    before = TimeStep(number, np.zeros((T, B), np.float32), no, no, first)
    after = TimeStep(number, reward, done, no, no)
    x = Transition(before, action, after, (), {"old": old, "new": new})
    found = []
    hyper = types.SimpleNamespace(discount=DISCOUNT, tail=TAIL, weight=WEIGHT)
    net = types.SimpleNamespace(hyper=hyper, descend=lambda loss, x, mask, weight: found.append(x))
    RECIPE.update(net, Batch(x, jnp.float32(0), mask=jnp.asarray(mask)))
    steps = found[0]

    levels, expected = np.array(THRESHOLDS), np.zeros((T, B))
    for b in range(B):
        to_come = 0.0
        for t in reversed(range(3 if b == 0 else T)):
            cost, v = -reward[t, b], levels[old[t, b]]
            if t:
                cost = (1 - WEIGHT) * cost + WEIGHT * max(cost - v, 0) / TAIL
            cost += 0 if done[t, b] else DISCOUNT * WEIGHT * levels[new[t, b]]
            to_come = cost + DISCOUNT * to_come * ~done[t, b]
            expected[t, b] = -to_come
    np.testing.assert_allclose(steps.advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(steps.action, action * 3 + new)
