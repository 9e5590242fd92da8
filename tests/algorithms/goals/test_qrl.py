"""Quasimetric RL: its losses, chains of steps that bound distances, true distances in a maze."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.goals import qrl
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

CHANGES = {"hidden": (32,), "components": 4, "size": 4}
RECIPE = qrl.recipe(everything.ENV, Static(replace(qrl.Config(), CHANGES)))
LOSSES = losses_of(RECIPE)
HYPER = {"offset": 3.0, "sharpness": 0.5, "tolerance": 0.2, "temperature": 0.5}


def test_true_distances_keep_the_constraint():
    x = everything.steps("actor_goal")
    scale = 1.0
    net = stub(
        distance=lambda x, y: scale * everything.distance(x, y),
        multiplier=lambda: jnp.float32(0.7),
        hyper=HYPER,
    )
    output = LOSSES["distance_loss"](net, x)
    far = everything.distance(x.observation, x.timestep.goal)
    push = np.log1p(np.exp(0.5 * (3.0 - far))) / 0.5
    np.testing.assert_allclose(output.value, push - 0.7 * 0.04, rtol=1e-4)
    scale = 1.5  # then every step that moves is too long by half
    moved = np.asarray((x.observation != x.next_observation).any(-1))
    push = np.log1p(np.exp(0.5 * (3.0 - 1.5 * far))) / 0.5
    found = LOSSES["distance_loss"](net, x).value
    np.testing.assert_allclose(found, push + 0.7 * (0.25 * moved - 0.04), rtol=1e-4)


def test_the_policy_imitates_what_leads_nearer():
    x = everything.steps("actor_goal")
    log_prob = np.random.default_rng(0).normal(size=len(x.reward)).astype(np.float32)
    net = stub(
        distance=everything.distance, actor=lambda t: everything.policy(log_prob), hyper=HYPER
    )
    near = everything.distance(x.observation, x.timestep.goal) - everything.distance(
        x.next_observation, x.timestep.goal
    )
    found = LOSSES["actor_loss"](net, x).value
    np.testing.assert_allclose(found, -np.exp(near / 0.5) * log_prob, rtol=1e-4)


def test_a_chain_of_steps_bounds_the_distance_that_is_pushed():
    """The distance to a goal is that of the steps on the way, of the same network: with another
    one for goals, nothing would bound it."""
    part = RECIPE.parts["distance"]
    params = part.init(random.key(0))
    goal = jnp.asarray(everything.MAZE.goal)
    seen = []

    def distance(x, y):
        seen.append((x, y))
        return part.apply(params, x, y)

    x = everything.steps("actor_goal")
    net = stub(distance=distance, multiplier=lambda: jnp.float32(1.0), hyper=HYPER)
    LOSSES["distance_loss"](net, x)
    pushed, stepped = seen
    far = part.apply(params, *pushed)
    lengths = part.apply(params, *stepped)
    longest = float(lengths.max())
    true = everything.distance(*pushed)
    assert (far <= longest * true + 1e-4).all()
    assert part.apply(params, goal, goal).max() < 1e-5


@pytest.mark.slow
def test_it_learns_true_distances_around_a_loop():
    """There and back differ by six steps: no metric could have both."""
    changes = {
        "data.size": 1024,
        "data.batch_size": 128,
        "data.updates": 100,
        "hidden": (32, 32),
        "components": 4,
        "size": 4,
        "optimizer.learning_rate": 1e-3,
        "multiplier.learning_rate": 0.1,
        "tolerance": 0.05,
    }
    algorithm = qrl.qrl(everything.ENV, changes)

    @jax.jit
    def run(key):
        begun = start(algorithm, key)
        return train(algorithm, begun, 25)[0].state.agent.parts["distance"].params

    params = run(random.key(0))
    network = qrl.recipe(everything.ENV, Static(replace(qrl.Config(), changes))).parts["distance"]
    goal, n = jnp.asarray(everything.MAZE.goal), everything.PLACES
    found = network.apply(params, jnp.repeat(goal, n, 0), jnp.tile(goal, (n, 1)))
    found, true = np.asarray(found).reshape(n, n), everything.MAZE.steps
    apart = ~np.eye(n, dtype=bool)
    assert 0.9 < found[apart].mean() / true[apart].mean() < 1.2
    assert np.abs(found - true).max() < 1.5
    assert np.corrcoef(found[apart], true[apart])[0, 1] > 0.97
