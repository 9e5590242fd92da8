"""Policy gradients with Polyak's step size, against NumPy."""

import types

import distrax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.policy_gradient.polyak_pg import polyak_pg
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, TimeStep, Transition

T, B, STATES, ACTIONS, DISCOUNT = 4, 3, 3, 2, 0.9
LENGTHS = (2, 4, 4)  # of the episodes
WEIGHT = 0.3


def make_batch(seed=0):
    """Return episodes with states as observations, and garbage after their ends."""
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, STATES, (T, B)), rng.integers(0, ACTIONS, (T, B))
    reward = rng.normal(size=(T, B)).astype(np.float32)
    mask = np.arange(T)[:, None] < np.array(LENGTHS)
    done = np.arange(T)[:, None] == np.array(LENGTHS) - 1
    no = np.zeros((T, B), bool)
    before = TimeStep(state, np.zeros((T, B), np.float32), no, no, no)
    after = TimeStep(state, reward, done, no, no)
    x = Transition(before, action, after, (), {})
    return Batch(x, jnp.float32(0), mask=jnp.asarray(mask))


def make_net(logits, **hyper):
    """Return a net whose actor is a table of logits."""
    return types.SimpleNamespace(
        hyper=types.SimpleNamespace(discount=DISCOUNT, entropy_weight=WEIGHT, **hyper),
        parts={"actor": types.SimpleNamespace(params=logits)},
        actor=lambda timestep: distrax.Categorical(logits=logits[timestep.observation]),
        with_params=lambda actor: make_net(actor, **hyper),
        report=lambda **metrics: (logits, metrics),
    )


def expected_estimates(batch, logits, baseline):
    """Return the mean discounted return, and GPOMDP's gradient of it plus that of the entropy."""
    x, mask = batch.transitions, np.asarray(batch.mask)
    policy = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    returns = np.zeros((T, B))
    for b in range(B):
        for t in reversed(range(LENGTHS[b])):
            later = returns[t + 1, b] if t + 1 < LENGTHS[b] else 0.0
            returns[t, b] = x.reward[t, b] + DISCOUNT * later
    gradient = np.zeros_like(logits)
    for b in range(B):
        for t in range(LENGTHS[b]):
            others = [returns[t, i] for i in range(B) if i != b and mask[t, i]]
            advantage = returns[t, b] - (np.mean(others) if baseline and others else 0.0)
            s, a = x.timestep.observation[t, b], x.action[t, b]
            p = policy[s]
            score = (np.arange(ACTIONS) == a) - p
            entropy = -p * (np.log(p) - (p * np.log(p)).sum())
            gradient[s] += DISCOUNT**t * (advantage * score + WEIGHT * entropy) / B
    return returns[0].mean(), gradient


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize(("best", "scale", "longest"), [(4.0, 0.5, 1e6), (4.0, 2.0, 0.1)])
def test_a_step_along_the_gradient_has_polyaks_size(baseline, best, scale, longest):
    env = envs.make("cliff_walking", observation="index")
    recipe = polyak_pg.recipe(env, replace(polyak_pg.Config(), {"baseline": baseline}))
    logits = np.random.default_rng(1).normal(size=(STATES, ACTIONS)).astype(np.float32)
    batch, hyper = make_batch(), {"best_return": best, "scale": scale, "longest": longest}
    new, metrics = recipe.update(make_net(jnp.asarray(logits), **hyper), batch)
    value, gradient = expected_estimates(batch, logits, baseline)
    step = min((best - value) / (scale * (gradient**2).sum()), longest)
    assert (step == longest) == (longest < 1)
    np.testing.assert_allclose(metrics["value"], value, rtol=1e-5)
    np.testing.assert_allclose(metrics["step_size"], step, rtol=1e-4)
    np.testing.assert_allclose(new, logits + step * gradient, rtol=1e-4, atol=1e-5)


def test_there_is_no_step_if_the_return_exceeds_the_best_return():
    env = envs.make("cliff_walking", observation="index")
    recipe = polyak_pg.recipe(env, polyak_pg.Config())
    logits = jnp.zeros((STATES, ACTIONS))
    net = make_net(logits, best_return=-100.0, scale=1.0, longest=1.0)
    new, metrics = recipe.update(net, make_batch())
    assert metrics["step_size"] == 0
    np.testing.assert_array_equal(new, logits)
