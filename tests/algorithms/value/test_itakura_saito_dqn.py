"""DQN with the Itakura-Saito loss against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.itakura_saito_dqn import divergence, itakura_saito_dqn
from jaxrl.core.settings import Static
from tests.kit.stub import stub, transitions

N, AVERSION = 64, 0.7
RNG = np.random.default_rng(1)
TABLE, TARGET = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


@pytest.mark.parametrize("level", (0.0, 100.0))
def test_the_loss_is_that_of_the_paper_at_any_level_of_the_values(level):
    """Value and target are subtracted before they are exponentiated: exp(100) and its gradient are
    infinite."""
    network = lambda table: lambda s: jnp.asarray((table + level)[s.observation][..., None])
    hyper = {"aversion": AVERSION, "discount": 1.0}
    net = stub(q=network(TABLE), target={"q": network(TARGET)}, hyper=hyper)
    x = transitions(N)
    # Nothing follows the end of an episode, so its reward has to be at the level.
    after = dataclasses.replace(x.next_timestep, reward=x.reward + level * x.terminated)
    raised = dataclasses.replace(x, next_timestep=after)
    recipe = itakura_saito_dqn.recipe(envs.make("cartpole"), Static(itakura_saito_dqn.Config()))
    output = recipe.losses[0](net, raised)

    target = x.reward + ~x.terminated * TARGET[N:].max(-1)
    difference = TABLE[np.arange(N), x.action] - target
    expected = (np.exp(AVERSION * difference) - AVERSION * difference - 1) / AVERSION**2
    np.testing.assert_allclose(output.value, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(output.priority, np.abs(difference), rtol=1e-3, atol=1e-4)


def test_it_is_least_at_the_certainty_equivalent_of_samples():
    """The samples are skewed, so that a mean less a multiple of the variance is wrong."""
    samples = np.random.default_rng(2).exponential(size=1000)
    equivalent = -np.log(np.exp(-AVERSION * samples).mean()) / AVERSION
    with jax.enable_x64(True):
        loss = lambda value: divergence(value, jnp.asarray(samples), AVERSION).mean()
        assert abs(jax.grad(loss)(equivalent)) < 1e-12
        assert abs(jax.grad(loss)(samples.mean() - AVERSION * samples.var() / 2)) > 1e-2
