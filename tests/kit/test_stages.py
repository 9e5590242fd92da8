"""Two stages as one algorithm."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import algorithms, envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.learn import take_over
from jaxrl.core.train import Run, advance, start, train
from jaxrl.kit.stages import stages

SMALL = {"num_envs": 4, "hidden": (4,), "learning_rate": 0.1}
ENV = envs.make("cartpole")


def ppo(num_steps, **changes):
    return algorithms.ppo(ENV, SMALL | {"num_steps": num_steps, "minibatches": 1} | changes)


def replay_stage(**changes):
    sizes = {"batch_size": 4, "capacity": 32, "warmup": 8, "num_steps": 2, "updates": 1}
    return algorithms.dqn(ENV, SMALL | sizes | changes)


def params(state):
    return [np.asarray(x) for x in jax.tree.leaves(state.agent.parts)]


@pytest.mark.slow
def test_two_stages_are_a_run_and_a_warm_start_by_hand():
    first, second = ppo(4), ppo(8, **{"epochs": 1})
    both = stages(first, 3, second)
    run = start(both, random.key(0))
    keys = jax.random.split(jax.random.fold_in(random.key(0), 0), 3)
    learned, _ = train(first, Run(first.init(keys[0], first.hyper), keys[1], jnp.int32(0)), 3)
    begun = take_over(second.init(keys[2], second.hyper), learned.state.agent)
    for a, b in zip(params(run.state), params(begun), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert both.initial_env_steps == 3 * 4 * 4 and both.env_steps == 4 * 8
    after, _ = advance(both, run)
    by_hand, _ = second.step(begun, jax.random.fold_in(random.key(0), 1))
    for a, b in zip(params(after.state), params(by_hand), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_hyperparameters_of_both_are_vmapped_together():
    both = stages(ppo(4), 2, ppo(4))
    rates = {"first.optimizer.learning_rate": jnp.asarray([0.0, 0.1])}
    begin = jax.vmap(lambda rate: start(both, random.key(0), rate).state)
    states = begin(rates)
    first, second = ([x[i] for x in params(states)] for i in (0, 1))
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    hyper = states.agent.hyper["optimizer.learning_rate"]
    np.testing.assert_array_equal(hyper, np.float32([0.1, 0.1]))  # the second's own


@pytest.mark.slow
def test_the_warm_up_of_a_replay_is_played_by_the_adopted_policy():
    """Epsilon 0 from the start, so actions are the network's: those of the one that learned."""
    greedy = {"exploration.start": 0.0, "exploration.end": 0.0}
    first, second = replay_stage(**greedy), replay_stage(**greedy)
    begun = start(stages(first, 5, second), random.key(0)).state
    fresh = types.SimpleNamespace(env_steps=jnp.float32(0))
    batch = second.source.sample(begun.source, fresh, random.key(1))
    policy, x = second.policy(begun), batch.transitions
    action, _, _ = policy.act(policy.state, x.timestep, (), random.key(2), True)
    np.testing.assert_array_equal(action, x.action)


@pytest.mark.slow
def test_the_adopted_policy_plays_also_where_a_new_one_would_act_at_random():
    sizes = {"batch_size": 4, "capacity": 32, "warmup": 8, "num_steps": 2, "hidden": (4,)}
    env = envs.make("pendulum")
    learner = algorithms.td3(env, sizes | {"num_envs": 2, "exploration_noise": 0.0})
    begun = start(stages(learner, 5, learner), random.key(0)).state
    fresh = types.SimpleNamespace(env_steps=jnp.float32(0))
    x = learner.source.sample(begun.source, fresh, random.key(1)).transitions
    policy = learner.policy(begun)
    action, _, _ = policy.act(policy.state, x.timestep, (), random.key(2), True)
    np.testing.assert_allclose(action, x.action, atol=1e-6)


def test_what_does_not_fit_is_said_in_one_sentence():
    with pytest.raises(UserError, match="must be at least 1, got 0"):
        stages(ppo(4), 0, ppo(4))
    with pytest.raises(UserError, match="other parts than this configuration's"):
        stages(ppo(4), 1, replay_stage())
    es = algorithms.evolution_strategy(ENV, {"hidden": (4,), "population": 4})
    with pytest.raises(UserError, match="is not an agent with a source"):
        stages(es, 1, ppo(4))
