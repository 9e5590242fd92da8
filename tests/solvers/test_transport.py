import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.spatial.distance

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract

N, M, D = 4, 5, 3


def shares(rng, *shape):
    x = rng.uniform(0.5, 1.5, shape)
    return x / x.sum(-1, keepdims=True)


def problem(rng):
    return {
        "cost": rng.uniform(0, 1, (2, N, M)),
        "regularization": 0.5,
        "row_mass": shares(rng, 2, N),
        "column_mass": shares(rng, 2, M),
        "iterations": 60,
    }


def absent(rng):
    """Extremes: one row and one column without mass, with garbage costs."""
    cost = rng.uniform(0, 1, (2, N, M))
    cost[:, 1], cost[:, :, 2] = np.nan, np.inf
    row, column = rng.uniform(0.5, 1, (2, N)), rng.uniform(0.5, 1, (2, M))
    row[:, 1], column[:, 2] = 0, 0
    return {
        "cost": cost,
        "row_mass": row / row.sum(-1, keepdims=True),
        "column_mass": column / column.sum(-1, keepdims=True),
    }


CASES = [
    Case(
        solvers.sinkhorn,
        problem,
        gradient=("cost", "row_mass", "column_mass"),
        extremes=lambda rng: [
            absent(rng),
            {"cost": np.zeros((2, N, M))},
            {"cost": 1e4 * rng.uniform(0, 1, (2, N, M))},
            {"regularization": 1e-3},
            {"row_mass": np.zeros((2, N)), "column_mass": np.zeros((2, M))},
        ],
    ),
    Case(
        solvers.implicit_sinkhorn,
        problem,
        gradient=("cost",),
        surrogate=("row_mass", "column_mass"),  # up to a constant: tested below
        extremes=lambda rng: [
            absent(rng),
            {"cost": np.zeros((2, N, M))},
            {"cost": 1e4 * rng.uniform(0, 1, (2, N, M))},
            {"regularization": 1e-3},
            {"row_mass": np.zeros((2, N)), "column_mass": np.zeros((2, M))},
        ],
    ),
    Case(
        solvers.soft_matching,
        lambda rng: {
            "cost": rng.uniform(0, 1, (2, N, M)),
            "regularization": 0.3,
            "row_mask": np.array([[True] * 4, [True, False, True, True]]),
            "column_mask": np.array([[True] * 5, [True, False, False, True, False]]),
            "iterations": 60,
        },
        gradient=("cost",),
        extremes=lambda rng: [
            {"row_mask": np.zeros((2, N), bool)},
            {"row_mask": np.zeros((2, N), bool), "column_mask": np.zeros((2, M), bool)},
            {"row_mask": None, "column_mask": None},
            {"cost": 100 * rng.uniform(0, 1, (2, N, M))},
        ],
    ),
]
test_contract = contract(CASES)


def linear_program(cost, row, column):
    n, m = cost.shape
    sums = [np.repeat(np.eye(n), m, axis=1), np.tile(np.eye(m), n)]
    result = scipy.optimize.linprog(
        cost.ravel(), A_eq=np.concatenate(sums), b_eq=np.concatenate([row, column])
    )
    return result.x.reshape(n, m), result.fun


@pytest.mark.parametrize("plan", [solvers.sinkhorn, solvers.implicit_sinkhorn])
def test_the_plan_approaches_the_linear_program(plan):
    with jax.enable_x64(True):
        x = problem(np.random.default_rng(0))
        cost, row, column = x["cost"][0], x["row_mass"][0], x["column_mass"][0]
        best, value = linear_program(cost, row, column)
        ours = plan(jnp.asarray(cost), 2e-3, jnp.asarray(row), jnp.asarray(column), 3000)
        np.testing.assert_allclose(ours, best, atol=5e-3)
        np.testing.assert_allclose(losses.transport_cost(cost, ours), value, atol=2e-3)
        # At any regularization the marginals hold.
        ours = plan(**{k: jnp.asarray(v) if k.endswith("mass") else v for k, v in x.items()})
        np.testing.assert_allclose(ours.sum(-1), x["row_mass"], atol=1e-6)
        np.testing.assert_allclose(ours.sum(-2), x["column_mass"], rtol=1e-12)


@pytest.mark.slow
def test_plan_is_the_optimum():
    """The optimal log P is cost / -regularization up to a constant per row and column."""
    with jax.enable_x64(True):
        cost = jnp.asarray(problem(np.random.default_rng(0))["cost"])
        plan = solvers.sinkhorn(cost, 0.2, iterations=300)
        np.testing.assert_allclose(plan.sum(-1), 1 / N, rtol=1e-9)
        z = jnp.log(plan) + cost / 0.2
        z = (
            z
            - z.mean(-1, keepdims=True)
            - z.mean(-2, keepdims=True)
            + z.mean((-2, -1))[:, None, None]
        )
        np.testing.assert_allclose(z, 0, atol=1e-9)


