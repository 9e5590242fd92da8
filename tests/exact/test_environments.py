"""`jaxrl.exact` solves the tensors of environments, with the known results."""

import jax
import numpy as np

from jaxrl import envs
from jaxrl.envs.tables import factored_mdp, mdp
from jaxrl.exact import dynamic_programming as dp
from jaxrl.exact import occupancy as oc


def test_the_frozen_lake_is_crossed_14_times_of_17():
    @jax.jit
    def solve(table):
        tensors = mdp.tensors(table)
        end = {"terminal": tensors.terminal}
        values, policy = dp.value_iteration(
            tensors.transition, tensors.reward, 1.0, tolerance=1e-12, **end
        )
        visits = oc.state_occupancy(tensors.transition, policy, tensors.initial, 1.0, **end)
        return tensors.initial @ values, visits

    with jax.enable_x64(True):
        value, visits = solve(envs.make("frozen_lake").params)
        np.testing.assert_allclose(value, 14 / 17, rtol=1e-8)
        # arrivals at the goal, and at all states that end an episode
        np.testing.assert_allclose(visits[15], 14 / 17, rtol=1e-8)
        np.testing.assert_allclose(visits[np.array([5, 7, 11, 12, 15])].sum(), 1.0, rtol=1e-8)


def test_a_factored_environment_has_the_solution_of_its_expert():
    env = envs.make("sysadmin", num_machines=3)
    tensors = factored_mdp.tensors(env.params)
    solve = jax.jit(dp.policy_iteration)
    with jax.enable_x64(True):
        values, _ = solve(tensors.transition, tensors.reward, factored_mdp.DISCOUNT)
        q = dp.action_values(tensors.transition, tensors.reward, values, factored_mdp.DISCOUNT)
    # The machines are alike, so several actions are often equally good.
    chosen = np.take_along_axis(np.asarray(q), env.params.optimal[:, None], -1)[:, 0]
    np.testing.assert_allclose(chosen, np.max(q, -1), rtol=1e-5)
