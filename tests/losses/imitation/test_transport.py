import itertools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.spatial.distance

from tests.losses.compiled import losses, solvers
from tests.losses.contract import Case, contract

N, M, D = 4, 5, 3


def points(rng):
    return {"x": rng.normal(size=(2, N, D)), "y": rng.normal(size=(2, M, D))}


SAME = np.ones((2, N, D))
CASES = [
    Case(
        losses.nearest_distance,
        points,
        gradient=("x", "y"),
        extremes=lambda rng: [{"x": SAME, "y": np.ones((2, M, D))}],
    ),
    Case(
        losses.transport_cost,
        lambda rng: {
            "cost": rng.uniform(0, 1, (2, N, M)),
            "plan": rng.uniform(0.1, 1, (2, N, M)),
            "regularization": 0.3,
        },
        gradient=("cost", "plan"),
        extremes=lambda rng: [
            {"plan": np.zeros((2, N, M)), "cost": np.full((2, N, M), np.inf)},
            {"plan": np.full((2, N, M), 1e-30)},
        ],
    ),
    Case(
        losses.transport_reward,
        lambda rng: {
            "cost": rng.uniform(0, 1, (N, M)),
            "plan": rng.uniform(0, 1, (N, M)),
            "scale": 2.0,
        },
        stopped=("cost", "plan"),
        time=("cost", "plan"),
    ),
    Case(
        losses.alignment_progress,
        lambda rng: {"cost": rng.uniform(0, 1, (7, 6))},
        stopped=("cost",),
        time=("cost",),
        extremes=lambda rng: [{"cost": np.full((7, 6), np.inf)}, {"cost": np.zeros((7, 6))}],
    ),
    Case(
        losses.progress_discount,
        lambda rng: {"progress": rng.uniform(1, 10, 6), "weight": 0.2},
        gradient=("progress",),
        extremes=lambda rng: [{"progress": np.full(6, 1e6)}],
    ),
]
test_contract = contract(CASES)


def test_nearest_distance_equals_scipy():
    x, y = (np.float32(v[0]) for v in points(np.random.default_rng(0)).values())
    nearest = scipy.spatial.distance.cdist(x, y).min(-1)
    np.testing.assert_allclose(losses.nearest_distance(x, y), nearest, rtol=1e-5)


def test_rewards_of_an_expert_itself_are_highest_and_sum_to_the_cost():
    x = jnp.float32(np.random.default_rng(0).normal(size=(6, 3)))
    cost = losses.squared_distances(x + 0.5, x)
    plan = solvers.sinkhorn(cost, 0.05, iterations=500)
    reward = losses.transport_reward(cost, plan, 10.0)
    assert reward.shape == (6,) and (reward < 0).all()
    np.testing.assert_allclose(reward.sum(), -10 * losses.transport_cost(cost, plan), rtol=1e-5)
    brute = [-10 * sum(plan[t, j] * cost[t, j] for j in range(6)) for t in range(6)]
    np.testing.assert_allclose(reward, np.array(brute), rtol=1e-5)
    own = losses.squared_distances(x, x)
    own_plan = solvers.sinkhorn(own, 0.05, iterations=500)
    assert losses.transport_reward(own, own_plan, 10.0).sum() > reward.sum()


def test_entropic_cost():
    plan = np.array([[0.25, 0.0], [0.25, 0.5]])
    cost = np.array([[1.0, np.inf], [2.0, 3.0]])
    entropic = 0.25 * (np.log(0.25) - 1) * 2 + 0.5 * (np.log(0.5) - 1)
    ours = losses.transport_cost(jnp.float32(cost), jnp.float32(plan), 0.3)
    np.testing.assert_allclose(ours, 0.25 + 0.5 + 1.5 + 0.3 * entropic, rtol=1e-5)


def test_progress_is_the_longest_increasing_subsequence():
    rng = np.random.default_rng(0)
    progress = jax.jit(losses.alignment_progress)
    for _ in range(20):
        cost = rng.uniform(size=(6, 6))
        position = cost.argmin(-1)
        brute = max(
            k
            for k in range(1, 7)
            for steps in itertools.combinations(position, k)
            if all(a < b for a, b in itertools.pairwise(steps))
        )
        assert progress(jnp.float32(cost)) == brute
    assert progress(-jnp.eye(6)) == 6
    assert progress(-jnp.eye(6)[::-1]) == 1


def test_discount_of_progress():
    np.testing.assert_allclose(
        losses.progress_discount(jnp.float32([1, 5]), 0.2) ** np.array([1, 5]), 0.2, rtol=1e-5
    )
