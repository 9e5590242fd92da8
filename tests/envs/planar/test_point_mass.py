"""Point mass against MuJoCo's, and its linear-quadratic variant against the Riccati equation."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import point_mass as module

# Position, velocity, action; then position, velocity and reward after the step, from dm_control
# 1.0.34 (MuJoCo 3.3.7), rounded.
_STEPS = """
    0.012 0.005 0.00236432 0.09009274 -0.71168077 0.89729889
        0.01195537 0.0068014 -0.00223145 0.09007006 0.86883652
    -0.02 0.01 -0.03763371 -0.01533471 0.65540519 -0.18160173
        -0.02062371 0.00968977 -0.03118532 -0.0155113 0.51281587
    0.025 -0.03 0.00991874 -0.09448818 0.50702622 0.07628663
        0.02524935 -0.03176212 0.01246773 -0.08810587 0.00120592
    -0.02367179 -0.11608581 -0.06484376 -0.06090046 -0.74035804 -0.48148619
        -0.02498015 -0.11728788 -0.06541826 -0.06010347 0.0
    """
DM_CONTROL = np.array(_STEPS.split(), np.float32).reshape(-1, 11)


def _at(env, physics):
    """Return the state at `physics` [4] with the goal at the center."""
    state, _ = env.reset(jax.random.key(0), env.params)
    inner = dataclasses.replace(state.inner, physics=jnp.asarray(physics), goal=jnp.zeros(2))
    return dataclasses.replace(state, inner=inner)


def _return(env, steps: int = 1000):
    """Compile the return of the expert from `physics` [4], and the last physics."""

    @jax.jit
    def play(physics, params):
        def body(state, key):
            state, timestep = env.step(key, state, env.expert(state, params), params)
            return state, timestep.reward

        keys = jax.random.split(jax.random.key(1), steps)
        state, rewards = jax.lax.scan(body, _at(env, physics), keys)
        return rewards.sum(), state.inner.physics

    return play


@pytest.mark.slow
def test_it_keeps_every_rule():
    check_environment(make("point_mass"))


def test_steps_and_rewards_are_dm_controls():
    env = make("point_mass")
    step = jax.jit(lambda row: env.step(jax.random.key(0), _at(env, row[:4]), row[4:6], env.params))
    for row in DM_CONTROL:
        _, timestep = step(row)
        np.testing.assert_allclose(timestep.observation, row[6:10], atol=2e-7)
        np.testing.assert_allclose(timestep.reward, row[10], rtol=1e-4, atol=1e-6)
    # The edge of the arena stops a mass that moves out of it.
    _, timestep = step(np.array([0.2899, 0.0, 1.0, 0.1, 1.0, 0.0], np.float32))
    assert timestep.observation[0] == np.float32(0.29) and timestep.observation[2] == 0
    assert timestep.observation[3] > 0.09
    assert timestep.reward < 1e-6 and not timestep.done


@pytest.mark.parametrize("control", ["force", "velocity"])
def test_the_experts_cost_is_the_riccati_solutions(control):
    env = make("point_mass", cost="quadratic", control=control, velocity_weight=0.3)
    p = env.params
    a, b = (np.asarray(x, float) for x in module.linear_model(p, control == "velocity"))
    # The model itself, from single steps of the environment.
    step = jax.jit(lambda x, u: env.step(jax.random.key(0), _at(env, x), u, p)[1].observation)
    for axis in (0, 1):
        columns = [
            np.asarray(step(np.eye(4, dtype="f")[axis + 2 * i], np.zeros(2, "f"))) for i in (0, 1)
        ]
        np.testing.assert_allclose(np.array(columns).T[axis::2], a, atol=1e-7)
        moved = step(np.zeros(4, "f"), np.eye(2, dtype="f")[axis])
        np.testing.assert_allclose(moved[axis::2], b, atol=1e-8)

    cost = np.diag([p.position_weight, p.velocity_weight])
    exact = linalg.solve_discrete_are(a, b[:, None], cost, [[p.action_weight]])
    ours, gain = jax.jit(module.riccati, static_argnums=1)(p, control == "velocity")
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gain, b @ exact @ a / (p.action_weight + b @ exact @ b), rtol=1e-4)

    x = np.array([0.2, -0.15, 0.1, 0.3], np.float32)
    total, last = _return(env)(x, p)
    expected = sum(x[axis::2] @ exact @ x[axis::2] for axis in (0, 1))
    np.testing.assert_allclose(-total, expected, rtol=1e-5)
    assert np.abs(last).max() < 1e-4
    # Another gain costs more: the optimum is one.
    worse, _ = _return(env)(x, dataclasses.replace(p, action_weight=p.action_weight * 4))
    assert -worse > expected * 1.001


def test_gradients_through_a_rollout_are_finite_differences():
    env = make("point_mass", cost="quadratic")
    keys = jax.random.split(jax.random.key(0), 20)

    @jax.jit
    @jax.value_and_grad
    def total(push, mass):
        params = dataclasses.replace(env.params, mass=mass)
        state = _at(env, jnp.asarray([0.1, 0.2, 0.0, 0.1]))

        def body(state, key):
            state, timestep = env.step(key, state, push, params)
            return state, timestep.reward

        return jax.lax.scan(body, state, keys)[1].sum()

    push, step = jnp.asarray([0.5, -1.0]), 0.05
    _, gradient = total(push, 0.3)
    for i in (0, 1):
        shift = step * jnp.eye(2)[i]
        numeric = (total(push + shift, 0.3)[0] - total(push - shift, 0.3)[0]) / (2 * step)
        np.testing.assert_allclose(gradient[i], numeric, rtol=2e-3)


def test_the_expert_reaches_the_goal_and_during_a_delay_the_previous_action_acts():
    env = make("point_mass")
    total, last = _return(env)(np.array([0.25, -0.2, 0.0, 0.0], np.float32), env.params)
    assert total > 800 and np.linalg.norm(last[:2]) < env.params.goal_radius

    late = make("point_mass", delay=1.0)
    step = jax.jit(lambda state, u: late.step(jax.random.key(0), state, u, late.params))
    state, first = step(_at(late, np.zeros(4, "f")), np.ones(2, "f"))
    assert not np.any(first.observation)
    _, second = step(state, np.zeros(2, "f"))
    assert np.all(second.observation > 0)


def test_wrong_options_are_rejected():
    with pytest.raises(UserError, match="'cubic'; it must be 'tolerance' or 'quadratic'"):
        make("point_mass", cost="cubic")
    with pytest.raises(UserError, match="'torque'; it must be 'force' or 'velocity'"):
        make("point_mass", control="torque")
