"""Crafting: its rules against a simulator in plain Python, its levels, and that all of the tree of
achievements can be reached."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.check import check_environment
from jaxrl.envs.grids import crafting

N, STEPS = 64, 120
MOVES = [(0, 1), (1, 0), (0, -1), (-1, 0)]
TREE, STONE, COAL, IRON, DIAMOND, TABLE, FURNACE = range(2, 9)


@functools.cache
def play():
    """Play the expert, in the second half of the levels with random actions every other time;
    returns states and time steps from the first on, and actions, on the host."""
    env = envs.make("crafting", max_steps=STEPS + 1)

    @jax.jit
    def run(keys):
        state, first = jax.vmap(env.reset, (0, None))(keys, env.params)

        def body(state, key):
            best = jax.vmap(env.expert, (0, None))(state, env.params)
            some, whether = jax.random.split(key)
            other = jax.random.randint(some, (N,), 0, crafting.ACTIONS)
            noisy = jax.random.bernoulli(whether, 0.5, (N,)) & (jnp.arange(N) >= N // 2)
            action = jnp.where(noisy, other, best)
            after, timestep = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, env.params)
            return after, (after, timestep, action)

        return state, first, jax.lax.scan(body, state, jax.random.split(keys[0], STEPS))[1]

    state, first, (after, timesteps, actions) = run(jax.random.split(random.key(3), N))
    state, after = state.inner, after.inner
    join = lambda a, b: np.concatenate([np.asarray(a)[None], b])
    states = jax.tree.map(join, state, after)
    return states, jax.tree.map(join, first, timesteps), np.asarray(actions)


def simulate(grid, row, column, facing, items, done, action):
    """Take a step by the rules of the docstring; items and done are changed in place."""
    near = lambda kind: any(
        grid[r, c] == kind
        for r in range(max(row - 2, 0), min(row + 3, len(grid)))
        for c in range(max(column - 2, 0), min(column + 3, len(grid)))
    )
    if action < 4:
        facing = action
    front = (row + MOVES[facing][0], column + MOVES[facing][1])
    wood, stone, coal, iron, wood_pick, stone_pick, iron_pick = items
    name = ""
    if action < 4 and grid[front] == 0:
        row, column = front
    elif action == 4:
        collected = {
            TREE: (0, True, "collect_wood"),
            STONE: (1, wood_pick, "collect_stone"),
            COAL: (2, wood_pick, "collect_coal"),
            IRON: (3, stone_pick, "collect_iron"),
            DIAMOND: (None, iron_pick, "collect_diamond"),
        }
        item, able, what = collected.get(grid[front], (None, False, ""))
        if able:
            name = what
            if item is not None:
                items[item] = min(items[item] + 1, 9)
            if grid[front] != TREE:
                grid[front] = 0
    elif action == 5 and wood >= 2 and grid[front] == 0:
        items[0] -= 2
        grid[front], name = TABLE, "place_table"
    elif action == 6 and stone >= 2 and near(TABLE) and grid[front] == 0:
        items[1] -= 2
        grid[front], name = FURNACE, "place_furnace"
    elif action == 7 and wood >= 1 and near(TABLE):
        items[0] -= 1
        items[4], name = 1, "make_wood_pickaxe"
    elif action == 8 and wood >= 1 and stone >= 1 and near(TABLE):
        items[:2] -= 1
        items[5], name = 1, "make_stone_pickaxe"
    elif action == 9 and wood * coal * iron >= 1 and near(TABLE) and near(FURNACE):
        items[[0, 2, 3]] -= 1
        items[6], name = 1, "make_iron_pickaxe"
    if name:
        done[crafting.ACHIEVEMENTS.index(name)] = True
    return row, column, facing


def test_states_and_rewards_follow_the_rules():
    states, timesteps, actions = play()
    for n in range(N):
        grid, items = states.grid[0, n].copy(), states.carried[0, n].copy()
        done = states.achieved[0, n].copy()
        place = states.row[0, n], states.column[0, n], states.facing[0, n]
        assert not items.any() and not done.any()
        for t, action in enumerate(actions[:, n], 1):
            before = done.sum()
            place = simulate(grid, *place, items, done, action)
            np.testing.assert_array_equal(states.grid[t, n], grid)
            np.testing.assert_array_equal(states.carried[t, n], items)
            np.testing.assert_array_equal(states.achieved[t, n], done)
            assert (states.row[t, n], states.column[t, n], states.facing[t, n]) == place
            assert timesteps.reward[t, n] == done.sum() - before
            assert timesteps.terminated[t, n] == done.all()
    assert len(np.unique(actions)) == crafting.ACTIONS
    names = {name: timesteps.metrics[name] for name in crafting.ACHIEVEMENTS}
    np.testing.assert_array_equal(np.stack(list(names.values()), -1), states.achieved)
    np.testing.assert_array_equal(timesteps.metrics["achievements"], states.achieved.sum(-1))
    np.testing.assert_array_equal(timesteps.metrics["success"], states.achieved.all(-1))


@pytest.mark.parametrize(("furnace", "made"), [((5, 3), True), ((5, 2), False)])
def test_the_iron_pickaxe_needs_a_furnace_within_two_cells(furnace, made):
    grid = np.zeros((11, 11), np.uint8)
    grid[5, 6], grid[furnace] = TABLE, FURNACE
    at, items = jnp.int32(5), jnp.array([1, 0, 1, 1, 1, 1, 0])
    done = jnp.zeros(10, bool)
    state = crafting.State(jnp.asarray(grid), at, at, jnp.int32(0), items, done)
    after = jax.jit(crafting.act)(state, jnp.int32(9))
    assert after.achieved[8] == made and after.carried[6] == made
    np.testing.assert_array_equal(after.carried[:4], 0 * items[:4] if made else items[:4])


def test_the_expert_reaches_the_whole_tree_in_order():
    states, _, _ = play()
    achieved = states.achieved[:, : N // 2]
    assert achieved[-1].all()
    when = achieved.argmax(0)  # [N / 2, 10]
    needs = {
        1: (0,),
        2: (1,),
        3: (2,),
        4: (1, 3),
        5: (2,),
        6: (1, 3),
        7: (4,),
        8: (5, 6, 7),
        9: (8,),
    }
    for later, earlier in needs.items():
        assert (when[:, list(earlier)] < when[:, [later]]).all()
    assert states.achieved[-1].all(-1).mean() > 0.6  # many with every second action by chance, too


def test_observations_show_the_cells_around_what_is_carried_and_the_direction():
    states, timesteps, _ = play()
    rng = np.random.default_rng(0)
    for t, n in zip(rng.integers(0, STEPS, 40), rng.integers(0, N, 40), strict=True):
        wide = np.pad(states.grid[t, n], 3, constant_values=1)
        row, column = states.row[t, n], states.column[t, n]
        cells = wide[row : row + 7, column : column + 7].reshape(-1)
        expected = [np.eye(9)[cells].reshape(-1), states.carried[t, n] / 9]
        expected.append(np.eye(4)[states.facing[t, n]])
        np.testing.assert_allclose(timesteps.observation[t, n], np.concatenate(expected), rtol=1e-6)


def test_levels_hold_everything_and_cut_nothing_off():
    states, _, _ = play()
    assert len(np.unique(states.facing[0])) == 4  # every side has the stone in some level
    for grid, row, column in zip(states.grid[0], states.row[0], states.column[0], strict=True):
        count = np.bincount(grid.reshape(-1), minlength=9)
        assert (count[[TREE, COAL, IRON, DIAMOND, TABLE, FURNACE]] == [4, 2, 2, 1, 0, 0]).all()
        assert grid[row, column] == 0 and 36 <= count[STONE] + 5 <= 45
        for kind in (TREE, COAL, IRON, DIAMOND):
            assert (np.argwhere(grid == kind) % 2 == 0).all()
        reached, ahead = {(row, column)}, [(row, column)]
        while ahead:
            r, c = ahead.pop()
            for dr, dc in MOVES:
                place = r + dr, c + dc
                if place not in reached and grid[place] != 1:
                    reached.add(place)
                    ahead += [place] if grid[place] in (0, STONE) else []
        assert len(reached) == 81


@pytest.mark.slow
def test_it_keeps_the_rules_of_environments_and_is_drawn():
    env = envs.make("crafting", max_steps=20)
    check_environment(env, steps=8)
    state, _ = env.reset(random.key(0), env.params)
    assert env.render is not None
    empty = env.render(state, env.params)
    states, _, _ = play()
    late = jax.tree.map(lambda x: x[-1, 0], states)
    full = env.render(dataclasses.replace(state, inner=late), env.params)
    assert empty.shape == full.shape and empty.dtype == np.uint8 and (empty != full).any()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"size": 10}, "an odd integer from 11 up"),
        ({"view": 4}, "an odd integer from 3 up"),
        ({"max_steps": 0}, "an integer from 1 up"),
    ],
)
def test_impossible_rooms_are_refused(settings, says):
    with pytest.raises(UserError, match=says):
        envs.make("crafting", **settings)
