"""SBD: segments, and the goals that follow from them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs, losses
from jaxrl.algorithms.goals import play_lmp, sbd
from jaxrl.core import random
from jaxrl.core.settings import replace
from jaxrl.core.types import Batch, Policy, TimeStep, Transition
from tests.algorithms.goals import everything

ENV = envs.make("goal_maze", layout="u_maze", observe="position")
CONFIG = replace(sbd.Config(), {"torso.hidden": (8,), "context": 6, "width": 8, "layers": 1})
LENGTH, N = 6, 2
# A skill begins at steps 2 and 5 of the first window, and at step 3 of the second.
BEGINS = np.zeros((LENGTH, N), bool)
BEGINS[[2, 5, 3], [0, 0, 1]] = True
LAST = np.array([[1, 1, 4, 4, 4, 5], [2, 2, 2, 5, 5, 5]]).T
KNOWN = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]], bool).T


def window():
    no, zero = np.zeros((LENGTH, N), bool), np.zeros((LENGTH, N), np.float32)
    place = np.arange(2.0 * LENGTH * N).reshape(LENGTH, N, 2).astype(np.float32)
    goal = np.cumsum(BEGINS, 0)[..., None] * np.ones(2, np.float32)  # changes where skills begin
    before = TimeStep(place, zero, no, no, no, goal=goal)
    after = TimeStep(place + 0.5, zero, no, no, no, goal=goal)
    time = np.broadcast_to(np.arange(LENGTH)[:, None], (LENGTH, N))
    x = Transition(before, np.zeros((LENGTH, N), np.int32), after, (), {"time": time})
    return jax.tree.map(jnp.asarray, x)


def test_segments_end_before_the_next_one_begins():
    found = sbd.segments(jnp.asarray(BEGINS))
    np.testing.assert_array_equal(found.last, LAST)
    np.testing.assert_array_equal(found.known, KNOWN)
    surprise = np.where(BEGINS, 3.0, 0.1)
    np.testing.assert_array_equal(losses.skill_boundaries(surprise, 1.0), BEGINS)


def test_boundaries_are_compared_with_changes_of_the_goal():
    begins = BEGINS.copy()
    begins[5, 0], begins[1, 1] = False, True  # one is missed, one is wrong
    found = sbd.compare(jnp.asarray(begins), window().timestep.goal)
    np.testing.assert_allclose(found["changes_found"].value(), 2 / 3)
    np.testing.assert_allclose(found["boundaries_right"].value(), 2 / 3)
    np.testing.assert_allclose(found["boundaries"].value(), 3 / 10)


def test_the_predictor_sees_neither_goals_nor_returns():
    x = window()
    steps = sbd.to_steps(ENV, x.timestep, x.action)
    np.testing.assert_array_equal(steps.features, x.observation)
    np.testing.assert_array_equal(steps.to_go, 0)
    np.testing.assert_array_equal(steps.time[:, 1], np.arange(LENGTH))


def test_each_piece_has_what_its_end_achieves_as_goal():
    x = window()
    pieces, known = sbd.relabel(ENV.goals, x, jnp.asarray(BEGINS))
    achieved = np.asarray(ENV.goals.achieved(x.next_observation))
    np.testing.assert_array_equal(pieces.timestep.goal, achieved[LAST, np.arange(N)])
    np.testing.assert_array_equal(known, KNOWN)
    np.testing.assert_array_equal(pieces.observation, x.observation)


@pytest.mark.slow
def test_the_policy_learns_after_the_predictor_and_from_whole_pieces(monkeypatch):
    """The predictor here is surprised where skills begin."""
    monkeypatch.setattr(sbd, "action_error", lambda *_: jnp.where(BEGINS, 3.0, 0.1))
    agent = sbd.sbd.agent(ENV, replace(CONFIG, {"predictor_steps": 1.0}))
    update = jax.jit(agent.update)
    batch = Batch(window(), jnp.float32(0), mask=jnp.ones((LENGTH, N), bool))
    state = jax.jit(agent.init)(random.key(0), agent.hyper)
    first, info = update(state, batch, random.key(1))
    second, _ = update(first, batch, random.key(2))
    np.testing.assert_allclose(info.metrics["changes_found"].value(), 1.0)

    def differs(a, b, part):
        pairs = (jax.tree.leaves(x.parts[part].params) for x in (a, b))
        return any((p != q).any() for p, q in zip(*pairs, strict=True))

    assert not differs(state, first, "actor") and differs(first, second, "actor")
    assert not differs(first, second, "predictor")
    # Actions of pieces without an end are not learned from.
    x = batch.transitions
    other = dataclasses.replace(x, action=jnp.where(KNOWN, x.action, 1))
    third, _ = update(first, dataclasses.replace(batch, transitions=other), random.key(2))
    assert not differs(second, third, "actor")


@pytest.mark.parametrize("builder", [sbd.sbd, play_lmp.play_lmp], ids=lambda b: b.name)
def test_windows_of_play_without_ends_exist(builder):
    """Play goes on through all goals, so its record has no whole episode."""
    data = {"data.size": 64, "data.streams": 2, "data.batch_size": 8}
    config = replace(builder.Config(), data)
    source = builder.source(everything.ENV, config)
    nobody = Policy(lambda *_: ((), (), {}), lambda n: (), ())

    @jax.jit
    def draw(key):
        state = source.init(key, source.hyper, nobody)
        return source.sample(state, source.collect(state, nobody, key)[1], key)

    batch = draw(random.key(0))
    assert batch.mask.all() and batch.transitions.reward.shape == (32, 8)
    np.testing.assert_array_equal(jnp.diff(batch.transitions.extras["time"], axis=0), 1)
