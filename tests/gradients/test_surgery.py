import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from tests.losses.compiled import gradients
from tests.losses.contract import Case, contract, example

SHAPE = (4, 5)
TASKS = (4, 3, 5)
ZERO, TINY, HUGE = np.zeros(SHAPE), np.full(SHAPE, 1e-30), np.full(SHAPE, 1e30)


def orders(rng):
    return np.stack([[rng.permutation(3) for _ in range(3)] for _ in range(4)])


def basis(rng, used=2):
    q = np.linalg.qr(rng.normal(size=(4, 5, 3)))[0].swapaxes(-1, -2)
    return q * (np.arange(3) < used)[:, None]


CASES = [
    Case(
        gradients.agem,
        lambda rng: {"gradient": rng.normal(size=SHAPE), "memory_gradient": rng.normal(size=SHAPE)},
        gradient=("gradient", "memory_gradient"),
        extremes=lambda rng: [{"memory_gradient": ZERO}, {"gradient": ZERO}],
    ),
    Case(
        gradients.gem,
        lambda rng: {
            "gradient": rng.normal(size=SHAPE),
            "memory_gradients": rng.normal(size=TASKS),
            "iterations": 20,
        },
        stopped=("gradient", "memory_gradients"),
        extremes=lambda rng: [{"memory_gradients": np.zeros(TASKS)}, {"gradient": ZERO}],
    ),
    Case(
        gradients.pcgrad,
        lambda rng: {"task_gradients": rng.normal(size=TASKS), "order": orders(rng)},
        gradient=("task_gradients",),
        extremes=lambda rng: [{"task_gradients": np.zeros(TASKS)}],
    ),
    Case(
        gradients.nash_weights,
        lambda rng: {
            "task_gradients": rng.normal(size=TASKS),
            "power": rng.uniform(0.5, 1.5, (4, 3)),
        },
        gradient=("power",),
        stopped=("task_gradients",),
        extremes=lambda rng: [
            {"task_gradients": np.zeros(TASKS)},
            {"task_gradients": np.ones(TASKS)},
            {"task_gradients": np.ones(TASKS) * np.array([1, -1, 1])[:, None]},
            {"power": np.full((4, 3), 1e-4)},
            {"power": np.tile([1e-4, 1.0, 1e3], (4, 1))},
        ],
    ),
    Case(
        gradients.orthogonal_gradient,
        lambda rng: {"gradient": rng.normal(size=SHAPE), "basis": basis(rng)},
        gradient=("gradient", "basis"),
    ),
    Case(
        gradients.orthogonal_direction,
        lambda rng: {"gradient": rng.normal(size=SHAPE), "basis": basis(rng)},
        gradient=("gradient", "basis"),
        extremes=lambda rng: [{"gradient": ZERO}],
    ),
]
test_contract = contract(CASES)


def test_agem_projects_only_conflicts():
    g, m = jnp.float32([[1, 1], [1, -3]]), jnp.float32([[0, 2], [0, 2]])
    np.testing.assert_allclose(gradients.agem(g, m), [[1, 1], [1, 0]])
    x = {k: jnp.float32(v) for k, v in example(CASES, gradients.agem).items()}
    one = gradients.gem(x["gradient"], x["memory_gradient"][:, None])
    np.testing.assert_allclose(gradients.agem(**x), one, atol=1e-5)
    assert ((gradients.agem(**x) * x["memory_gradient"]).sum(-1) > -1e-5).all()


@pytest.mark.parametrize("seed", range(4))
def test_gem_is_the_nearest_gradient_that_harms_no_old_task(seed):
    """The dual is nonnegative least squares: min_v>=0 |g + M'v|."""
    rng = np.random.default_rng(seed)
    memory, g = rng.normal(size=(3, 5)), rng.normal(size=5)
    g = g - memory.sum(0)  # in conflict with most
    v, _ = scipy.optimize.nnls(memory.T, -g)
    ours = gradients.gem(jnp.float32(g), jnp.float32(memory))
    np.testing.assert_allclose(ours, g + memory.T @ v, atol=1e-4)
    assert (memory @ np.array(ours) > -1e-4).all()


