"""Rules, numbered levels and optimal experts of every grid environment."""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import envs
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs.check import check_environment
from jaxrl.envs.grids import cells, empty, goal_maze, minigrid, paths

LEVELS = 200  # number of fresh levels
NUMBERS = np.array([-1] * LEVELS + [1] * 8 + [2, 3], np.int32)
# Small, but with every mechanism.
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "empty": {"size": 6, "random_start": True},
    "door_key": {"size": 5},
    "multi_room": {"rooms": 2, "max_room_size": 5, "size": 11},
    "key_corridor": {"rows": 2},
    "memory": {"size": 7},
    "t_maze": {"length": 4, "noisy": True},
    "one_way_doors": {"room_size": 4},
    "goal_maze": {},
    "hazards": {"size": 7},
    "lava_crossing": {"size": 7, "crossings": 2},
    "lava_gap": {"size": 5},
}
GOAL_ENVIRONMENTS = ("goal_maze", "one_way_doors")


@functools.cache
def _environment(name: str) -> Any:
    return envs.make(name, **ENVIRONMENTS[name])


def _with(env: Any, level: Any) -> Any:
    return dataclasses.replace(env.params, level=level)


@functools.cache
def _episodes(name: str) -> Any:
    """Play the expert in levels `NUMBERS`: return first states and time steps, and then states,
    time steps and whether the episode was over, on the host, without the clock's states."""
    env = _environment(name)

    @jax.jit
    def run(keys, levels):
        reset = lambda key, level: env.reset(key, _with(env, level))
        expert = lambda state, level: env.expert(state, _with(env, level))
        step = lambda key, state, action, level: env.step(key, state, action, _with(env, level))
        states, first = jax.vmap(reset)(keys, levels)

        def body(carry, key):
            state, done = carry
            action = jax.vmap(expert)(state, levels)
            keys = jax.random.split(key, len(NUMBERS))
            after, timestep = jax.vmap(step)(keys, state, action, levels)
            return (after, done | timestep.done), (after, timestep, done)

        steps = min(env.max_steps, 64)
        none = jnp.zeros(keys.shape, bool)
        _, path = jax.lax.scan(body, (states, none), jax.random.split(keys[0], steps))
        return states, first, path

    keys = jax.random.split(random.key(7), len(NUMBERS))
    states, first, (after, timesteps, over) = run(keys, jnp.asarray(NUMBERS))
    states, after = (_with_room(name, x.inner) for x in (states, after))
    return jax.device_get((states, first, after, timesteps, over))


@functools.cache
def _fresh_episodes(name: str) -> Any:
    """Return the episodes in the fresh levels."""
    start, path = _episodes(name)[:2], _episodes(name)[2:]
    return *_select(start, slice(LEVELS)), *_select(path, (slice(None), slice(LEVELS)))


