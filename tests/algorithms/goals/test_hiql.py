"""Hierarchical IQL: both policies' losses by NumPy, representations, and how it acts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.goals import hiql
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from tests.algorithms.goals import everything
from tests.kit.stub import losses_of, stub

CHANGES = {"hidden": (8,), "representation": 3, "subgoal_steps": 2}
CONFIG = replace(hiql.Config(), CHANGES)
RECIPE = hiql.recipe(everything.ENV, Static(CONFIG))
HYPER = {"low_temperature": 0.5, "high_temperature": 0.25}
RNG = np.random.default_rng(0)
N = len(everything.steps().reward)
TABLE = RNG.normal(size=(2, everything.PLACES, everything.PLACES)).astype(np.float32)
LOG_PROB = RNG.normal(size=N).astype(np.float32)


def net(seen):
    def value(timestep, method=None):
        places = everything.place(timestep.observation), everything.place(timestep.goal)
        if method == "represent":
            return jnp.stack(places, -1).astype(jnp.float32)
        return TABLE[:, places[0], places[1]]

    def actor(name):
        def of(timestep):
            def log_prob(action):
                seen[name] = np.asarray(timestep.goal), np.asarray(action)
                return LOG_PROB

            return type("Policy", (), {"log_prob": staticmethod(log_prob)})

        return of

    return stub(value=value, low_actor=actor("low"), high_actor=actor("high"), hyper=HYPER)


def transitions():
    """All steps, with goals that are places drawn at random, and subgoals elsewhere."""
    x = everything.steps()
    low, high, later = RNG.integers(0, everything.PLACES, (3, N))
    goal = everything.MAZE.goal
    subgoal = dataclasses.replace(x.next_timestep, observation=goal[later])
    extras = {"low_goal": goal[low], "high_goal": goal[high], "subgoal": subgoal}
    return dataclasses.replace(x, extras=extras), low, high, later


def test_the_low_policy_imitates_steps_toward_a_near_goal():
    (x, low, _, _), seen = transitions(), {}
    here, after = (np.asarray(everything.place(o)) for o in (x.observation, x.next_observation))
    gain = (TABLE[:, after, low] - TABLE[:, here, low]).mean(0)
    found = hiql.low_loss(net(seen), x).value
    np.testing.assert_allclose(found, -np.exp(gain / 0.5) * LOG_PROB, rtol=1e-4)
    np.testing.assert_array_equal(seen["low"][0], np.stack([here, low], -1))
    np.testing.assert_array_equal(seen["low"][1], x.action)


def test_the_high_policy_proposes_what_led_nearer():
    (x, _, high, later), seen = transitions(), {}
    here = np.asarray(everything.place(x.observation))
    gain = (TABLE[:, later, high] - TABLE[:, here, high]).mean(0)
    weight = np.minimum(np.exp(gain / 0.25), 100)
    found = losses_of(RECIPE)["high_loss"](net(seen), x).value
    np.testing.assert_allclose(found, -weight * LOG_PROB, rtol=1e-4)
    # It is told the far goal, and proposes the subgoal as seen from the state.
    np.testing.assert_array_equal(seen["high"][0], everything.MAZE.goal[high])
    np.testing.assert_array_equal(seen["high"][1], np.stack([here, later], -1))


@pytest.mark.slow
def test_it_acts_on_a_representation_of_full_length():
    agent = hiql.hiql.agent(everything.ENV, CONFIG)
    state = jax.jit(agent.init)(random.key(0), agent.hyper)
    reset = jax.vmap(lambda key: everything.ENV.reset(key, everything.ENV.params)[1])
    timestep = reset(jax.random.split(random.key(1), 6))
    apply = lambda name, *x, **o: RECIPE.parts[name].apply(state.parts[name].params, *x, **o)
    subgoal = hiql.normalize(apply("high_actor", timestep).mode())
    np.testing.assert_allclose(jnp.linalg.norm(subgoal, axis=-1), 3**0.5, rtol=1e-5)
    low = apply("low_actor", dataclasses.replace(timestep, goal=subgoal))
    action = agent.act(state, timestep, (), random.key(2), True)[0]
    np.testing.assert_array_equal(action, low.mode())
    met = apply("value", timestep, method="represent")
    np.testing.assert_allclose(jnp.linalg.norm(met, axis=-1), 3**0.5, rtol=1e-5)
    assert apply("value", timestep).shape == (2, 6)
