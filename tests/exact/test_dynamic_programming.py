"""Dynamic programming against enumeration, long sums and finite differences, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.exact import dynamic_programming as dp
from tests.exact import problems

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
HORIZON = 4
TEMPERATURE = 0.7
EACH = range(problems.PROBLEMS)


@functools.cache
def solutions() -> dict:
    def solve(transition, reward, policy, logits, initial):
        shared = (transition, reward)
        end = {"terminal": jnp.asarray(problems.TERMINAL)}
        gamma = problems.DISCOUNT
        per_step = jax.nn.softmax(logits * jnp.arange(HORIZON)[:, None, None], axis=-1)
        return {
            "evaluation": dp.policy_evaluation(*shared, policy, gamma, **end),
            "soft_evaluation": dp.policy_evaluation(
                *shared, policy, gamma, **end, temperature=TEMPERATURE
            ),
            "policy_iteration": dp.policy_iteration(*shared, gamma, **end),
            "value_iteration": dp.value_iteration(*shared, gamma, **end, tolerance=1e-11),
            "soft": dp.soft_value_iteration(*shared, gamma, TEMPERATURE, **end, tolerance=1e-12),
            "cold": dp.soft_value_iteration(*shared, gamma, 1e-3, **end, tolerance=1e-9),
            "induction": dp.backward_induction(*shared, HORIZON, gamma, **end),
            "finite": dp.finite_horizon_evaluation(*shared, per_step, HORIZON, gamma, **end),
            "per_step": per_step,
        }

    return problems.solve_all(solve)


@pytest.mark.parametrize("problem", EACH)
def test_evaluation_is_the_sum_of_discounted_rewards(problem):
    policy = problems.POLICY[problem]
    expected = problems.values(problem, policy)
    np.testing.assert_allclose(solutions()["evaluation"][problem], expected, **CLOSE)
    assert expected[-1] == 0.0 and np.abs(expected[:-1]).min() > 1e-3

    entropy = -(policy * np.log(policy)).sum(-1)
    expected = problems.values(problem, policy, TEMPERATURE * entropy)
    np.testing.assert_allclose(solutions()["soft_evaluation"][problem], expected, **CLOSE)


@pytest.mark.parametrize("method", ["policy_iteration", "value_iteration"])
@pytest.mark.parametrize("problem", EACH)
def test_the_optimum_is_the_best_of_all_deterministic_policies(problem, method):
    values, policy = (x[problem] for x in solutions()[method])
    expected, actions = problems.best(problem)
    np.testing.assert_allclose(values, expected, **CLOSE)
    np.testing.assert_array_equal(policy[:-1].argmax(-1), actions)
    assert set(np.unique(policy)) == {0.0, 1.0} and np.all(policy.sum(-1) == 1)


@pytest.mark.parametrize("problem", EACH)
def test_the_soft_optimum_is_the_best_of_all_policies_with_entropy(problem):
    values, policy = (x[problem] for x in solutions()["soft"])

    def soft_values(policy):
        entropy = -(policy * np.log(policy)).sum(-1)
        return problems.values(problem, policy, TEMPERATURE * entropy)

    np.testing.assert_allclose(values, soft_values(policy), **CLOSE)
    rng = np.random.default_rng(problem)
    for size in (1e-2, 0.1, 1.0):
        other = policy * np.exp(size * rng.normal(size=policy.shape))
        other /= other.sum(-1, keepdims=True)
        worse = soft_values(other)
        assert np.all(worse <= values + 1e-9) and worse.sum() < values.sum()
    assert values[-1] == 0.0  # no entropy after the end


@pytest.mark.parametrize("problem", EACH)
def test_a_low_temperature_gives_the_hard_optimum(problem):
    values, policy = (x[problem] for x in solutions()["cold"])
    expected, actions = problems.best(problem)
    slack = 1e-3 * np.log(problems.ACTIONS) / (1 - problems.DISCOUNT)
    assert np.all(values >= expected - 1e-7) and np.all(values <= expected + slack)
    np.testing.assert_array_equal(policy[:-1].argmax(-1), actions)


@pytest.mark.parametrize("problem", EACH)
def test_finite_horizons_are_sums_along_all_paths(problem):
    transition, reward = problems.TRANSITION[problem], problems.REWARD[problem]

    def worth(state, action, step, follow):
        if problems.TERMINAL[state]:
            return 0.0
        later = [follow(t, step + 1) for t in range(problems.STATES)]
        return transition[state, action] @ (
            reward[state, action] + problems.DISCOUNT * np.array(later)
        )

    @functools.cache
    def optimal(state, step):
        if step == HORIZON:
            return 0.0
        return max(worth(state, a, step, optimal) for a in range(problems.ACTIONS))

    per_step = solutions()["per_step"][problem]

    @functools.cache
    def followed_value(state, step):
        if step == HORIZON:
            return 0.0
        q = [worth(state, a, step, followed_value) for a in range(problems.ACTIONS)]
        return per_step[step, state] @ np.array(q)

    table = np.ndindex(HORIZON + 1, problems.STATES)
    best, mean = np.array([(optimal(s, t), followed_value(s, t)) for t, s in table]).T
    shape = (HORIZON + 1, problems.STATES)
    values, policies = (x[problem] for x in solutions()["induction"])
    np.testing.assert_allclose(values, best.reshape(shape), **CLOSE)
    evaluated, q = (x[problem] for x in solutions()["finite"])
    np.testing.assert_allclose(evaluated, mean.reshape(shape), **CLOSE)
    np.testing.assert_allclose((q * per_step).sum(-1), evaluated[:-1], **CLOSE)
    chosen = policies[0, :-1].argmax(-1)
    gains = [worth(s, a, 0, optimal) for s, a in enumerate(chosen)]
    np.testing.assert_allclose(gains, values[0, :-1], **CLOSE)


@functools.cache
def gradients() -> tuple:
    """Return derivatives along a random direction, exact and by finite differences, in float64."""
    end = jnp.asarray(problems.TERMINAL)
    step = 1e-5

    def every(transition, reward, discount, temperature):
        shared = (transition, reward, discount)
        return {
            "evaluation": dp.policy_evaluation(
                transition, reward, jnp.asarray(problems.POLICY[0]), discount, end, temperature
            ),
            "policy_iteration": dp.policy_iteration(*shared, end)[0],
            "value_iteration": dp.value_iteration(*shared, end, tolerance=1e-12)[0],
            "soft": dp.soft_value_iteration(*shared, temperature, end, tolerance=1e-13),
        }

    rng = np.random.default_rng(0)
    point = (problems.TRANSITION[0], problems.REWARD[0], 0.9, 0.7)
    inward = problems.TRANSITION[1] - problems.TRANSITION[0]
    along = (inward, rng.normal(size=problems.REWARD[0].shape), -0.3, 0.5)

    def at_distance(distance):
        return every(*[x + distance * d for x, d in zip(point, along, strict=True)])

    with jax.enable_x64(True):
        # Reverse mode, which losses of learned models need.
        by_reverse = jax.jit(jax.jacrev(at_distance))(0.0)
        sides = jax.jit(jax.vmap(at_distance))(np.array([step, -step]))
    numeric = jax.tree.map(lambda x: np.asarray(x[0] - x[1]) / (2 * step), sides)
    return jax.tree.map(np.asarray, by_reverse), numeric


@pytest.mark.parametrize("method", ["evaluation", "policy_iteration", "value_iteration", "soft"])
def test_derivatives_are_finite_differences(method):
    exact, numeric = (x[method] for x in gradients())
    for ours, theirs in zip(jax.tree.leaves(exact), jax.tree.leaves(numeric), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert np.abs(theirs).max() > 0.01


@pytest.mark.parametrize(
    "arguments,match",
    [
        ({"transition": np.ones((5, 3, 4))}, r"\[5, 3, 4\]; it must be \[S, A, S\]"),
        ({"reward": np.ones(5)}, r"'reward' has the shape \[5\].*\[5, 3\] or \[5, 3, 5\]"),
        ({"policy": np.ones((3, 5))}, r"'policy' has the shape \[3, 5\].*must be \[5, 3\]"),
        ({"terminal": np.ones(3, bool)}, r"'terminal' has the shape \[3\].*must be \[5\]"),
    ],
)
def test_shapes_that_do_not_match_raise_an_error(arguments, match):
    right = {
        "transition": problems.TRANSITION[0],
        "reward": problems.REWARD[0],
        "policy": problems.POLICY[0],
        "discount": 0.9,
        "terminal": problems.TERMINAL,
    }
    with pytest.raises(UserError, match=match):
        dp.policy_evaluation(**{**right, **arguments})
