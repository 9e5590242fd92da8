"""The kitchen: who gets a cell, what interacting does, soup from onions to plates, the script."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.grids import kitchen as kitchens

NORTH, SOUTH, WEST, EAST, INTERACT = range(1, 6)
SHAPING = {"placement": 3.0, "dish": 3.0, "pickup": 5.0}


def play(env, actions):
    """Play pairs of actions; return the states of the kitchen and the rewards."""
    step = jax.jit(env.step)
    state, _ = env.reset(random.key(0), env.params)
    states, rewards = [], []
    for pair in actions:
        chosen = dict(zip(env.agents, map(jnp.int32, pair), strict=True))
        state, timestep = step(random.key(1), state, chosen, env.params)
        states.append(state.inner)
        rewards.append(float(timestep.reward))
    return states, rewards


def test_soup_is_cooked_and_served():
    """The first cook does it all, from (2, 1) in the cramped room, while the other stays away."""
    fetch = [(WEST, 0), (INTERACT, 0)]  # at (1, 1), facing the onions
    bring = [(EAST, 0), (NORTH, 0), (INTERACT, 0), (WEST, 0)]
    start = [(NORTH, EAST)]
    env = make("kitchen", cook_time=3, **SHAPING)
    actions = start + (fetch + bring) * 3
    states, rewards = play(env, actions)
    assert states[-1].onions.tolist() == [3] and sum(rewards) == 9
    assert states[-1].cooked.tolist() == [2]  # from the step of the third onion on
    down = [(SOUTH, 0), (SOUTH, 0), (INTERACT, 0)]  # to (2, 1), facing the dishes
    back = [(NORTH, 0), (EAST, 0), (NORTH, 0), (INTERACT, 0)]
    out = [(SOUTH, EAST), (EAST, 0), (SOUTH, 0), (INTERACT, 0)]  # to (2, 3), facing the counter S
    states, rewards = play(env, actions + down + back + out)
    assert rewards[len(actions) + 2] == 3 and rewards[len(actions) + 6] == 5
    assert rewards[-1] == 20 and int(states[-1].delivered) == 1
    assert states[-1].onions.tolist() == [0] and states[-1].carried.tolist() == [0, 0]


def test_soup_that_is_not_done_stays_in_the_pot():
    env = make("kitchen", layout="XXPDX\nO1 2X\nXXXXX", onions=1, cook_time=20)
    take, bring = [(WEST, NORTH), (INTERACT, INTERACT)], [(EAST, 0), (NORTH, 0), (INTERACT, 0)]
    away = [(WEST, 0), (0, WEST), (0, NORTH)]
    states, _ = play(env, take + bring + away + [(0, INTERACT)])
    assert states[-1].carried.tolist() == [kitchens.NOTHING, kitchens.DISH]
    states, _ = play(env, take + bring + away + [(0, 0)] * 20 + [(0, INTERACT)])
    assert states[-1].carried.tolist() == [kitchens.NOTHING, kitchens.SOUP]
    assert states[-1].onions.tolist() == [0] and states[-1].cooked.tolist() == [0]


def test_no_dish_is_useful_while_nothing_cooks():
    env = make("kitchen", layout="XXPDX\nO1 2X\nXXXXX", **SHAPING)
    assert sum(play(env, [(0, INTERACT)])[1]) == 0
    begun = [(WEST, 0), (INTERACT, 0), (EAST, 0), (NORTH, 0), (INTERACT, 0)]
    assert play(env, [*begun, (0, INTERACT)])[1][-2:] == [3, 3]


def test_cooks_stay_where_both_want_a_cell_or_each_others():
    env = make("kitchen", layout="stove")
    states, _ = play(env, [(EAST, WEST)])
    assert states[0].crowd.place.tolist() == [[1, 1], [1, 3]]
    assert states[0].facing.tolist() == [EAST - 1, WEST - 1]
    states, _ = play(env, [(EAST, 0), (EAST, WEST), (EAST, 0), (WEST, WEST)])
    assert states[1].crowd.place.tolist() == [[1, 2], [1, 3]]  # would change places
    assert states[2].crowd.place.tolist() == [[1, 2], [1, 3]]
    assert states[3].crowd.place.tolist() == [[1, 1], [1, 2]]  # one follows the other


def test_counters_hold_things_and_the_first_cook_comes_first():
    layout = "XOXOX\nX1X2X\nXXPXX"
    env = make("kitchen", layout=layout)
    states, _ = play(env, [(INTERACT, INTERACT), (EAST, WEST), (INTERACT, INTERACT)])
    # Both face the counter between them: the first lays its onion there, the second keeps its own.
    assert states[2].carried.tolist() == [0, 1] and int(states[2].counter[1, 2]) == 1
    states, _ = play(env, [(INTERACT, 0), (EAST, WEST), (INTERACT, INTERACT)])
    assert states[2].carried.tolist() == [0, 1] and not states[2].counter.any()  # handed over
    bare = make("kitchen", layout=layout, counters=False)
    states, _ = play(bare, [(INTERACT, 0), (EAST, WEST), (INTERACT, 0)])
    assert states[2].carried.tolist() == [1, 0]


@pytest.mark.parametrize(("layout", "least"), [("cramped_room", 8), ("coordination_ring", 8)])
def test_the_script_makes_soup(layout, least):
    env = make("kitchen", layout=layout)
    script = env.expert
    assert script is not None

    def step(state, _):
        after, timestep = env.step(random.key(1), state, script(state, env.params), env.params)
        return after, timestep.reward

    start = env.reset(random.key(0), env.params)[0]
    state, rewards = jax.jit(lambda s: jax.lax.scan(step, s, None, 400))(start)
    assert int(state.inner.delivered) >= least
    np.testing.assert_allclose(rewards.sum(), 20 * state.inner.delivered)


def test_observations_are_each_cooks_own():
    check_environment(make("kitchen", layout="stove"))
    env = make("kitchen", layout="stove", counters=False)
    seen = env.reset(random.key(0), env.params)[1].observation
    one, two = (np.asarray(seen[n]) for n in env.agents)
    np.testing.assert_array_equal(one[:10], two[10:20])
    np.testing.assert_array_equal(one[10:20], two[:10])
    np.testing.assert_allclose(one[:2], [0, -0.5])  # the middle row, the second of five columns


def test_bad_layouts_are_refused():
    for layout in ("XX\nX", "XPX\n1 2\nXOX", "XPX\nO1X\nXXX"):
        with pytest.raises(UserError, match="The layout of 'kitchen'"):
            make("kitchen", layout=layout)
