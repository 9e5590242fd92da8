"""Cloning with goals in hindsight: the data that it learns from, its loss, and refusals."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import gcbc
from jaxrl.algorithms.goals.shared.data import Played
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs.goals import set_new_goals
from tests.algorithms.goals import everything
from tests.kit.stub import stub

NOBODY = Policy(lambda *_: ((), (), {}), lambda n: (), ())


def play(**settings):
    source = Played(size=800, streams=4, batch_size=2, **settings).source(everything.ENV)
    state = jax.jit(lambda key: source.init(key, {}, NOBODY))(random.key(0))
    return jax.tree.map(np.asarray, state.data)


def test_its_loss_imitates_the_data():
    x = everything.steps()
    log_prob = -np.arange(len(x.reward), dtype=np.float32)
    net = stub(actor=lambda timestep: everything.policy(log_prob))
    np.testing.assert_allclose(gcbc.actor_loss(net, x), -log_prob)


@pytest.mark.slow
def test_experts_take_the_shortest_way_and_noise_takes_longer():
    data = play(players="expert")
    x = data.transitions
    left = everything.distance(x.observation, x.timestep.goal)
    whole = data.whole
    np.testing.assert_array_equal((data.end - np.arange(len(left)))[whole] + 1, left[whole])
    noisy = play(players="noisy", noise=0.5)
    better = lambda data: everything.best(data.transitions).mean()
    assert better(data) == 1
    # Random actions are right by a third or so: half of 4 actions at a door, 1 of 4 in a room.
    assert 0.6 < better(noisy) < 0.8


def test_play_goes_on_to_new_goals():
    data = play(players="play", noise=0.0)
    x = data.transitions
    reached = (x.next_observation == x.timestep.goal).all(-1)
    assert not x.terminated.any() and not x.truncated.any() and reached.mean() > 0.15
    np.testing.assert_array_equal(x.reward, reached)
    same = (x.next_timestep.goal == x.timestep.goal).all(-1)
    np.testing.assert_array_equal(same[~reached], True)
    assert same[reached].mean() < 0.5
    # A step begins with the goal, and at the place, that the step before it ended with.
    inner = data.end != np.arange(len(reached))
    np.testing.assert_array_equal(
        x.timestep.goal[1:][inner[:-1]], x.next_timestep.goal[:-1][inner[:-1]]
    )
    np.testing.assert_array_equal(
        x.observation[1:][inner[:-1]], x.next_observation[:-1][inner[:-1]]
    )
    # A goal takes so many steps as it is far away.
    arrivals = np.flatnonzero(reached & inner)
    for arrival, following in itertools.pairwise(arrivals):
        if data.end[arrival] == data.end[following]:
            begin = x.next_observation[arrival], x.next_timestep.goal[arrival]
            far = everything.distance(*begin)
            assert following - arrival == (far if far > 0 else following - arrival)


def test_bad_settings():
    tiny = {k: v for k, v in gcbc.TINY.items() if not k.startswith("env")}
    changing = envs.make("one_way_doors")
    for make, what in (
        (lambda: gcbc.gcbc(envs.make("cartpole"), tiny), "gcbc learns to reach goals; 'cartpole'"),
        (
            lambda: gcbc.gcbc(
                everything.ENV, {**tiny, "actor_goals.here": 0.7, "actor_goals.elsewhere": 0.7}
            ),
            "at most 1 together",
        ),
        (lambda: set_new_goals(changing), "do not tell its state"),
        (lambda: set_new_goals(dataclasses.replace(changing, goals=None)), "has no goals"),
    ):
        with pytest.raises(UserError, match=what):
            make()