def _select(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def _with_room(name: str, states: Any) -> Any:
    """Add the room of `empty`, which is not part of its state."""
    if name != "empty":
        return states
    room = np.full((6, 6), cells.WALL, np.uint8)
    room[1:-1, 1:-1], room[4, 4] = cells.EMPTY, cells.GOAL
    return dataclasses.replace(states, grid=np.broadcast_to(room, (*states.row.shape, 6, 6)))


# One of each kind of program; the others use the same functions with another generator.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty", "door_key", "memory", "t_maze", "goal_maze", "hazards"])
def test_it_keeps_the_rules(name):
    check_environment(_environment(name), steps=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_observations_lie_in_their_space(name):
    space = _environment(name).observation_space
    _, first, _, timesteps, _ = _fresh_episodes(name)
    for seen in (first.observation, timesteps.observation):
        assert seen.dtype == space.dtype and seen.shape[-len(space.shape) :] == space.shape
        assert np.all(seen >= space.low) and np.all(seen <= space.high)
    assert np.all(first.first) and not np.any(timesteps.first)
    assert not np.any(timesteps.terminated & timesteps.truncated)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_expert_succeeds_in_every_level(name):
    _, _, _, timesteps, over = _fresh_episodes(name)
    if name == "hazards":
        assert np.all(timesteps.metrics["goals"][-1] >= 3)
        return
    success = (timesteps.metrics["success"] > 0) & ~over
    assert np.all(success.sum(0) == 1)
    assert np.all(timesteps.terminated[success])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_level_is_named_by_its_number(name):
    start = _episodes(name)[0]

    def different(a, b):
        pairs = zip(*(jax.tree.leaves(_select(start, i)) for i in (a, b)), strict=True)
        return any(np.any(x != y) for x, y in pairs)

    assert not any(different(LEVELS, LEVELS + i) for i in range(1, 8))  # whatever the key
    assert any(different(LEVELS, LEVELS + i) for i in (8, 9))
    assert any(different(0, i) for i in range(1, 9))


# ------------------------------------------------------------------------------- best ways


def _fewest_actions(state: Any) -> int:
    """Search breadth first over place, heading, and the states of the hand and the door."""
    grid = np.asarray(state.grid)
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    start: tuple[int, int, int, bool, bool] = (
        int(state.row),
        int(state.column),
        int(state.heading),
        False,
        False,
    )
    queue: Any = collections.deque([(start, 0)])
    seen: set[Any] = {start}
    while queue:
        (row, column, heading, has_key, opened), depth = queue.popleft()
        if grid[row, column] & 15 == cells.GOAL_KIND:
            return depth
        front = (row + steps[heading][0], column + steps[heading][1])
        kind = grid[front] & 15
        shut = kind == cells.CLOSED or (kind == cells.LOCKED and not opened)
        wall = kind in (cells.WALL_KIND, cells.LAVA) or shut or (kind == cells.KEY and not has_key)
        options = [(row, column, (heading + turn) % 4, has_key, opened) for turn in (1, 3)]
        if not wall:
            options.append((*front, heading, has_key, opened))
        if kind == cells.KEY:
            options.append((row, column, heading, True, opened))
        if kind == cells.LOCKED and has_key:
            options.append((row, column, heading, has_key, True))
        for option in options:
            if option not in seen:
                seen.add(option)
                queue.append((option, depth + 1))
    raise AssertionError("there is no path")


@pytest.mark.parametrize("name", ["empty", "door_key", "lava_crossing", "lava_gap"])
def test_the_expert_takes_the_fewest_actions(name):
    states, _, _, _, over = _fresh_episodes(name)
    lengths = (~over).sum(0)
    for level in range(40):
        best = _fewest_actions(jax.tree.map(lambda x, i=level: x[i], states))
        assert lengths[level] == best


def _distances(grid: np.ndarray, goal: tuple[int, int]) -> np.ndarray:
    """Return compass steps from every cell to `goal`, by a backward breadth-first search."""
    distance = np.full(grid.shape, -1)
    distance[goal] = 0
    queue = collections.deque([goal])
    while queue:
        row, column = queue.popleft()
        code = int(grid[row, column])
        for direction, (down, right) in enumerate(((0, 1), (1, 0), (0, -1), (-1, 0))):
            if code & 15 == cells.ONE_WAY and code >> 4 & 7 != direction:
                continue  # can be entered only from elsewhere
            back = (row - down, column - right)
            if grid[back] != cells.WALL and distance[back] < 0:
                distance[back] = distance[row, column] + 1
                queue.append(back)
    return distance


@jax.jit
@jax.vmap
def _by_compass(grid, goal):
    rows, columns = (np.arange(n) for n in grid.shape)
    targets = (rows[:, None] == goal[0]) & (columns == goal[1])
    return paths.by_compass(paths.entering(grid), targets)


@pytest.mark.parametrize("name", GOAL_ENVIRONMENTS)
def test_distances_are_those_of_a_search_and_the_expert_walks_them(name):
    states, _, _, _, over = _fresh_episodes(name)
    found = np.asarray(_by_compass(states.grid[:20], states.goal[:20]))
    lengths, asymmetric = (~over).sum(0), 0
    for level in range(20):
        grid, start, goal = states.grid[level], states.position[level], states.goal[level]
        distance = _distances(grid, tuple(goal))
        assert np.all(distance[grid != cells.WALL] >= 0)  # from everywhere
        free = distance >= 0
        np.testing.assert_array_equal(found[level][free], distance[free])
        assert lengths[level] == distance[tuple(start)]
        asymmetric += _distances(grid, tuple(start))[tuple(goal)] != distance[tuple(start)]
    assert (asymmetric > 5) == (name == "one_way_doors")


def test_random_mazes_are_perfect():
    states, *_ = _fresh_episodes("goal_maze")
    n = states.grid.shape[1] // 2
    free = states.grid == cells.EMPTY
    assert np.all(free.sum((1, 2)) == 2 * n * n - 1)  # connected, as tested above, so it is a tree
    assert len(np.unique(free.reshape(LEVELS, -1), axis=0)) == LEVELS
    links = free[:, 1:-1:2, 2:-1:2].mean((0, 1, 2)), free[:, 2:-1:2, 1:-1:2].mean((0, 1, 2))
    assert links[0] == pytest.approx(links[1], abs=0.03)  # neither direction is preferred


@pytest.mark.parametrize("name", GOAL_ENVIRONMENTS)
@pytest.mark.parametrize("observe", ["planes", "position"])
def test_the_achieved_goal_is_the_goal_on_arrival(name, observe):
    env: Any = envs.make(name, observe=observe, **ENVIRONMENTS[name])
    scale = (np.array(_fresh_episodes(name)[0].grid.shape[1:]) - 1) / 2
    _, _, states, timesteps, over = _fresh_episodes(name)
    observation = timesteps.observation
    if observe == "position":
        observation = (states.position / scale - 1).astype(np.float32)
    achieved = np.asarray(env.goals.achieved(observation))
    np.testing.assert_allclose(achieved, states.position / scale - 1, atol=1e-6)
    reward, there = env.goals.outcome(achieved, timesteps.goal, env.params)
    np.testing.assert_array_equal(np.asarray(there)[~over], timesteps.terminated[~over])
    np.testing.assert_array_equal(np.asarray(reward)[~over], timesteps.reward[~over])


# ------------------------------------------------------------------------- single environments


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"full": True}, {"see_through": False}])
def test_views_from_the_table_equal_computed_views(settings, monkeypatch):
    settings = {"size": 6, "random_start": True} | settings
    from_table = envs.make("empty", **settings)
    monkeypatch.setattr(minigrid, "_LARGEST_TABLE", 0)
    computed = empty.empty.__wrapped__(**settings)

    def play(env, key):
        state, first = env.reset(key, env.params)
        action = jax.random.randint(key, (), 0, 3)
        return first, env.step(key, state, action, env.params)[1]

    keys = jax.random.split(random.key(2), 2000)  # all places and headings, many times
    both = [jax.jit(jax.vmap(lambda k, e=e: play(e, k)))(keys) for e in (from_table, computed)]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert len(np.unique(both[0][0].observation.reshape(2000, -1), axis=0)) > 4


