"""Windows as single transitions over several steps against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.value.shared.n_step import n_step_transitions
from jaxrl.core import random
from jaxrl.core.types import TimeStep, Transition

N, B, GAMMA = 3, 64, 0.9


def window(key):
    """Draw a window [N, B] of experience in which episodes end in all places."""
    keys = jax.random.split(key, 6)
    observation = jax.random.normal(keys[0], (2, N, B, 4))  # next ones are the true successors
    terminated = jax.random.bernoulli(keys[1], 0.3, (N, B))
    truncated = jax.random.bernoulli(keys[2], 0.3, (N, B)) & ~terminated
    no, reward = jnp.zeros((N, B), bool), jax.random.normal(keys[3], (N, B))
    before = TimeStep(observation[0], jnp.zeros((N, B)), no, no, no)
    after = TimeStep(observation[1], reward, terminated, truncated, no)
    return Transition(before, jax.random.randint(keys[4], (N, B), 0, 2), after, (), {})


@pytest.mark.slow
def test_n_step_transitions_are_those_of_a_loop():
    x = window(random.key(0))
    transition = n_step_transitions(x, jnp.float32(GAMMA))
    discount = transition.extras["discount"]
    x, transition = jax.tree.map(np.asarray, (x, transition))
    ends = set()
    for b in range(B):
        total, m = 0.0, 0
        while True:
            total += GAMMA**m * float(x.reward[m, b])
            m += 1
            if m == N or x.terminated[m - 1, b] or x.truncated[m - 1, b]:
                break
        ends.add((m, bool(x.terminated[m - 1, b]), bool(x.truncated[m - 1, b])))
        np.testing.assert_allclose(transition.reward[b], total, rtol=1e-5)
        np.testing.assert_allclose(discount[b], GAMMA**m, rtol=1e-6)
        assert transition.terminated[b] == x.terminated[m - 1, b]
        assert transition.truncated[b] == x.truncated[m - 1, b]
        np.testing.assert_array_equal(transition.next_observation[b], x.next_observation[m - 1, b])
        np.testing.assert_array_equal(transition.observation[b], x.observation[0, b])
        assert transition.action[b] == x.action[0, b]
    assert len(ends) == 7  # every length and every way to end
