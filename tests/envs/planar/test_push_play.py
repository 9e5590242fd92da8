"""The table without a task: its reward for reaching, its cost at the edge and its metrics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.random import key as fast_key
from jaxrl.envs import check_environment, make
from jaxrl.envs.planar import push_pictures

REACH = 0.03 + 0.08  # radii of the pusher and of the disc


def _after_a_rest(pusher, target, **params):
    """Return state and time step after a step at rest from these places."""
    env = make("push_play", **params)
    state, _ = env.reset(fast_key(0), env.params)
    table = state.inner.inner
    table = dataclasses.replace(
        table,
        pusher=jnp.asarray([*pusher, 0.0, 0.0]),
        object=jnp.asarray([*target, 0.0, 0.0, 0.0, 0.0]),
    )
    state = dataclasses.replace(
        state, inner=dataclasses.replace(state.inner, inner=table), start=jnp.asarray(target)
    )
    return env.step(fast_key(1), state, jnp.zeros(2), env.params)


def test_it_keeps_the_rules_of_environments():
    check_environment(make("push_play"))


@pytest.mark.parametrize(
    ("pusher", "target", "reward", "cost"),
    [
        ([0.3, 0.0], [-0.1, 0.0], -(0.4 - REACH), 0),
        ([0.0, 0.2], [0.0, 0.0], -(0.2 - REACH), 0),
        ([0.46, 0.0], [0.0, 0.0], -(0.46 - REACH), 1),  # 0.01 m from the edge
        ([0.44, 0.0], [0.0, 0.0], -(0.44 - REACH), 0),  # 0.03 m
        ([0.0, 0.0], [0.0, -0.41], -(0.41 - REACH), 1),
        ([0.0, 0.0], [0.0, -0.39], -(0.39 - REACH), 0),
    ],
)
def test_it_pays_for_reaching_and_charges_for_the_edge(pusher, target, reward, cost):
    _, timestep = _after_a_rest(pusher, target)
    np.testing.assert_allclose(timestep.reward, reward, atol=1e-5)
    assert timestep.cost == timestep.metrics["episode_cost"] == cost
    assert timestep.goal is None
    assert timestep.metrics["displacement"] < 1e-6


def test_the_picture_shows_no_goal():
    env = make("push_play")
    state, _ = _after_a_rest([0.3, 0.0], [-0.1, 0.0])
    frame = env.render(state, env.params)
    assert not (frame == push_pictures.PALE).all(-1).any()
    pushed = make("push").render(state.inner, env.params.inner)
    assert (pushed == push_pictures.PALE).all(-1).any()


def test_the_margin_is_a_parameter():
    assert _after_a_rest([0.44, 0.0], [0.0, 0.0], margin=0.04)[1].cost == 1


def test_pushing_displaces_the_object_and_ends_nothing():
    env = make("push_play")
    state, _ = _after_a_rest([-0.2, 0.0], [0.0, 0.0])
    step = jax.jit(env.step)
    for i in range(12):
        state, timestep = step(fast_key(i), state, jnp.asarray([1.0, 0.0]), env.params)
        assert not timestep.terminated
    np.testing.assert_allclose(
        timestep.metrics["displacement"], np.linalg.norm(timestep.observation[4:6]), rtol=1e-5
    )
    assert timestep.metrics["displacement"] > 0.2