def test_pcgrad_follows_the_algorithm():
    rng = np.random.default_rng(0)
    each, order = rng.normal(size=(3, 5)), np.array([[2, 0, 1], [0, 2, 1], [1, 2, 0]])
    total = np.zeros(5)
    for i in range(3):
        g = each[i].copy()
        for j in order[i]:
            if j != i and g @ each[j] < 0:
                g -= g @ each[j] / (each[j] @ each[j]) * each[j]
        total += g
    ours = gradients.pcgrad(jnp.float32(each), jnp.array(order))
    np.testing.assert_allclose(ours, total, rtol=1e-5, atol=1e-5)
    assert abs(total - each.sum(0)).max() > 0.1  # there is a conflict
    swapped = gradients.pcgrad(jnp.float32(each), jnp.array(order[:, ::-1]))
    assert abs(swapped - total).max() > 1e-3  # and the order matters


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_nash_weights_solve_their_equation(size):
    rng = np.random.default_rng(0)
    each = size * rng.normal(size=(3, 5)) * np.array([0.1, 1, 10])[:, None]
    power = np.array([0.2, 1.0, 3.0])
    weights = np.float64(gradients.nash_weights(jnp.float32(each), jnp.float32(power)))
    assert (weights > 0).all()
    np.testing.assert_allclose(each @ each.T @ weights, power / weights, rtol=1e-3)
    hard = np.array([1e-3, 1.0, 1e3])
    with jax.enable_x64(True):
        weights = np.array(gradients.nash_weights(jnp.array(each), jnp.array(hard), ridge=0.0))
    np.testing.assert_allclose(weights * (each @ each.T @ weights), hard, rtol=1e-6)


def test_powers_are_the_shares_of_the_update():
    """a_k g_k . update = power_k, so their sum is the update's squared length."""
    each, power = np.random.default_rng(2).normal(size=(3, 5)), np.array([0.2, 1.0, 3.0])
    weights = np.float64(gradients.nash_weights(jnp.float32(each), jnp.float32(power)))
    update = weights @ each
    np.testing.assert_allclose(weights * (each @ update), power, rtol=1e-3)
    np.testing.assert_allclose(update @ update, power.sum(), rtol=1e-3)


def test_nash_weights_of_gradients_that_cancel_are_finite_and_fair():
    g = jnp.float32([[1, 0], [-1, 0], [0, 2]])
    weights = gradients.nash_weights(g, jnp.ones(3))
    assert jnp.isfinite(weights).all() and abs(weights[0] / weights[1] - 1) < 1e-3
    np.testing.assert_allclose(weights[2], 0.5, rtol=1e-4)
    np.testing.assert_allclose(
        gradients.nash_weights(jnp.zeros((2, 3)), jnp.ones(2))[0], 1e3, rtol=0.1
    )


@pytest.mark.slow
def test_nash_weights_differentiate_their_solution():
    """Compare the hypergradient of the powers with differences of converged solutions."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        each, power = jnp.array(rng.normal(size=(3, 4))), jnp.array([0.3, 1.0, 2.0])
        solve = jax.jit(lambda p: gradients.nash_weights(each, p))
        ours = jax.jit(jax.jacrev(solve))(power)
        for k in range(3):
            step = 1e-5 * jnp.eye(3)[k]
            theirs = (solve(power + step) - solve(power - step)) / 2e-5
            np.testing.assert_allclose(ours[:, k], theirs, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_no_direction_is_left_of_a_gradient_in_the_span(seed):
    """The float32 projection leaves rounding noise, which must not be scaled to length 1."""
    rng = np.random.default_rng(seed)
    used = int(rng.integers(1, 8))
    q = np.linalg.qr(rng.normal(size=(50, 8)))[0].T * (np.arange(8) < used)[:, None]
    g = 10.0 ** rng.uniform(-6, 6) * rng.normal(size=8) @ q
    direction = gradients.orthogonal_direction(jnp.float32(g), jnp.float32(q))
    np.testing.assert_array_equal(direction, 0)
    # A small part that is not rounding noise is a direction.
    new = np.linalg.qr(np.concatenate([q[:used], rng.normal(size=(1, 50))]).T)[0].T[used]
    found = gradients.orthogonal_direction(
        jnp.float32(g + 1e-3 * np.linalg.norm(g) * new), jnp.float32(q)
    )
    np.testing.assert_allclose(found, new, atol=1e-3)


def test_orthogonal_steps_leave_old_outputs():
    rng = np.random.default_rng(0)
    old = rng.normal(size=(3, 5))
    stored = jnp.zeros((3, 5))
    for k in range(3):
        stored = stored.at[k].set(gradients.orthogonal_direction(jnp.float32(old[k]), stored))
    np.testing.assert_allclose(stored @ stored.T, np.eye(3), atol=1e-5)
    g = rng.normal(size=5)
    ours = gradients.orthogonal_gradient(jnp.float32(g), stored)
    np.testing.assert_allclose(old @ np.array(ours), 0, atol=1e-5)
    expected = g - old.T @ np.linalg.lstsq(old.T, g, rcond=None)[0]
    np.testing.assert_allclose(ours, expected, atol=1e-5)
