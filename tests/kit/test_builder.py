"""Tests of a recipe becoming an algorithm."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.train import start
from jaxrl.runtime.driver import Program, evaluation_key
from tests.learning.probes import probe


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [0, 4])
def test_what_is_first_built_in_a_trace_is_of_use_outside(recurrent):
    """The same arguments give the same object, so it may hold no tracer."""
    env, config = probe(), replace(ppo.Config(), {"hidden": (4,), "recurrent": recurrent})

    @jax.jit
    def inside(key):
        agent = ppo(env, config).agent
        return agent.init(key, agent.hyper)

    agent, key = ppo.agent(env, config), random.key(0)
    # Before the algorithm exists elsewhere; then the one that was kept.
    expected, state = agent.init(key, agent.hyper), inside(key)
    again = ppo(env, config).agent.init(key, agent.hyper)
    for found in (state, again):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_a_judge_is_given_all_that_there_is():
    """Environment, settings, policy with the agent's state, and a key of its own."""
    env, config = probe(), replace(ppo.Config(), {"hidden": (4,), "num_envs": 3, "minibatches": 1})

    def measure(env, config, policy, key):
        return {
            "episodes": env.max_steps * config.rollouts.num_envs,
            "discount": policy.state.hyper["discount"],
            "drawn": jax.random.uniform(key),
        }

    algorithm = ppo.variant("judged_ppo", measure=measure)(env, config)
    keys = jax.random.split(random.key(0), 3)
    state = algorithm.init(keys[0], algorithm.hyper | {"discount": jnp.float32(0.3)})
    found = [algorithm.measure(state, key) for key in keys[1:]]
    assert found[0]["episodes"] == 3 * env.max_steps
    np.testing.assert_allclose(found[0]["discount"], 0.3)
    for measured, key in zip(found, keys[1:], strict=True):
        np.testing.assert_array_equal(measured["drawn"], jax.random.uniform(key))


def test_an_evaluation_draws_another_key_for_each_member_and_step():
    """A key of its own, not the one that its episodes are played with."""
    measure = lambda env, config, policy, key: {"drawn": jax.random.uniform(key)}
    config = replace(ppo.Config(), {"hidden": (4,), "num_envs": 2, "minibatches": 1})
    env = probe()
    algorithm = ppo.variant("judged_ppo", measure=measure)(env, config)
    runs = [start(algorithm, random.key(seed), algorithm.hyper) for seed in (0, 1)]
    runs += [dataclasses.replace(runs[0], step=jnp.int32(1))]
    program = Program(algorithm)
    drawn = [float(program.evaluation(env, 1, True)(run)["drawn"]) for run in runs]
    drawn += [float(jax.random.uniform(evaluation_key(run))) for run in runs]
    assert len(set(drawn)) == 6
