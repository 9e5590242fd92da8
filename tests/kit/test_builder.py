"""From a recipe to an algorithm."""

import jax
import numpy as np
import pytest

from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random
from jaxrl.core.settings import replace
from tests.learning.probes import probe


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", [0, 4])
def test_what_is_first_built_in_a_trace_is_of_use_outside(recurrent):
    """The same arguments give the same object, so it may hold no tracer."""
    env, config = probe(), replace(ppo.Config(), {"hidden": (4,), "recurrent": recurrent})

    @jax.jit
    def inside(key):
        agent = ppo(env, config).agent
        return agent.init(key, agent.hyper)

    agent, key = ppo.agent(env, config), random.key(0)
    # Before the algorithm exists elsewhere; then the one that was kept.
    expected, state = agent.init(key, agent.hyper), inside(key)
    again = ppo(env, config).agent.init(key, agent.hyper)
    for found in (state, again):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
