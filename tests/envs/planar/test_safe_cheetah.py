"""The cheetah's speed limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_environment, make


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("safe_cheetah"))


def test_only_steps_above_the_limit_are_others_than_the_cheetahs():
    plain, safe = make("cheetah"), make("safe_cheetah", speed_limit=0.2)
    key = jax.random.key(0)
    gait = make("safe_cheetah").expert
    state, _ = plain.reset(key, plain.params)
    same, _ = safe.reset(key, safe.params)
    step = jax.jit(lambda state, action: plain.step(key, state, action, plain.params))
    limited = jax.jit(lambda state, action: safe.step(key, state, action, safe.params))
    fast = 0
    for _ in range(40):
        action = gait(state, safe.params)
        state, expected = step(state, action)
        same, timestep = limited(same, action)
        np.testing.assert_allclose(timestep.observation, expected.observation, atol=1e-4)
        components = expected.reward_components
        if components["forward"] > 0.2:
            fast += 1
            assert timestep.reward == -100 and timestep.terminated and timestep.cost == 1
        else:
            np.testing.assert_allclose(timestep.reward, expected.reward, atol=1e-4)
            assert not timestep.terminated and timestep.cost == 0
    assert 5 < fast < 35


def test_the_expert_stays_below_the_limit():
    env = make("safe_cheetah")

    @jax.jit
    def play(key):
        def body(state, key):
            state, timestep = env.step(key, state, env.expert(state, env.params), env.params)
            return state, (timestep.terminated, timestep.reward)

        keys = jax.random.split(key, 1000)
        return jax.lax.scan(body, env.reset(key, env.params)[0], keys)[1]

    terminated, reward = play(jax.random.key(1))
    assert not terminated.any() and jnp.sum(reward) > 500
