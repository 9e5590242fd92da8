"""Quasimetric RL: its losses, chains of steps that bound distances, true distances in a maze."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.goals import qrl
from jaxrl.core import random
from jaxrl.core.examples import example_timestep
from jaxrl.core.settings import Static, replace
from jaxrl.core.train import start, train
from jaxrl.core.types import Transition
from jaxrl.envs.planar.ogbench_pointmaze import ogbench_pointmaze
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

CHANGES = {"hidden": (32,), "components": 4, "size": 4}
RECIPE = qrl.recipe(everything.ENV, Static(replace(qrl.Config(), CHANGES)))
LOSSES = losses_of(RECIPE)
HYPER = {"offset": 3.0, "sharpness": 0.5, "tolerance": 0.2, "extraction.temperature": 0.5}


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


def test_the_policy_follows_the_distance_through_the_dynamics():
    """Checked on a line that is its own embedding, where distances there and back differ."""
    env = ogbench_pointmaze()
    settings = {"extraction.method": "ddpg_bc", "hidden": (8,), "components": 2, "size": 1}
    follow = losses_of(qrl.recipe(env, Static(replace(qrl.Config(), settings))))
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)
    here, after, far, goal, action, mean = draw(6, 5, 2)
    between = lambda x, y: jnp.abs(x - y).sum(-1) + 2 * jax.nn.relu(y - x).sum(-1)
    call = lambda x, *y, method="both": x if method == "embed" else between(x, *y)
    timestep = dataclasses.replace(
        jax.tree.map(lambda x: jnp.repeat(x, 5, 0), example_timestep(env)), goal=far
    )
    x = Transition(
        timestep=dataclasses.replace(timestep, observation=here),
        next_timestep=dataclasses.replace(timestep, observation=after),
        action=action,
        task=(),
        extras={"actor_goal": goal},
    )
    net = stub(
        distance=call,
        dynamics=lambda x, a: x + 3 * a,
        multiplier=lambda: jnp.float32(0.7),
        actor=lambda t: everything.policy(-jnp.square(action).sum(-1), mode=2 * mean),
        hyper=HYPER | {"extraction.cloning": 0.1},
    )
    found = follow["distance_loss"](net, x)
    push = np.log1p(np.exp(0.5 * (3.0 - between(here, far)))) / 0.5
    excess = np.maximum(between(here, after) - 1, 0)
    led = here + 3 * action
    miss = (between(led, after) + between(after, led)) / 2
    np.testing.assert_allclose(found.value, push + 0.7 * (excess**2 - 0.04) + miss, rtol=1e-4)
    value = -between(here + 3 * np.clip(2 * mean, -1, 1), goal)
    cloned = 0.1 * np.square(action).sum(-1)
    found = follow["actor_loss"](net, x).value
    np.testing.assert_allclose(found, -value / np.abs(value).mean() + cloned, rtol=1e-4)


@pytest.mark.parametrize("log_multiplier", [False, True])
def test_the_dual_variable_is_learned_on_its_scale(log_multiplier):
    """The parameter is the logarithm, or the inverse of the softplus."""
    settings = {"log_multiplier": log_multiplier, "multiplier_init": 2.0}
    part = qrl.recipe(everything.ENV, Static(replace(qrl.Config(), settings))).parts["multiplier"]
    params = part.init(random.key(0))
    np.testing.assert_allclose(part.apply(params), 2, rtol=1e-5)
    moved = part.apply(jax.tree.map(lambda x: x + 0.5, params))
    expected = 2 * np.exp(0.5) if log_multiplier else np.log1p(np.expm1(2) * np.exp(0.5))
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


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
