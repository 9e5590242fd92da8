"""The exact policy gradient against automatic and finite differences, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.exact import dynamic_programming as dp
from jaxrl.exact import occupancy as oc
from jaxrl.exact import policy_gradient as pg
from tests.exact import problems

CLOSE = {"rtol": 1e-8, "atol": 1e-10}
STEP = 1e-5
TEMPERATURE = 0.3
EACH = range(problems.PROBLEMS)


@functools.cache
def solutions() -> dict:
    def solve(transition, reward, policy, logits, initial):
        gamma, end = problems.DISCOUNT, {"terminal": jnp.asarray(problems.TERMINAL)}
        environment = (transition, reward, initial, gamma)
        own = jax.nn.softmax(logits, axis=-1)

        def j(logits, temperature=0.0):
            return pg.expected_return(logits, *environment, **end, temperature=temperature)

        directions = STEP * jnp.eye(logits.size).reshape(-1, *logits.shape)
        sides = [jax.vmap(lambda d, s=s: j(logits + s * d))(directions) for s in (1, -1)]
        return {
            "theorem": pg.policy_gradient(logits, *environment, **end),
            "autodiff": jax.grad(j)(logits),
            "numeric": ((sides[0] - sides[1]) / (2 * STEP)).reshape(logits.shape),
            "advantages": pg.advantages(transition, reward, own, gamma, **end),
            "own": own,
            "return": j(logits),
            "soft_return": j(logits, TEMPERATURE),
            "other_return": initial
            @ dp.policy_evaluation(transition, reward, policy, gamma, **end),
            "other_occupancy": oc.occupancy(transition, policy, initial, gamma, **end),
        }

    return problems.solve_all(solve)


@pytest.mark.parametrize("problem", EACH)
def test_the_theorem_is_the_gradient_of_the_return(problem):
    ours = {k: v[problem] for k, v in solutions().items()}
    np.testing.assert_allclose(ours["theorem"], ours["autodiff"], **CLOSE)
    np.testing.assert_allclose(ours["theorem"], ours["numeric"], rtol=1e-5, atol=1e-8)
    assert np.all(ours["theorem"][-1] == 0) and np.abs(ours["theorem"]).max() > 0.01


@pytest.mark.parametrize("problem", EACH)
def test_the_return_is_the_mean_of_the_values(problem):
    ours = {k: v[problem] for k, v in solutions().items()}
    values = problems.values(problem, ours["own"])
    np.testing.assert_allclose(ours["return"], problems.INITIAL[problem] @ values, **CLOSE)
    entropy = -(ours["own"] * np.log(ours["own"])).sum(-1)
    values = problems.values(problem, ours["own"], TEMPERATURE * entropy)
    np.testing.assert_allclose(ours["soft_return"], problems.INITIAL[problem] @ values, **CLOSE)


@pytest.mark.parametrize("problem", EACH)
def test_advantages_have_mean_zero_and_tell_other_policies_returns(problem):
    ours = {k: v[problem] for k, v in solutions().items()}
    np.testing.assert_allclose((ours["own"] * ours["advantages"]).sum(-1), 0.0, atol=1e-10)
    # Kakade and Langford (2002), lemma 6.1
    difference = (ours["other_occupancy"] * ours["advantages"]).sum()
    np.testing.assert_allclose(ours["other_return"] - ours["return"], difference, **CLOSE)
