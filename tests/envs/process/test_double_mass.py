"""The two masses against a model of springs and dampers, written out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_environment, make

ENV = make("double_mass")


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("double_mass"))


@pytest.mark.parametrize("mass", [20.0, 30.0])
def test_steps_are_those_of_the_linear_system(mass):
    env = make("double_mass", mass=mass)
    d, k, dt = 4.0, 2.0, 0.2
    x = np.array([0.3, -0.8, 0.5, -0.2])
    system = np.array(
        [
            [1, 0, dt, 0],
            [0, 1, 0, dt],
            [-dt * 2 * k / mass, dt * k / mass, 1 - dt * 2 * d / mass, dt * d / mass],
            [dt * k / mass, -dt * 2 * k / mass, dt * d / mass, 1 - dt * 2 * d / mass],
        ]
    )
    state, _ = env.reset(jax.random.key(0), env.params)
    inner = dataclasses.replace(state.inner, physics=jnp.asarray(x, jnp.float32))
    state = dataclasses.replace(state, inner=inner)
    step = jax.jit(lambda state, action: env.step(jax.random.key(0), state, action, env.params))
    for action in ([0.5, -3.0], [-0.1, 0.7]):
        force = 30 * np.clip(action, -1, 1)
        x = system @ x + np.array([0, 0, *(dt / mass * force)])
        state, timestep = step(state, jnp.asarray(action))
        np.testing.assert_allclose(timestep.observation[:4], x, rtol=1e-5)
        error = np.abs(x[:2] - np.asarray(timestep.observation[4:]))
        np.testing.assert_allclose(timestep.reward, -np.log(error + 0.01).sum(), rtol=1e-4)


def test_half_of_the_places_change_in_the_middle():
    step = jax.jit(lambda state: ENV.step(jax.random.key(0), state, jnp.zeros(2), ENV.params))
    state, first = ENV.reset(jax.random.key(3), ENV.params)
    places = [np.asarray(first.observation[4:])]
    for _ in range(100):
        state, timestep = step(state)
        places.append(np.asarray(timestep.observation[4:]))
    assert timestep.truncated
    np.testing.assert_array_equal(places[:50], [places[0]] * 50)
    np.testing.assert_array_equal(places[50:], [places[50]] * 51)
    drawn = jax.vmap(lambda key: ENV.reset(key, ENV.params)[0].inner.places)(
        jax.random.split(jax.random.key(0), 2000)
    )
    assert np.abs(drawn).max() <= 1.5 and np.abs(drawn).mean() == pytest.approx(0.75, abs=0.03)
    changes = np.asarray(drawn[..., 0] != drawn[..., 1])
    assert changes.mean() == pytest.approx(0.5, abs=0.04)


def test_the_expert_goes_to_the_places_and_stays():
    step = jax.jit(
        lambda state: ENV.step(jax.random.key(0), state, ENV.expert(state, ENV.params), ENV.params)
    )
    for seed in range(5):
        state, _ = ENV.reset(jax.random.key(seed), ENV.params)
        for _ in range(49):
            state, timestep = step(state)
        np.testing.assert_allclose(timestep.observation[:2], timestep.observation[4:], atol=0.01)
        assert timestep.reward > 7
