"""Occupancies against sums over time and power iteration, in float64."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.exact import dynamic_programming as dp
from jaxrl.exact import occupancy as oc
from tests.exact import problems

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
HORIZON = 6
EACH = range(problems.PROBLEMS)


@functools.cache
def solutions() -> dict:
    def solve(transition, reward, policy, logits, initial):
        end = {"terminal": jnp.asarray(problems.TERMINAL)}
        every = (transition, policy, initial)
        taken = oc.occupancy(*every, problems.DISCOUNT, **end)
        restarting = oc.restarting_chain(dp.state_transition(transition, policy, **end), initial)
        return {
            "states": oc.state_occupancy(*every, problems.DISCOUNT, **end),
            "taken": taken,
            "policy": oc.policy_from_occupancy(taken),
            "finite": oc.finite_horizon_occupancy(*every, HORIZON, **end),
            "return": jnp.sum(taken * dp.expected_reward(transition, reward)),
            "value": initial
            @ dp.policy_evaluation(transition, reward, policy, problems.DISCOUNT, **end),
            "restarting": restarting,
            "stationary": oc.stationary_distribution(restarting),
            "visits": oc.state_occupancy(*every, 1.0, **end),
        }

    return problems.solve_all(solve)


@pytest.mark.parametrize("problem", EACH)
def test_visits_are_the_sum_over_time(problem):
    p, _ = problems.chain(problem, problems.POLICY[problem])
    along, distribution = [], problems.INITIAL[problem]
    for _ in range(2000):
        along.append(distribution)
        distribution = distribution @ p
    along = np.array(along)
    weights = problems.DISCOUNT ** np.arange(len(along))
    ours = solutions()
    np.testing.assert_allclose(ours["states"][problem], weights @ along, **CLOSE)
    np.testing.assert_allclose(ours["visits"][problem], along.sum(0), **CLOSE)
    np.testing.assert_allclose(ours["finite"][problem], along[: HORIZON + 1], **CLOSE)
    # every episode arrives in the terminal state exactly once
    np.testing.assert_allclose(ours["visits"][problem][-1], 1.0, **CLOSE)


@pytest.mark.parametrize("problem", EACH)
def test_rewards_over_the_occupancy_are_the_return(problem):
    ours = {k: v[problem] for k, v in solutions().items()}
    np.testing.assert_allclose(ours["return"], ours["value"], **CLOSE)
    assert np.all(ours["taken"][-1] == 0)
    np.testing.assert_allclose(ours["policy"][:-1], problems.POLICY[problem][:-1], **CLOSE)
    np.testing.assert_allclose(
        ours["policy"][-1], 1 / problems.ACTIONS
    )  # no action was taken there


@pytest.mark.parametrize("problem", EACH)
def test_the_stationary_distribution_is_where_restarting_episodes_settle(problem):
    p, _ = problems.chain(problem, problems.POLICY[problem])
    p[-1] = problems.INITIAL[problem]
    np.testing.assert_allclose(solutions()["restarting"][problem], p, **CLOSE)
    settled = np.linalg.matrix_power(p, 4096)[0]
    np.testing.assert_allclose(solutions()["stationary"][problem], settled, **CLOSE)


def test_a_periodic_chain_has_a_stationary_distribution_too():
    flip = jnp.array([[0.0, 1.0], [1.0, 0.0]])  # power iteration would never settle
    np.testing.assert_allclose(oc.stationary_distribution(flip), [0.5, 0.5], rtol=1e-6)
