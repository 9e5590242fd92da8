"""Planners over actions against the exact optimum of a linear-quadratic problem (Riccati)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.planning.shared.planners import PLANNERS, Planner, fit, make_plan, shift
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box

H, DT = 6, 0.3
A, B = np.array([[1.0, DT], [0.0, 1.0]]), np.array([[0.0], [DT]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.2]])
START = np.array([0.4, -0.3])
SPACE = Box(-3.0, 1.0, (1,))  # not around 0, and so wide that no bound is active


def model(state, action, key):
    reward = -(state @ jnp.asarray(Q) @ state + action @ jnp.asarray(R) @ action)
    return jnp.asarray(A) @ state + jnp.asarray(B) @ action, reward


def riccati():
    """Return the optimal return and actions."""
    p, gains = np.zeros((2, 2)), []
    for _ in range(H):
        gain = np.linalg.solve(R + B.T @ p @ B, B.T @ p @ A)
        gains.append(gain)
        p = Q + A.T @ p @ (A - B @ gain)
    x, actions = START, []
    for gain in reversed(gains):
        actions.append(-gain @ x)
        x = A @ x + B @ actions[-1]
    return -START @ p @ START, np.stack(actions)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def solve(how, candidates, iterations, warm=None, seed=0):
    sizes = {"candidates": candidates, "iterations": iterations, "elites": 10}
    planner = Planner(how=how, **sizes, spread=0.15 if how == "mppi" else 0.5)
    start = jnp.asarray(START, jnp.float32)
    return make_plan(random.key(seed), model, start, H, SPACE, planner, warm=warm)


SIZES = {"gradient": (4, 300), "cem": (100, 20), "mppi": (300, 20), "shooting": (500, 20)}
GAP = {"gradient": 1e-4, "cem": 0.01, "mppi": 0.02, "shooting": 0.5}  # of the optimum


@pytest.mark.parametrize("how", PLANNERS)
def test_plans_come_near_the_optimum_and_never_beat_it(how):
    optimum, actions = riccati()
    assert (np.abs(actions) < 1).all()
    plan = solve(how, *SIZES[how])
    assert optimum * (1 + GAP[how]) <= plan.value <= optimum + 1e-4
    state, total = jnp.asarray(START), 0.0
    for action in plan.actions:  # the return is that of the plan
        state, reward = model(state, action, None)
        total += reward
    np.testing.assert_allclose(plan.value, total, rtol=1e-4)
    if how == "gradient":
        np.testing.assert_allclose(plan.actions, actions, atol=0.02)


@pytest.mark.parametrize("how", PLANNERS)
def test_a_warm_start_is_never_left_for_something_much_worse(how):
    optimum, actions = riccati()
    plan = solve(how, 12, 2, jnp.asarray(actions, jnp.float32))
    cold = solve(how, 12, 2)
    assert optimum + 1e-4 >= plan.value > cold.value
    if how in ("gradient", "shooting"):  # which keep the best
        np.testing.assert_allclose(plan.value, optimum, rtol=1e-3)


def test_bounds_hold_where_they_are_active():
    """The reward is the action, so the best plan is the upper bound, discounted."""
    for how in PLANNERS:
        planner = Planner(how=how, candidates=50, iterations=40, elites=5)
        space = Box((-1.0, 2.0), (3.0, 4.0), (2,))
        slope = lambda state, action, key: (state, action.sum())
        plan = make_plan(random.key(0), slope, (), 2, space, planner, discount=0.5)
        assert (plan.actions <= np.array([3.0, 4.0])).all()
        assert (plan.actions >= np.array([-1.0, 2.0])).all()
        np.testing.assert_allclose(plan.value, 1.5 * 7, rtol=0.12)


def test_all_candidates_meet_the_same_noise():
    """Otherwise the luckiest candidate would win: here actions change nothing."""
    noisy = lambda state, action, key: (state, jax.random.normal(key))
    planner = Planner(how="shooting", candidates=64, iterations=3)
    value = lambda key: make_plan(key, noisy, (), 1, SPACE, planner).value
    found = jax.jit(jax.vmap(value))(jax.random.split(random.key(0), 50))
    assert abs(found.mean()) < 0.5 and found.std() > 0.7


def test_cem_fits_elites_and_mppi_weighs_all():
    units = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2, 1)))
    found = jnp.array([3.0, -1.0, 2.0, 0.0, 1.0, -2.0])
    mean, deviation = fit(units, found, jnp.ones((2, 1)), Planner(how="cem", elites=2))
    best = np.asarray(units)[[0, 2]]
    np.testing.assert_allclose(mean, best.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, best.std(0), rtol=1e-5)
    mean, deviation = fit(units, found, jnp.ones((2, 1)), Planner(how="mppi", temperature=0.7))
    weight = np.exp(np.asarray(found) / (0.7 * np.std(found)))
    expected = np.einsum("n,nha->ha", weight / weight.sum(), units)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)
    np.testing.assert_array_equal(deviation, 1)


def test_the_rest_of_a_plan_ends_with_its_last_action():
    np.testing.assert_array_equal(shift(jnp.array([[1.0], [2.0], [3.0]])), [[2], [3], [3]])


def test_sizes_are_checked():
    with pytest.raises(UserError, match="elites is 9; there are only 4 candidates"):
        planner = Planner(how="cem", candidates=4, elites=9)
        make_plan(random.key(0), model, (), 2, SPACE, planner)
    with pytest.raises(UserError, match="horizon of a plan must be at least 1, got 0"):
        make_plan(random.key(0), model, (), 0, SPACE, Planner())