@pytest.mark.parametrize("layout", goal_maze.LAYOUTS)
def test_layouts_are_closed_and_connected(layout):
    grid = goal_maze.parse(goal_maze.LAYOUTS[layout])
    free = np.argwhere(grid == cells.EMPTY)
    assert np.all(free > 0) and np.all(free < np.array(grid.shape) - 1)
    distance = _distances(grid, tuple(free[0]))
    assert np.all(distance[grid == cells.EMPTY] >= 0)
    assert envs.make("goal_maze", layout=layout).observation_space.shape == (*grid.shape, 2)


def test_hazards_cost_and_goals_are_rewarded():
    states, _, after, timesteps, _ = _fresh_episodes("hazards")
    before = np.concatenate([states.grid[None], after.grid[:-1]])
    t, level = np.mgrid[: len(before), :LEVELS]
    entered = before[t, level, after.row, after.column]
    np.testing.assert_array_equal(timesteps.cost, entered == cells.HAZARD)
    np.testing.assert_array_equal(timesteps.reward, entered == cells.GOAL)
    np.testing.assert_array_equal(timesteps.metrics["goals"], timesteps.reward.cumsum(0))
    assert np.all((after.grid == cells.GOAL).sum((2, 3)) == 1)
    assert 0.1 < (states.grid == cells.HAZARD).sum((1, 2)).mean() / 25 < 0.25
    # The expert steps on far fewer hazards than their density.
    assert timesteps.cost.mean() < 0.05
    shown = timesteps.observation[t, level, after.row, after.column]
    np.testing.assert_array_equal(shown[..., 0], np.full(t.shape, cells.AGENT))


