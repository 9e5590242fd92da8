"""DQN with the Itakura-Saito loss, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.value.itakura_saito_dqn import divergence, itakura_saito_dqn
from tests.kit.stub import stub, transitions

N, AVERSION = 64, 0.7
RNG = np.random.default_rng(1)
TABLE, COPY = RNG.normal(size=(2, 2 * N, 2)).astype(np.float32)


@pytest.mark.parametrize("level", (0.0, 100.0))
def test_the_loss_is_that_of_the_paper_at_any_level_of_the_values(level):
    """exp(100) and its gradient would be infinite if the two were exponentiated apart."""
    of = lambda table: lambda s: jnp.asarray((table + level)[s.observation][..., None])
    net = stub(q=of(TABLE), target={"q": of(COPY)}, hyper={"aversion": AVERSION, "discount": 1.0})
    x = transitions(N)
    # Where an episode ends nothing follows, so the reward has to be at the level.
    after = dataclasses.replace(x.next_timestep, reward=x.reward + level * x.terminated)
    raised = dataclasses.replace(x, next_timestep=after)
    recipe = itakura_saito_dqn.recipe(envs.make("cartpole"), itakura_saito_dqn.Config())
    loss, report = recipe.losses["q_loss"].function(net, raised)

    target = x.reward + ~x.terminated * COPY[N:].max(-1)
    difference = TABLE[np.arange(N), x.action] - target
    expected = (np.exp(AVERSION * difference) - AVERSION * difference - 1) / AVERSION**2
    np.testing.assert_allclose(loss, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(report["priority"], np.abs(difference), rtol=1e-3, atol=1e-4)


def test_it_is_least_at_the_certainty_equivalent_of_samples():
    """Of skewed ones, for which a mean less a multiple of the variance is wrong."""
    samples = np.random.default_rng(2).exponential(size=1000)
    equivalent = -np.log(np.exp(-AVERSION * samples).mean()) / AVERSION
    with jax.enable_x64(True):
        loss = lambda value: divergence(value, jnp.asarray(samples), AVERSION).mean()
        assert abs(jax.grad(loss)(equivalent)) < 1e-12
        assert abs(jax.grad(loss)(samples.mean() - AVERSION * samples.var() / 2)) > 1e-2
