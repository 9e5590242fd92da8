"""Models of dynamics and reward: the loss against NumPy, and what is held out."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.offline import dynamics_model as module
from jaxrl.algorithms.offline.dynamics_model import dynamics_model, model_loss
from jaxrl.algorithms.offline.shared.model_rollouts import Fit, standardized_change
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch
from jaxrl.kit.normalization import add, no_moments
from jaxrl.networks.rewarded_dynamics import StepPrediction
from tests.kit.stub import stub, transitions

ENV = envs.make("pendulum")
N, E, D = 12, 3, 3
RNG = np.random.default_rng(4)
BEFORE, AFTER = RNG.normal(size=(2, N, D)).astype(np.float32)
SIZES = {"model.hidden": (8,), "members": E, "elites": 2, "optimizer.learning_rate": 1e-2}


def data(seed=0):
    x = transitions(N, actions=0, seed=seed, bootstrap=RNG.poisson(1, (N, E)).astype(np.float32))
    see = lambda timestep, z: dataclasses.replace(timestep, observation=z)
    return dataclasses.replace(
        x,
        timestep=see(x.timestep, BEFORE),
        next_timestep=see(x.next_timestep, AFTER),
        action=x.action[:, None],
    )


def test_the_loss_is_the_bootstrapped_likelihood_of_change_reward_and_end():
    x = data()
    numbers = np.concatenate([BEFORE, x.reward[:, None]], -1)
    fit = Fit(add(no_moments((D + 1,)), jnp.asarray(numbers)), jnp.zeros(E))
    mean, log_variance = RNG.normal(size=(2, E, N, D + 1))
    ended = RNG.normal(size=(E, N))
    prediction = StepPrediction(*map(jnp.float32, (mean, log_variance, ended)))
    seen = []
    model = lambda timestep, action: (seen.append(timestep.observation), prediction)[1]
    found = model_loss(stub(model=model, extra=fit), x)

    deviation = numbers.std(0)
    np.testing.assert_allclose(seen[0], (BEFORE - BEFORE.mean(0)) / deviation[:D], rtol=1e-4)
    reward = (x.reward - x.reward.mean()) / deviation[D]
    target = np.concatenate([(AFTER - BEFORE) / deviation[:D], reward[:, None]], -1)
    np.testing.assert_allclose(
        standardized_change(fit.scale, x.timestep, x.next_timestep), target, rtol=1e-4, atol=1e-5
    )
    nll = 0.5 * (log_variance + (target - mean) ** 2 * np.exp(-log_variance)).sum(-1)
    probability = 1 / (1 + np.exp(-ended))
    nll -= np.log(np.where(x.terminated, probability, 1 - probability))
    expected = (x.extras["bootstrap"].T * nll).sum(0)
    np.testing.assert_allclose(found.value, expected, rtol=1e-4)
    error = ((target - mean) ** 2).mean((0, -1))
    np.testing.assert_allclose(found.metrics["squared_error"], error, rtol=1e-4)


@functools.cache
def learner():
    agent = dynamics_model.agent(ENV, replace(module.Config(), SIZES))
    return agent, jax.jit(agent.init), jax.jit(agent.update)


def learn(x, held):
    agent, init, update = learner()
    state = init(random.key(0), agent.hyper)
    batch = Batch(jax.tree.map(jnp.asarray, x), jnp.float32(0), mask=jnp.asarray(~held))
    return update(state, batch, random.key(1))


def test_nothing_is_learned_from_what_is_held_out():
    """Other rows in the place of those that are held out change the errors alone, and other rows
    in the place of the rest change what is learned."""
    held = np.arange(N) % 3 == 0
    mix = lambda a, b, mask: jax.tree.map(
        lambda p, q: np.where(mask.reshape(-1, *(1,) * (p.ndim - 1)), p, q), a, b
    )
    flip = lambda z: jax.tree.map(lambda a: a[::-1], z)
    x = data()
    first, info = learn(x, held)
    second, _ = learn(mix(flip(x), x, held), held)
    third, _ = learn(mix(flip(x), x, ~held), held)
    params = lambda state: state.parts["model"].params
    jax.tree.map(np.testing.assert_array_equal, params(first), params(second))
    jax.tree.map(np.testing.assert_array_equal, first.extra.scale, second.extra.scale)
    assert first.extra.scale.count == (~held).sum()
    assert (first.extra.error != second.extra.error).all()
    assert any(
        jax.tree.leaves(jax.tree.map(lambda a, b: (a != b).any(), *map(params, (first, third))))
    )
    error = first.extra.error / module.RATE
    np.testing.assert_allclose(info.metrics["held_out_error"].total, error.mean(), rtol=1e-4)
    np.testing.assert_allclose(
        info.metrics["elite_error"].total, np.sort(error)[:2].mean(), rtol=1e-4
    )

    nothing, info = learn(x, np.zeros(N, bool))
    np.testing.assert_array_equal(nothing.extra.error, 0)
    assert info.metrics["held_out_error"].weight == 0


def test_more_elites_than_members_are_refused():
    with pytest.raises(UserError, match="elites is 4; the model has only 3 members"):
        dynamics_model.agent(ENV, replace(module.Config(), SIZES | {"elites": 4}))
    pixels = envs.make("catch")
    with pytest.raises(UserError, match="one box of real numbers"):
        dynamics_model.agent(pixels, module.Config())
