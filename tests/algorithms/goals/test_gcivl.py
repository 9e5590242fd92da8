"""Implicit V-learning: true values of a maze are its fixed point, and its losses by NumPy."""

import dataclasses

import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms import registry
from jaxrl.algorithms.goals import gcivl
from jaxrl.algorithms.goals.shared.conditioned import LARGEST_WEIGHT
from jaxrl.core.errors import UserError
from tests.algorithms.goals import everything
from tests.kit.stub import stub

HYPER = {"discount": 0.9, "expectile": 0.8, "temperature": 0.5}
RNG = np.random.default_rng(0)


def test_true_values_leave_no_error_at_the_best_steps():
    """Targets are at most the true values, and equal them where a step leads nearer."""
    true = everything.value(0.9)
    both = lambda timestep: np.stack([true(timestep)] * 2)
    x = everything.steps()
    error = gcivl.value_loss(stub(value=both, target={"value": both}, hyper=HYPER), x).value
    best = everything.best(x)
    assert best.any() and not best.all()
    np.testing.assert_allclose(error[best], 0.0, atol=1e-9)
    # One step the other way costs one step more, or two.
    assert (error[~best] > 2 * 0.2 * (0.9**8 * 0.1) ** 2).all()
    # Values of a step more, or of a step fewer, are no fixed point.
    for shift in (1, -1):
        off = lambda timestep, s=shift: np.stack([true(timestep) + 0.5 * s] * 2)
        wrong = gcivl.value_loss(stub(value=off, target={"value": off}, hyper=HYPER), x).value
        assert (wrong[best] > 1e-5).all()


def test_the_side_of_the_expectile_is_that_of_the_target_networks():
    x = everything.steps()
    table = RNG.normal(size=(2, 2, everything.PLACES, everything.PLACES)).astype(np.float32)

    def read(table):
        places = everything.place
        return lambda t: table[:, places(t.observation), places(t.goal)]

    net = stub(value=read(table[0]), target={"value": read(table[1])}, hyper=HYPER)
    here, after = read(table[1])(x.timestep), read(table[1])(x.next_timestep)
    target = x.reward + 0.9 * ~np.asarray(x.terminated) * after
    least = x.reward + 0.9 * ~np.asarray(x.terminated) * after.min(0)
    side = np.where(least >= here.mean(0), 0.8, 0.2)
    expected = (side * (target - read(table[0])(x.timestep)) ** 2).sum(0)
    np.testing.assert_allclose(gcivl.value_loss(net, x).value, expected, rtol=1e-4)


def test_the_policy_imitates_by_the_gain_in_value_for_its_own_goal():
    x = everything.steps()
    other = np.roll(x.timestep.goal, 1, 0)
    x = dataclasses.replace(x, extras={"actor_goal": other})
    table = 3 * RNG.normal(size=(2, everything.PLACES, everything.PLACES)).astype(np.float32)
    value = lambda t: table[:, everything.place(t.observation), everything.place(t.goal)]
    log_prob = RNG.normal(size=len(x.reward)).astype(np.float32)
    net = stub(value=value, actor=lambda t: everything.policy(log_prob), hyper=HYPER)
    toward = lambda timestep: value(dataclasses.replace(timestep, goal=other))
    gain = (toward(x.next_timestep) - toward(x.timestep)).mean(0)
    weight = np.minimum(np.exp(gain / 0.5), LARGEST_WEIGHT)
    np.testing.assert_allclose(gcivl.actor_loss(net, x).value, -weight * log_prob, rtol=1e-4)


@pytest.mark.parametrize("name", ["gcivl", "gciql", "hiql", "ota", "hilp"])
def test_environments_in_which_no_goal_ends_an_episode_are_refused(name):
    with pytest.raises(UserError, match="goal ends the episode, which none does in 'reacher'"):
        registry.builder(name)[0](envs.make("reacher"), {"data.size": 128})
