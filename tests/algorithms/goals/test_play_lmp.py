"""Play-LMP: its loss, what its three networks see, and how long plans are kept."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.algorithms.goals import play_lmp
from jaxrl.algorithms.goals.play_lmp import Plans
from jaxrl.core import random
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import TimeStep, Transition
from tests.kit.stub import losses_of, stub

ENV = envs.make("goal_maze", layout="u_maze", observe="position")
SETTINGS = {"torso.hidden": (8,), "horizon": 3, "replan": 3, "plan": 2, "recurrent": 4}
CONFIG = replace(play_lmp.Config(), SETTINGS)
RECIPE = play_lmp.recipe(ENV, Static(CONFIG))
LENGTH, N = 3, 2
RNG = np.random.default_rng(0)


def window():
    """Windows whose steps are numbered, and whose own goals are nowhere."""
    no, zero = np.zeros((LENGTH, N), bool), np.zeros((LENGTH, N), np.float32)
    place = np.arange(2.0 * LENGTH * N).reshape(LENGTH, N, 2).astype(np.float32)
    nowhere = np.full((LENGTH, N, 2), -99.0, np.float32)
    before = TimeStep(place, zero, no, no, no, goal=nowhere)
    after = TimeStep(place + 0.5, zero, no, no, no, goal=nowhere)
    action = RNG.integers(0, 4, (LENGTH, N))
    return jax.tree.map(jnp.asarray, Transition(before, action, after, (), {}))


def test_the_loss_is_that_of_actions_under_a_recognized_plan_which_the_proposal_must_tell():
    x, seen = window(), {}
    log_prob = RNG.normal(size=(LENGTH, N)).astype(np.float32)
    mean, other = RNG.normal(size=(2, N, 2)).astype(np.float32)
    scale, wider = np.full((N, 2), 0.5, np.float32), np.full((N, 2), 2.0, np.float32)

    def recognition(timestep, action):
        seen["recognition"] = action
        return Plans(mean, scale)

    def proposal(timestep):
        seen["proposal"] = timestep
        return Plans(other, wider)

    def actor(timestep, plan):
        seen.update(actor=timestep, plan=plan)
        return types.SimpleNamespace(log_prob=lambda action: log_prob)

    net = stub(
        recognition=recognition,
        proposal=proposal,
        actor=actor,
        key=lambda: random.key(3),
        hyper={"beta": 0.3},
    )
    output = losses_of(RECIPE)["plan_loss"](net, x)
    divergence = (
        np.log(wider / scale) + (scale**2 + (mean - other) ** 2) / (2 * wider**2) - 0.5
    ).sum(-1)
    expected = np.broadcast_to(-log_prob.mean(0) + 0.3 * divergence, (LENGTH, N))
    np.testing.assert_allclose(output.value, expected, rtol=1e-5)
    goal = np.asarray(ENV.goals.achieved(x.next_observation[-1]))
    np.testing.assert_array_equal(seen["proposal"].goal, goal)
    np.testing.assert_array_equal(seen["proposal"].observation, x.observation[0])
    np.testing.assert_array_equal(seen["actor"].goal, np.broadcast_to(goal, (LENGTH, *goal.shape)))
    np.testing.assert_array_equal(seen["actor"].observation, x.observation)
    drawn = mean + scale * jax.random.normal(random.key(3), (N, 2))
    np.testing.assert_allclose(seen["plan"], np.broadcast_to(drawn, (LENGTH, N, 2)), rtol=1e-5)
    np.testing.assert_array_equal(seen["recognition"], x.action)


def test_recognition_sees_every_step_of_the_window_and_not_the_goal():
    network = play_lmp.PlanRecognition(ENV.observation_space, ENV.action_space, 4, 2)
    x = window()
    params = network.init(random.key(0), x.timestep, x.action)
    plan = jax.jit(lambda timestep, action: network.apply(params, timestep, action).mean)
    before = plan(x.timestep, x.action)
    for step in range(LENGTH):
        moved = x.observation.at[step].add(1.0)
        assert (plan(dataclasses.replace(x.timestep, observation=moved), x.action) != before).any()
        other = x.action.at[step].set((x.action[step] + 1) % 4)
        assert (plan(x.timestep, other) != before).any()
    elsewhere = dataclasses.replace(x.timestep, goal=x.timestep.goal + 7)
    np.testing.assert_array_equal(plan(elsewhere, x.action), before)


@pytest.mark.slow
def test_a_plan_is_kept_for_some_steps_of_an_episode():
    agent = play_lmp.play_lmp.agent(ENV, CONFIG)
    state = jax.jit(agent.init)(random.key(0), agent.hyper)
    act = jax.jit(lambda *given: agent.act(state, *given, False))
    no = jnp.zeros(2, bool)
    memory, plans = agent.memory(2), []
    for i in range(8):
        first = jnp.array([i in (0, 4), i == 0])  # the first stream begins anew at step 4
        zero = jnp.zeros((2, 2))
        timestep = TimeStep(zero, jnp.zeros(2), no, no, first, goal=zero)
        _, memory, _ = act(timestep, memory, random.key(i))
        plans.append(np.asarray(memory.plan[:, 0]))
    changes = np.diff(np.stack(plans), axis=0) != 0
    np.testing.assert_array_equal(np.flatnonzero(changes[:, 0]) + 1, [3, 4, 7])
    np.testing.assert_array_equal(np.flatnonzero(changes[:, 1]) + 1, [3, 6])