def test_lava_costs_and_ends():
    env = _environment("lava_gap")
    state, _ = jax.jit(env.reset)(random.key(0), env.params)
    grid = np.full((5, 5), cells.WALL, np.uint8)
    grid[1:-1, 1:-1], grid[1, 2] = cells.EMPTY, cells.LAVA_CODE
    state = dataclasses.replace(state, inner=dataclasses.replace(state.inner, grid=jnp.array(grid)))
    _, timestep = jax.jit(env.step)(random.key(0), state, jnp.int32(2), env.params)
    assert timestep.terminated and timestep.cost == 1 and timestep.reward == 0
    assert timestep.metrics["success"] == 0


def test_t_maze_is_bakkers():
    env = envs.make("t_maze", length=2)
    step, state_of = jax.jit(env.step), jax.jit(env.reset)
    for level, sign in enumerate(([0, 1, 1], [1, 1, 0])):
        params = dataclasses.replace(env.params, level=level)
        state, timestep = state_of(random.key(0), params)
        np.testing.assert_array_equal(timestep.observation, sign)
        expected = (  # action, observation, reward, terminated
            (cells.NORTH, sign, -0.1, False),
            (cells.WEST, sign, -0.1, False),
            (cells.EAST, [1, 0, 1], 0.0, False),
            (cells.SOUTH, [1, 0, 1], -0.1, False),
            (cells.EAST, [0, 1, 0], 0.0, False),
            (cells.EAST, [0, 1, 0], -0.1, False),
            (cells.NORTH, [0, 1, 0], (4.0, -0.1)[level], True),
        )
        for action, observation, reward, terminated in expected:
            state, timestep = step(random.key(1), state, jnp.int32(action), params)
            np.testing.assert_array_equal(timestep.observation, observation)
            assert timestep.reward == pytest.approx(reward) and timestep.terminated == terminated
        assert timestep.metrics["success"] == (level == 0)
    _, _, states, timesteps, over = _fresh_episodes("t_maze")  # the noisy one
    inside = (states.position > 0) & (states.position < 4) & ~over
    noise = timesteps.observation[inside]
    assert np.all(noise[:, 1] == 0) and noise[:, [0, 2]].std() == pytest.approx(12**-0.5, abs=0.03)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("empty", {"size": 3}, "size of 'empty' is 3"),
        ("memory", {"size": 8}, "an odd integer from 7 up"),
        ("lava_crossing", {"crossings": 9}, "an integer from 1 to 6"),
        ("lava_gap", {"obstacle": "water"}, "'lava' or 'wall'"),
        ("goal_maze", {"layout": "larg"}, "did you mean 'large'"),
        ("goal_maze", {"observe": "pixels"}, "'planes' or 'position'"),
        ("one_way_doors", {"rows": 3, "columns": 3}, "one of the two must be even"),
        ("multi_room", {"size": 5}, "size of 'multi_room' is 5"),
    ],
)
def test_impossible_environments_are_rejected(name, settings, says):
    with pytest.raises(UserError, match=says):
        envs.make(name, **settings)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_frames_are_pictures_of_a_readable_size(name):
    env = _environment(name)
    inner, *_ = _fresh_episodes(name)
    state, _ = jax.eval_shape(env.reset, random.key(0), env.params)
    state = dataclasses.replace(state, inner=jax.tree.map(lambda x: x[0], inner))
    frame = env.render(state, env.params)
    assert frame.dtype == np.uint8 and frame.shape[2] == 3
    assert all(100 <= side <= 500 for side in frame.shape[:2])
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 3
