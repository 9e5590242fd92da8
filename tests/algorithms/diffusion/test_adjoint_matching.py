"""Adjoint matching on a mixture whose tilted law is known: the velocity of the tilted flow has no
error, paths forget their noise, and gradients are the reward's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.diffusion import adjoint_matching
from jaxrl.algorithms.diffusion.shared.fine_tuning import reward_of
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.settings import Static, replace
from jaxrl.exact.tilted import tilted_law, total_variation
from tests.algorithms.diffusion import mixtures
from tests.kit import stub

BETA, STEPS, N = 0.5, 40, 2000
CONFIG = replace(adjoint_matching.Config(), {"hidden": (8,), "steps": STEPS})
RECIPE = adjoint_matching.recipe(mixtures.ENV, Static(CONFIG))


def without_timestep(network):
    return lambda x, time: network(None, x, time)


BASE = without_timestep(mixtures.velocity_network())
TUNED = without_timestep(mixtures.velocity_network(BETA))
SLOPE = jnp.array([1 / BETA, 0.0])


@jax.jit
def paths(key):
    return adjoint_matching.sample_path(key, TUNED, (N, 2), STEPS)


def test_paths_have_the_flows_law_and_forget_their_noise():
    path = paths(random.key(0))
    law = tilted_law(mixtures.ENV, BETA)
    assert total_variation(law, path[-1]) < 0.1
    start, end = path[0], path[-1]
    assert np.abs(np.corrcoef(start.T, end.T)[:2, 2:]).max() < 0.1


def test_the_control_of_the_tilted_flow_is_the_mean_adjoint():
    """The regression of the adjoint state onto points of the tilted flow's paths is the control
    that makes that flow: no multiple of it has less error, up to the size of a step."""
    path = paths(random.key(0))
    adjoint = adjoint_matching.lean_adjoint(BASE, path, jnp.broadcast_to(SLOPE, (N, 2)))

    @jax.jit
    def error(share):
        def mixed(x, time):
            return BASE(x, time) + share * (TUNED(x, time) - BASE(x, time))

        return adjoint_matching.matching_error(mixed, BASE, path, adjoint).mean()

    none, half, whole = (float(error(share)) for share in (0.0, 0.5, 1.0))
    curve = 2 * (whole - 2 * half + none)
    np.testing.assert_allclose(-(whole - none - curve) / 2 / curve, 1, atol=0.12)


def test_the_adjoint_of_a_linear_drift_is_known():
    """The drift without a velocity is -x / (t + h), so the adjoint shrinks by t / (t + h) in each
    step back: a telescope to t times the gradient at the end."""
    still = lambda x, time: jnp.zeros_like(x)
    path = jnp.ones((6, 3, 2))
    found = adjoint_matching.lean_adjoint(still, path, jnp.full((3, 2), 2.0))
    time = np.arange(5) / 5
    np.testing.assert_allclose(found, -2 * time[:, None, None] * np.ones((5, 3, 2)), atol=1e-6)


def test_the_loss_takes_the_gradient_of_the_environments_reward():
    path = jnp.moveaxis(paths(random.key(1))[:, :4], 0, -2)
    x = stub.transitions(4, actions=0, path=path)
    flows = {"denoiser": mixtures.velocity_network(BETA), "base": mixtures.velocity_network()}
    net = stub.stub(hyper={"beta": BETA}, key=lambda name="": random.key(0), **flows)
    output = stub.losses_of(RECIPE)["matching_loss"](net, x)
    np.testing.assert_allclose(output.metrics["slope"], 1 / BETA, rtol=1e-5)
    along = jnp.moveaxis(path, -2, 0)
    adjoint = adjoint_matching.lean_adjoint(BASE, along, jnp.broadcast_to(SLOPE, (4, 2)))
    expected = adjoint_matching.matching_error(TUNED, BASE, along, adjoint)
    np.testing.assert_allclose(output.value, expected, rtol=1e-4)
    inside = jnp.array([[0.3, -0.2], [0.9, 0.1], [-0.5, 0.0]])
    reward = reward_of(mixtures.ENV, mixtures.first_steps(3), inside, random.key(0))
    np.testing.assert_allclose(reward, inside[:, 0], rtol=1e-6)


def test_greedy_samples_are_those_of_the_flow_and_others_keep_their_path():
    net = stub.stub(denoiser=mixtures.velocity_network(BETA), hyper={"beta": BETA})
    seen = mixtures.first_steps(N)
    play = jax.jit(
        lambda greedy: RECIPE.act(net, seen, (), random.key(0), greedy), static_argnums=0
    )
    action, _, extras = play(False)
    np.testing.assert_array_equal(action, np.clip(extras["path"][:, -1], -1, 1))
    greedy, _, nothing = play(True)
    assert nothing == {} and total_variation(tilted_law(mixtures.ENV, BETA), greedy) < 0.1


def test_what_does_not_fit_is_refused():
    for env, said in (("pendulum", "actions of one step"), ("two_sides", "tells its state")):
        with pytest.raises(UserError, match=said):
            adjoint_matching.adjoint_matching.agent(envs.make(env), CONFIG)
