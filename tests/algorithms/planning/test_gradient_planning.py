"""Planning through a learned model: losses against NumPy, ends, and what a plan begins with."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.planning import gradient_planning as module
from jaxrl.algorithms.planning.gradient_planning import begin_plan, predict
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.networks.rewarded_dynamics import StepPrediction
from tests.kit.stub import losses_of, stub, transitions
from tests.networks.pendulum import make_timestep

ENV = envs.make("pendulum")  # actions in [-2, 2]
N, E, D = 6, 2, 3
RNG = np.random.default_rng(1)
SETTINGS = {k: v for k, v in module.TINY.items() if k != "env"}


def recipe(**settings):
    return module.recipe(ENV, Static(replace(module.Config(), SETTINGS | settings)))


def linear(timestep, action):
    """Members predict half and three halves of: the first number changes by the action, and the
    reward is it; the task ends above 3."""
    x = timestep.observation
    zero = jnp.zeros_like(action)
    mean = jnp.concatenate([action, zero, zero, x[..., :1] + action], -1)
    mean = jnp.stack([0.5 * mean, 1.5 * mean])
    ended = jnp.broadcast_to(x[..., 0] + action[..., 0] - 3, (2, *action.shape[:-1]))
    return StepPrediction(mean, jnp.zeros_like(mean), ended)


def test_the_model_learns_change_reward_and_end():
    before, after = RNG.normal(size=(2, N, D)).astype(np.float32)
    x = transitions(N, actions=0)
    see = lambda timestep, z: dataclasses.replace(timestep, observation=z)
    x = dataclasses.replace(
        x, timestep=see(x.timestep, before), next_timestep=see(x.next_timestep, after)
    )
    mean, log_variance = RNG.normal(size=(2, E, N, D + 1))
    ended = RNG.normal(size=(E, N))
    prediction = StepPrediction(*map(jnp.float32, (mean, log_variance, ended)))
    found = losses_of(recipe())["model_loss"](stub(model=lambda s, a: prediction), x)
    target = np.concatenate([after - before, x.reward[:, None]], -1)
    nll = 0.5 * (log_variance + (target - mean) ** 2 * np.exp(-log_variance)).sum(-1)
    probability = 1 / (1 + np.exp(-ended))
    nll -= np.log(np.where(x.terminated, probability, 1 - probability))
    np.testing.assert_allclose(found.value, nll.sum(0), rtol=1e-4)


def test_nothing_changes_or_pays_after_an_end():
    net = stub(model=linear)
    timestep = begin_plan(make_timestep([[2.0, 0, 0], [0.5, 0, 0]], [True, True]))
    assert not timestep.terminated.any()
    action = jnp.array([[1.5], [1.5]])
    first, reward = predict(net, timestep, action)
    np.testing.assert_allclose(first.observation[:, 0], [3.5, 2.0])
    np.testing.assert_allclose(reward, [3.5, 2.0])
    np.testing.assert_array_equal(first.terminated, [True, False])
    second, reward = predict(net, first, action)
    np.testing.assert_allclose(second.observation[:, 0], [3.5, 3.5])
    np.testing.assert_allclose(reward, [0.0, 3.5])
    np.testing.assert_array_equal(second.terminated, [True, True])


def test_the_policy_climbs_its_return_in_the_model():
    """Actions k from 0 are paid k, 2 k and 3 k, so the loss is -(1 + 2 d + 3 d^2) k."""
    x = transitions(N)
    start = make_timestep(np.zeros((N, D)), [False] * N)
    x = dataclasses.replace(x, timestep=start)

    def value(k):
        policy = lambda timestep: jnp.full((N, 1), k)
        net = stub(policy=policy, model=linear, hyper={"discount": 0.5})
        return losses_of(recipe())["policy_loss"](net, x)

    np.testing.assert_allclose(value(0.4), -0.4 * (1 + 2 * 0.5 + 3 * 0.25), rtol=1e-5)
    slope = jax.grad(lambda k: value(k).mean())(0.4)
    np.testing.assert_allclose(slope, -(1 + 2 * 0.5 + 3 * 0.25), rtol=1e-5)


@pytest.mark.parametrize("begin", ["plan", "policy"])
def test_a_plan_begins_with_the_rest_of_the_last_one_or_the_policy(begin):
    """A single candidate that is not improved is the plan that it begins with."""
    act = recipe(begin=begin, candidates=1, iterations=1, **{"planner.how": "shooting"}).act
    policy = lambda timestep: jnp.full((*timestep.reward.shape, 1), 0.25)
    hyper = {"discount": 0.9, "exploration_noise": 0.1}
    net = stub(policy=policy, model=linear, hyper=hyper)
    timestep = make_timestep(np.zeros((2, D)), [False, False])
    memory = jnp.arange(6, dtype=jnp.float32).reshape(2, 3, 1) / 4
    action, rest, _ = act(net, timestep, memory, random.key(0), True)
    plan = np.asarray(memory) if begin == "plan" else np.full((2, 3, 1), 0.25)
    np.testing.assert_allclose(action, plan[:, 0], rtol=1e-5)
    np.testing.assert_allclose(rest, np.concatenate([plan[:, 1:], plan[:, 2:]], 1), rtol=1e-5)
    drawn = functools.partial(act, net, timestep, memory)
    noisy = jax.vmap(lambda key: drawn(key, False)[0])(jax.random.split(random.key(1), 2000))
    np.testing.assert_allclose(noisy[:, :, 0].std(0), 0.2, rtol=0.1)  # of half-widths of 2
    assert (jnp.abs(noisy) <= 2).all()


def test_plans_are_better_in_the_model_than_what_they_begin_with():
    """The best actions push, and stop short of an end, which costs what would follow."""
    act = recipe(begin="plan", candidates=16, iterations=40).act
    net = stub(model=linear, hyper={"discount": 1.0, "exploration_noise": 0.0})
    timestep = make_timestep([[0.0, 0, 0]], [False])
    action = act(net, timestep, jnp.zeros((1, 3, 1)), random.key(0), True)[0]
    assert action[0, 0] > 0.9


def test_what_does_not_fit_is_refused():
    config = replace(module.Config(), SETTINGS | {"planner.how": "cem", "planner.elites": 9})
    with pytest.raises(UserError, match=r"planner\.elites is 9; there are only 4 candidates"):
        module.gradient_planning.agent(ENV, config)
    with pytest.raises(UserError):
        module.gradient_planning.agent(envs.make("cartpole"), replace(module.Config(), SETTINGS))
