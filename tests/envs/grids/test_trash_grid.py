"""The trash grid: its rules at known states, its subgoals, and the expert."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import crowd as crowds
from jaxrl.envs.grids.trash_grid import BIG, GONE, PICK, PUT, SMALL, SPLIT, State
from jaxrl.envs.policies import expert_policy, random_policy
from jaxrl.envs.wrappers import expert_channel
from jaxrl.evaluation.evaluate import evaluate

NORTH, EAST = 1, 4


def _start(place, load, trash, kind, delivered=0, at=(0, 0)):
    """Return an environment of two agents, and a state."""
    env = make("trash_grid", size=4, pieces=len(kind), big=0)
    crowd = crowds.gather(jnp.asarray(place))
    numbers = lambda x: jnp.asarray(x, jnp.int32)
    inner = State(crowd, *map(numbers, (load, trash, kind, at, delivered)))
    outer = type(env.reset(random.key(0), env.params)[0])
    return env, outer(inner, jnp.zeros((), jnp.int32))


def _step(env, state, first, second):
    action = {"agent_0": jnp.int32(first), "agent_1": jnp.int32(second)}
    state, timestep = env.step(random.key(1), state, action, env.params)
    return state.inner, timestep


def test_it_keeps_the_rules_of_environments():
    check_environment(make("trash_grid", agents=3, size=5))


def test_agents_pick_up_what_is_small_and_compress_what_is_big():
    env, start = _start([[1, 1], [2, 2]], [0, 0], [[1, 1], [2, 2]], [SMALL, BIG])
    state, timestep = _step(env, start, PICK, PICK)  # the second is illegal
    np.testing.assert_array_equal(state.kind, [GONE, BIG])
    np.testing.assert_array_equal(state.load, [1, 0])
    np.testing.assert_array_equal(
        timestep.privileged["reached"], [[True, False, False], [False, False, False]]
    )
    state, timestep = _step(env, start, SPLIT, SPLIT)  # the first is illegal
    np.testing.assert_array_equal(state.kind, [SMALL, SMALL])
    np.testing.assert_array_equal(
        timestep.privileged["reached"], [[False, False, False], [False, True, False]]
    )
    assert timestep.reward == 0


def test_full_hands_pick_up_nothing():
    env, start = _start([[1, 1], [2, 2]], [3, 0], [[1, 1]] + [[3, 3]] * 3, [SMALL] + [GONE] * 3)
    state, timestep = _step(env, start, PICK, 0)
    np.testing.assert_array_equal(state.load, [3, 0])
    np.testing.assert_array_equal(  # which the other can still do
        timestep.privileged["possible"], [[False, False, True], [True, False, False]]
    )


@pytest.mark.parametrize(("place", "near"), [([0, 0], True), ([0, 1], True), ([1, 1], False)])
def test_trash_comes_into_the_bin_from_beside_it(place, near):
    env, start = _start([place, [3, 3]], [2, 0], [[2, 2]] * 3, [GONE, GONE, SMALL])
    state, timestep = _step(env, start, PUT, 0)
    np.testing.assert_array_equal(state.load, [0 if near else 2, 0])
    np.testing.assert_allclose(timestep.reward, 2 / 3 if near else 0)
    np.testing.assert_allclose(timestep.metrics["delivered"], 2 / 3 if near else 0)
    assert not timestep.terminated


def test_it_ends_when_all_trash_is_in_the_bin():
    env, start = _start([[0, 1], [3, 3]], [1, 0], [[2, 2]] * 2, [GONE, GONE], delivered=1)
    _, timestep = _step(env, start, PUT, 0)
    assert timestep.terminated
    assert timestep.metrics["delivered"] == 1
    # Nothing is left to do, so every subgoal may be chosen.
    assert timestep.privileged["possible"].all()


def test_observations_say_where_things_are():
    env, start = _start([[1, 2], [3, 0]], [1, 2], [[0, 2], [3, 3]], [SMALL, GONE], at=(2, 2))
    state, timestep = _step(env, start, NORTH, EAST)
    np.testing.assert_array_equal(state.crowd.place, [[0, 2], [3, 1]])
    expected = [0, 2 / 4, 2 / 4, 0, 1 / 3, 3 / 4, -1 / 4, 2 / 3, 0, 0, 1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(timestep.observation["agent_0"], expected, atol=1e-6)


def test_the_expert_delivers_what_random_agents_do_not():
    env = make("trash_grid")
    returns = lambda env, policy: evaluate(env, policy, random.key(0), 64).returns.mean()
    told = expert_channel(env)
    assert returns(told, expert_policy(told)) > 0.9
    assert returns(env, random_policy(env)) < 0.3


def test_starts_are_apart():
    env = make("trash_grid", big=1, pieces=3)
    keys = jax.random.split(random.key(2), 100)
    state = jax.vmap(env.reset, (0, None))(keys, env.params)[0].inner
    places = np.concatenate([state.crowd.place, state.trash, state.bin[:, None]], 1)
    cells = places[..., 0] * 6 + places[..., 1]
    assert all(len(set(row)) == 6 for row in cells)
    np.testing.assert_array_equal(state.kind[0], [BIG, SMALL, SMALL])


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="pieces"):
        make("trash_grid", pieces=1, big=2)
