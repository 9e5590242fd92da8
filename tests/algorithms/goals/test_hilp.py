"""Hilbert foundation policies: true distances are the fixed point, directions and their rewards."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.goals import hilp
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

CHANGES = {"hidden": (8,), "latent": 3, "data.size": 64, "data.batch_size": 16, "data.updates": 1}
CONFIG = replace(hilp.Config(), CHANGES)
RECIPE = hilp.recipe(everything.ENV, Static(CONFIG))
HYPER = {"discount": 1.0, "goal_expectile": 0.8}
RNG = np.random.default_rng(0)


def test_true_distances_leave_no_error_at_the_best_steps():
    """Undiscounted, -d is the value."""
    both = lambda x, y: np.stack([everything.distance(x, y)] * 2)
    x = everything.steps()
    net = stub(latent=both, target={"latent": both}, hyper=HYPER)
    output = losses_of(RECIPE)["latent_loss"](net, x)
    best = everything.best(x)
    np.testing.assert_allclose(output.value[best], 0.0, atol=1e-9)
    assert (output.value[~best] >= 2 * 0.2 * 0.99).all()


def test_directions_pay_for_progress_and_never_end():
    table = RNG.normal(size=(2, everything.PLACES, 3)).astype(np.float32)
    embed = lambda x, method: table[:, everything.place(x)]
    x = everything.steps()
    z = RNG.normal(size=(len(x.reward), 3)).astype(np.float32)
    here, after = x.observation, x.next_observation
    found = hilp.in_direction(stub(latent=embed), x, here, after, z)
    progress = table[0, everything.place(after)] - table[0, everything.place(here)]
    np.testing.assert_allclose(found.reward, (progress * z).sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.timestep.goal, z)
    np.testing.assert_array_equal(found.next_timestep.goal, z)
    assert not found.terminated.any()
    toward = hilp.toward(stub(latent=embed), here, x.timestep.goal)
    gap = table[0, everything.place(x.timestep.goal)] - table[0, everything.place(here)]
    length = np.linalg.norm(gap, axis=-1, keepdims=True)
    np.testing.assert_allclose(toward, gap / np.where(length > 0, length, 1), rtol=1e-4, atol=1e-6)


def test_the_layers_of_all_values_are_normalized():
    """The setting `torso` says so, and the authors' code has it; the policy's are not."""
    agent = hilp.hilp.agent(everything.ENV, CONFIG)
    state = jax.eval_shape(agent.init, random.key(0), agent.hyper)
    normalized = {n for n, part in state.parts.items() if "LayerNorm" in str(part.params)}
    assert normalized == {"latent", "value", "critic"}


@pytest.mark.slow
def test_the_policy_is_told_the_direction_to_its_goal():
    """Another goal in the same direction of the latents gives the same policy."""
    agent = hilp.hilp.agent(everything.ENV, CONFIG)
    state = jax.jit(agent.init)(random.key(0), agent.hyper)
    key = random.key(1)
    reset = jax.vmap(lambda key: everything.ENV.reset(key, everything.ENV.params)[1])
    timestep = reset(jax.random.split(key, 6))
    latents = RECIPE.parts["latent"].apply(
        state.parts["latent"].params, timestep.goal, method="embed"
    )[0]
    here = RECIPE.parts["latent"].apply(
        state.parts["latent"].params, timestep.observation, method="embed"
    )[0]
    z = (latents - here) / jnp.linalg.norm(latents - here, axis=-1, keepdims=True)
    action = agent.act(state, timestep, (), key, True)[0]
    policy = RECIPE.parts["actor"].apply(
        state.parts["actor"].params, dataclasses.replace(timestep, goal=z)
    )
    np.testing.assert_array_equal(action, policy.mode())
