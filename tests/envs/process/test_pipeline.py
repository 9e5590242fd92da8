"""The channel: what enters the gate arrives 19 steps later, and the reward is NeoRL-2's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_environment, make

ENV = make("pipeline", change=0.0)
STEP = jax.jit(lambda state, action: ENV.step(jax.random.key(0), state, action, ENV.params))


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("pipeline"))


def start(flow=100.0, demand=110.0):
    state, _ = ENV.reset(jax.random.key(0), ENV.params)
    inner = state.inner
    full = lambda x: jnp.full(x.shape, flow)
    inner = dataclasses.replace(
        inner, flows=full(inner.flows), seen=full(inner.seen), demand=jnp.float32(demand)
    )
    return dataclasses.replace(state, inner=inner)


def test_the_channel_is_a_queue():
    state, actions = start(), np.random.default_rng(0).uniform(-2, 2, 60).astype(np.float32)
    gate = 100 + np.cumsum(np.clip(actions, -1, 1))
    ends = []
    for i, action in enumerate(actions):
        state, timestep = STEP(state, action[None])
        ends.append(gate[i - 19] if i >= 19 else 100.0)
        seen = timestep.observation
        np.testing.assert_allclose(seen[0], ends[-1], rtol=1e-6)
        assert seen[1] == 110
        past = ([100.0] * 25 + ends[:-1])[-25:]
        np.testing.assert_allclose(seen[2:27], past[::-1], rtol=1e-6)
        acted = ([0.0] * 25 + np.clip(actions[: i + 1], -1, 1).tolist())[-25:]
        np.testing.assert_allclose(seen[27:], acted[::-1], rtol=1e-6)
        error = abs(ends[-1] - 110)
        np.testing.assert_allclose(timestep.reward, ((200 - error) * 0.01) ** 2 - 3, rtol=1e-4)
        assert not timestep.done


def test_the_gate_has_limits():
    state, _ = STEP(start(flow=0.5), -jnp.ones(1))
    assert state.inner.flows[0] == 0
    state, _ = STEP(start(flow=199.5), jnp.ones(1))
    assert state.inner.flows[0] == 200


def test_the_demand_changes_at_its_rate():
    env = make("pipeline", change=0.5)
    keys = jax.random.split(jax.random.key(1), 4000)
    follow = lambda key: env.step(key, start(), jnp.zeros(1), env.params)[1].observation[1]
    demand = np.asarray(jax.jit(jax.vmap(follow))(keys))
    np.testing.assert_array_equal(np.unique(demand), [50, 80, 110, 140])
    # Half of the time it is drawn anew, and a quarter of that it is what it was.
    np.testing.assert_allclose((demand == 110).mean(), 0.625, atol=0.03)


def test_the_expert_meets_the_demand_19_steps_late():
    state = start()
    for i in range(30):
        state, timestep = STEP(state, ENV.expert(state, ENV.params))
        if i >= 28:  # ten steps at the gate, 19 in the channel
            assert timestep.observation[0] == 110 and timestep.reward == 1
