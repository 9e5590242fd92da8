"""Diffusion BC: each process's loss on a table, and actions within bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import losses
from jaxrl.algorithms.diffusion import adjoint_matching, diffusion_bc, rlcm, rocm, vard
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from tests.algorithms.diffusion import bandit, mixtures
from tests.kit import stub


def network(timestep, noisy, level):
    return 0.5 * noisy + level[..., None]


def recipe(process):
    settings = {"hidden": (8,), "process": process, "steps": 3}
    return diffusion_bc.recipe(mixtures.ENV, Static(replace(diffusion_bc.Config(), settings)))


@pytest.mark.parametrize("name", diffusion_bc.PROCESSES)
def test_the_loss_is_that_of_the_process(name):
    x = bandit.transitions(6)
    action = jnp.asarray(np.repeat(x.action, 2, 1))
    x = type(x)(x.timestep, action, x.next_timestep, (), {})
    net = stub.stub(denoiser=network, key=bandit.key)
    found = stub.losses_of(recipe(name))["denoiser_loss"](net, x)
    process = diffusion_bc.make_process(name, 3)
    if name == "consistency":
        predict = lambda noisy, level: network(None, noisy, level)
        first, second, sigma, lower = process.ends(bandit.key(), predict, action)
        size = np.sqrt(np.square(first - second).sum(-1) + 0.03**2) - 0.03
        np.testing.assert_allclose(found, size / (sigma - lower), rtol=1e-3)
        return
    noised = process.add_noise(bandit.key(), action)
    error = losses.prediction_error(network(None, noised.noisy, noised.level), noised.target)
    np.testing.assert_allclose(found, np.asarray(error).reshape(6, -1).mean(1), rtol=1e-5)


@pytest.mark.parametrize("name", diffusion_bc.PROCESSES)
def test_actions_lie_within_bounds(name):
    net = stub.stub(target={"denoiser": network})
    seen = mixtures.first_steps(50)
    action, _, _ = recipe(name).act(net, seen, (), bandit.key(), False)
    assert action.shape == (50, 2) and (jnp.abs(action) <= 1).all() and float(action.std()) > 0.01


def test_an_environment_beside_the_data_is_refused():
    config = replace(diffusion_bc.Config(), {"num_envs": 2})
    with pytest.raises(UserError, match="learns from a dataset alone, since it clones"):
        diffusion_bc.diffusion_bc.agent(mixtures.ENV, config)


@pytest.mark.parametrize("process", diffusion_bc.PROCESSES)
def test_a_model_goes_on_only_with_its_own_process(process):
    """Shapes alone do not tell a velocity from predicted noise."""
    config = {"hidden": (8,), "process": process, "steps": 3}
    cloned = diffusion_bc.diffusion_bc.agent(mixtures.ENV, config)
    other = cloned.init(random.key(0), cloned.hyper)
    for builder, needs in (
        (adjoint_matching.adjoint_matching, "flow"),
        (rocm.rocm, "consistency"),
        (rlcm.rlcm, "consistency"),
        (vard.vard, "diffusion"),
    ):
        agent = builder.agent(mixtures.ENV, {"torso.hidden": (8,)})
        own = agent.init(random.key(1), agent.hyper)
        if process == needs:
            adopted = agent.adopt(own, other)
            params = (adopted.parts["denoiser"].params, other.parts["denoiser"].target)
            for x, y in zip(*map(jax.tree.leaves, params), strict=True):
                np.testing.assert_array_equal(x, y)
        else:
            with pytest.raises(UserError, match=f"process={process}, but .* process={needs}"):
                agent.adopt(own, other)
