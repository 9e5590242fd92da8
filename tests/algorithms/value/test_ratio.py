"""Gradient steps of an off-policy agent, and the age of its target network, with many
environments."""

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.dqn import dqn
from jaxrl.core import random, settings
from jaxrl.core.train import advance, start

PERIOD = 3


@pytest.mark.slow
@pytest.mark.parametrize(("num_envs", "num_steps", "updates"), [(1, 4, 1), (8, 2, 1), (8, 2, 5)])
def test_gradient_steps_and_the_targets_age_are_as_set(num_envs, num_steps, updates):
    """The number of gradient steps after a window does not depend on its size. The target network
    is the network of the last multiple of the period in gradient steps, not in environment steps or
    windows."""
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "updates": updates, "period": PERIOD}
    sizes |= {"batch_size": 4, "capacity": 64, "warmup": 16, "hidden": (4,), "learning_rate": 0.1}
    algorithm = dqn(envs.make("cartpole"), settings.replace(dqn.Config(), sizes))
    run = start(algorithm, random.key(0))
    assert algorithm.env_steps == num_envs * num_steps
    history = [jax.tree.map(np.asarray, run.state.agent.parts["q"])]
    for step in range(1, 8):
        run = advance(algorithm, run)[0]
        assert run.state.agent.updates == updates * step
        history.append(jax.tree.map(np.asarray, run.state.agent.parts["q"]))
        copied = updates * step // PERIOD * PERIOD  # in gradient steps
        if copied % updates == 0:  # only the last one of each window can be seen here
            jax.tree.map(
                np.testing.assert_array_equal, history[-1].target, history[copied // updates].params
            )
    assert not np.array_equal(*(jax.tree.leaves(x.params)[0] for x in history[-2:]))