@pytest.mark.slow
def test_rows_and_columns_without_mass_are_ignored():
    with jax.enable_x64(True):
        x = absent(np.random.default_rng(0))
        row, column = np.array([0, 2, 3]), np.array([0, 1, 3, 4])

        def total(cost, row_mass, column_mass, plan):
            weights = jnp.asarray(np.random.default_rng(1).normal(size=(2, N, M)))
            if cost.shape[-2] == 3:
                weights = weights[:, row][:, :, column]
            return (weights * plan(cost, 0.5, row_mass, column_mass, 200)).sum()

        small = (
            x["cost"][:, row][:, :, column],
            x["row_mass"][:, row],
            x["column_mass"][:, column],
        )
        for plan in (solvers.sinkhorn, solvers.implicit_sinkhorn):
            ours = jax.value_and_grad(total)(*map(jnp.asarray, x.values()), plan)
            theirs = jax.value_and_grad(total)(*map(jnp.asarray, small), plan)
            np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-9)
            np.testing.assert_allclose(ours[1][:, row][:, :, column], theirs[1], atol=1e-9)
            assert (ours[1][:, 1] == 0).all() and (ours[1][:, :, 2] == 0).all()


def test_implicit_gradient_equals_the_unrolled():
    with jax.enable_x64(True):
        x = problem(np.random.default_rng(0))
        arrays = [jnp.asarray(x[k]) for k in ("cost", "row_mass", "column_mass")]
        weights = jnp.asarray(np.random.default_rng(1).normal(size=(2, N, M)))

        @jax.jit
        def gradients(cost, row, column, regularization):
            return [
                jax.grad(
                    lambda *x, plan=plan: (weights * plan(x[0], x[3], x[1], x[2], 400)).sum(),
                    argnums=(0, 1, 2, 3),
                )(cost, row, column, regularization)
                for plan in (solvers.sinkhorn, solvers.implicit_sinkhorn)
            ]

        for regularization in (0.5, 0.1):
            unrolled, implicit = gradients(*arrays, regularization)
            np.testing.assert_allclose(implicit[0], unrolled[0], atol=1e-8)
            np.testing.assert_allclose(implicit[3], unrolled[3], rtol=1e-6)
            # Masses must keep equal sums: compare along directions that preserve them.
            rng = np.random.default_rng(2)
            for _ in range(3):
                row, column = rng.normal(size=(2, N)), rng.normal(size=(2, M))
                column += ((row.sum(-1) - column.sum(-1)) / M)[:, None]
                along = [(g[1] * row).sum() + (g[2] * column).sum() for g in (implicit, unrolled)]
                np.testing.assert_allclose(*along, rtol=1e-6)


@pytest.mark.slow
def test_implicit_gradient_in_float32_at_small_regularization():
    """The plan is nearly a permutation there, and the linear system nearly singular."""
    cost = jnp.float32(np.random.default_rng(3).uniform(0, 1, (6, 6)))
    weights = jnp.float32(np.random.default_rng(4).normal(size=(6, 6)))
    with jax.enable_x64(True):
        exact = jax.grad(
            lambda c: (weights * solvers.implicit_sinkhorn(c, 0.05, iterations=3000)).sum()
        )(jnp.float64(cost))
    ours = jax.grad(
        lambda c: (weights * solvers.implicit_sinkhorn(c, 0.05, iterations=3000)).sum()
    )(cost)
    exact = np.asarray(exact)
    np.testing.assert_allclose(ours, exact, atol=2e-3 * abs(exact).max())


def test_directions_that_do_not_change_the_plan_get_no_gradient():
    """Gradients for the masses are defined up to a constant; the balanced one is returned."""
    cost = jnp.float32(np.random.default_rng(3).uniform(0, 1, (6, 6)))
    mass = jnp.full(6, 1 / 6)
    row, column = jax.grad(
        lambda row, column: solvers.implicit_sinkhorn(cost, 0.1, row, column, 300)[0, 1],
        argnums=(0, 1),
    )(mass, mass)
    np.testing.assert_allclose((row * mass).sum(), (column * mass).sum(), atol=1e-5)


@pytest.mark.slow
def test_gradient_of_the_optimal_value_is_the_plan():
    with jax.enable_x64(True):
        cost = jnp.asarray(problem(np.random.default_rng(0))["cost"][0])

        def value(cost):
            plan = solvers.implicit_sinkhorn(cost, 0.3, iterations=300)
            return losses.transport_cost(cost, plan, 0.3)

        plan = solvers.sinkhorn(cost, 0.3, iterations=300)
        np.testing.assert_allclose(jax.grad(value)(cost), plan, atol=1e-9)


@pytest.mark.slow
def test_matching_is_the_assignment():
    rng = np.random.default_rng(0)
    for n, m in ((4, 4), (3, 6), (6, 3)):
        cost = rng.uniform(0, 1, (n, m))
        rows, columns = scipy.optimize.linear_sum_assignment(cost)
        best = np.zeros((n, m))
        best[rows, columns] = 1
        ours = solvers.soft_matching(jnp.float32(cost), 0.01, iterations=300)
        assert ((ours > 0.5) == (best > 0.5)).all()
        assert ours.min() >= 0 and ours.sum(-1).max() < 1.01 and ours.sum(-2).max() < 1.01
        np.testing.assert_allclose(ours.sum(), min(n, m), rtol=1e-2)


def test_matching_with_masks():
    cost = np.random.default_rng(1).uniform(0, 1, (4, 5))
    rows, columns = np.array([0, 2, 3]), np.array([1, 4])
    masks = [np.isin(np.arange(n), kept) for n, kept in ((4, rows), (5, columns))]
    cost[1] = np.nan
    ours = solvers.soft_matching(jnp.float32(cost), 0.1, *map(jnp.asarray, masks))
    small = solvers.soft_matching(jnp.float32(cost[rows][:, columns]), 0.1)
    np.testing.assert_allclose(ours[rows][:, columns], small, atol=1e-5)
    np.testing.assert_allclose(ours.sum(), 2, rtol=1e-4)
