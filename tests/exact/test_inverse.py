"""Maximum causal entropy against sums in NumPy, and against the package `imitation`, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact import dynamic_programming as dp
from jaxrl.exact import inverse
from tests.exact import problems

CLOSE = {"rtol": 1e-7, "atol": 1e-7}
HORIZON = 6
EACH = range(problems.PROBLEMS)
TEMPERATURE = 0.7
END = {"terminal": jnp.asarray(problems.TERMINAL)}


@functools.cache
def solutions() -> dict:
    def solve(transition, reward, policy, logits, initial):
        features = jax.nn.one_hot(jnp.arange(problems.STATES), problems.STATES)[:, None]
        features = jnp.broadcast_to(features, (*transition.shape[:2], problems.STATES))
        mdp = {"horizon": HORIZON, "discount": problems.DISCOUNT, **END}
        soft = dp.soft_backward_induction(
            transition, reward, HORIZON, TEMPERATURE, problems.DISCOUNT, **END
        )
        expert = dp.soft_backward_induction(
            transition, features @ logits[:, 0], HORIZON, 1.0, problems.DISCOUNT, **END
        )[1]
        meet = functools.partial(inverse.feature_expectations, transition, features, initial, **mdp)
        expected = meet(policy=expert)
        weights, learned = inverse.maximum_causal_entropy(
            transition, features, initial, expected=expected, **mdp
        )
        return {
            "soft": soft,
            "expert": expert,
            "expected": expected,
            "stationary": meet(policy=policy),
            "weights": weights,
            "learned": learned,
            "met": meet(policy=learned),
        }

    return problems.solve_all(solve)


@pytest.mark.parametrize("problem", EACH)
def test_soft_values_of_a_finite_horizon(problem):
    p = np.where(problems.TERMINAL[:, None, None], 0, problems.TRANSITION[problem])
    r = (p * problems.REWARD[problem]).sum(-1)
    values, ours = np.zeros(problems.STATES), solutions()["soft"]
    for step in reversed(range(HORIZON)):
        q = (r + problems.DISCOUNT * p @ values) / TEMPERATURE
        values = np.where(problems.TERMINAL, 0, TEMPERATURE * np.log(np.exp(q).sum(-1)))
        np.testing.assert_allclose(ours[0][problem, step], values, **CLOSE)
        policy = np.exp(q) / np.exp(q).sum(-1, keepdims=True)
        np.testing.assert_allclose(ours[1][problem, step], policy, **CLOSE)
    assert not ours[0][problem, HORIZON].any()


@pytest.mark.parametrize("problem", EACH)
def test_expected_features_are_sums_over_paths(problem):
    chain, _ = problems.chain(problem, problems.POLICY[problem])
    visits, total = problems.INITIAL[problem], np.zeros(problems.STATES)
    for step in range(HORIZON):
        total += problems.DISCOUNT**step * np.where(problems.TERMINAL, 0, visits)
        visits = visits @ chain
    np.testing.assert_allclose(solutions()["stationary"][problem], total, **CLOSE)


@pytest.mark.parametrize("problem", EACH)
def test_the_expert_is_found_from_its_expected_features(problem):
    """A soft-optimal expert is the policy of the largest causal entropy with its features."""
    ours = {name: value[problem] for name, value in solutions().items() if name != "soft"}
    np.testing.assert_allclose(ours["met"], ours["expected"], rtol=1e-5, atol=1e-6)
    live = ~problems.TERMINAL
    np.testing.assert_allclose(ours["learned"][:, live], ours["expert"][:, live], atol=1e-4)
    assert ours["weights"][-1] == 0  # nothing depends on the terminal state's


@pytest.mark.parametrize("problem", EACH)
def test_values_are_those_of_the_package_imitation(problem):
    """`mce_partition_fh` and `mce_occupancy_measures` of imitation 1.0.1, which know no terminal
    states."""
    mce = pytest.importorskip("imitation.algorithms.mce_irl")

    class Table:
        horizon, state_dim, action_dim = HORIZON, problems.STATES, problems.ACTIONS
        transition_matrix = problems.TRANSITION[problem]
        reward_matrix = problems.LOGITS[problem][:, 0]
        initial_state_dist = problems.INITIAL[problem]

    values, _, policy = mce.mce_partition_fh(Table, discount=problems.DISCOUNT)
    each, _ = mce.mce_occupancy_measures(Table, pi=policy)  # with the state after the last step
    visits = problems.DISCOUNT ** np.arange(HORIZON) @ each[:-1]
    with jax.enable_x64(True):
        transition = jnp.asarray(Table.transition_matrix)
        reward = jnp.broadcast_to(jnp.asarray(Table.reward_matrix)[:, None], transition.shape[:2])
        soft, act = dp.soft_backward_induction(transition, reward, HORIZON, 1.0, problems.DISCOUNT)
        code = jnp.broadcast_to(jnp.eye(problems.STATES)[:, None], transition.shape)
        met = inverse.feature_expectations(
            transition,
            code,
            jnp.asarray(Table.initial_state_dist),
            policy=act,
            horizon=HORIZON,
            discount=problems.DISCOUNT,
        )
    np.testing.assert_allclose(soft[:-1], values, **CLOSE)
    np.testing.assert_allclose(act, policy, **CLOSE)
    np.testing.assert_allclose(met, visits, **CLOSE)


def test_features_that_do_not_fit_are_refused():
    table = jnp.ones((2, 1, 2)) / 2
    with pytest.raises(UserError, match=r"with 2 states and 1 actions they must be \[S, A, K\]"):
        inverse.maximum_causal_entropy(
            table, jnp.ones((2, 3)), jnp.ones(2) / 2, expected=jnp.ones(3), horizon=2
        )
