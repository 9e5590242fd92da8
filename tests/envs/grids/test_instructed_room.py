"""Instructions in a room: what is tied in training, paths, goals, and the steps of BabyAI."""

from __future__ import annotations

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.errors import UserError
from jaxrl.core.trees import strong
from jaxrl.core.types import Transition
from jaxrl.envs import check_environment, make
from jaxrl.envs.goals import relabel
from jaxrl.envs.grids import cells, moves, paths, pictures
from jaxrl.envs.grids import instructed_room as module

LEFT, RIGHT, FORWARD = range(3)
NUMBER = 256


@pytest.fixture(scope="module")
def env():
    return make("instructed_room")


@functools.cache
def _levels(paired, placed):
    """Return many first states and time steps, on the host."""
    env = make("instructed_room")
    params = strong(dataclasses.replace(env.params, paired=paired, placed=placed))
    keys = jax.random.split(jax.random.key(0), NUMBER)
    state, timestep = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)
    return jax.device_get((state.inner, timestep))


def _objects(grid):
    """Return row, column, color and kind of the objects of a grid."""
    kinds = [int(x) for x in module._CODES]
    return [
        (int(y), int(x), int(grid[y, x]) >> 4 & 7, kinds.index(int(grid[y, x]) & 15))
        for y, x in np.argwhere(np.isin(grid & 15, kinds))
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"instruction": "text", "size": 7}, marks=pytest.mark.slow),
        pytest.param({"full": True}, marks=pytest.mark.slow),
    ],
)
def test_it_keeps_the_rules_of_environments(settings):
    check_environment(make("instructed_room", **settings))


@pytest.mark.parametrize("paired", [0.0, 1.0])
@pytest.mark.parametrize("placed", [0.0, 1.0])
def test_words_are_tied_to_kinds_and_places_as_the_parameters_say(paired, placed):
    states, _ = _levels(paired, placed)
    sites = module.sites(8).tolist()
    fits = at_home = 0
    for i in range(NUMBER):
        objects = _objects(states.grid[i])
        color, kind = int(states.extra.color[i]), int(states.extra.kind[i])
        assert len(objects) == 5
        assert [x[2:] for x in objects].count((color, kind)) == 1
        assert any(k == kind and c != color for _, _, c, k in objects)
        alike = any(c == color and k != kind for _, _, c, k in objects)
        assert alike == (not paired)
        fits += all(c % 3 == k for _, _, c, k in objects)
        home = sites[module._HOMES[color]]
        at_home += [list(x[:2]) for x in objects if x[2:] == (color, kind)] == [home]
        assert all(list(x[:2]) in sites for x in objects)
    assert fits == NUMBER if paired else fits == 0
    assert at_home == NUMBER if placed else at_home < NUMBER / 4  # one site of nine
    named = set(zip(states.extra.color.tolist(), states.extra.kind.tolist(), strict=True))
    assert len(named) == (6 if paired else 18)


def test_a_probability_in_between_ties_that_share_of_episodes():
    states, _ = _levels(0.5, 0.0)
    tied = [all(c % 3 == k for _, _, c, k in _objects(grid)) for grid in states.grid]
    assert 0.4 < np.mean(tied) < 0.6


def _distances(state):
    """Return the fewest actions to have the named object in front, by a search of states."""
    grid, named = state.grid, int(module._code(state.extra.color, state.extra.kind))
    steps = [(0, 1), (1, 0), (0, -1), (-1, 0)]
    queue = collections.deque([(int(state.row), int(state.column), int(state.heading), 0)])
    seen = set()
    while queue:
        row, column, heading, length = queue.popleft()
        if (row, column, heading) in seen:
            continue
        seen.add((row, column, heading))
        down, right = steps[heading]
        if int(grid[row + down, column + right]) == named:
            return length
        queue += [(row, column, (heading + turn) % 4, length + 1) for turn in (1, 3)]
        if int(grid[row + down, column + right]) == cells.EMPTY:
            queue.append((row + down, column + right, heading, length + 1))
    raise AssertionError("the named object cannot be reached")


@functools.cache
def _play(aim):
    """Return success and return [NUMBER] in untied and in tied levels of a player that goes to the
    nearest cell of `aim(state)`."""
    env = make("instructed_room")

    def play(key, params):
        def body(carry, key):
            state, done, total, success = carry
            action = jnp.minimum(paths.follow(state.inner, 30, face=aim(state.inner)), 2)
            state, timestep = env.step(key, state, action, params)
            total += jnp.where(done, 0.0, timestep.reward)
            success = jnp.where(done, success, timestep.metrics["success"])
            return (state, done | timestep.done, total, success), None

        state, _ = env.reset(key, params)
        start = state, jnp.bool_(False), jnp.zeros(()), jnp.zeros(())
        keys = jax.random.split(key, 40)
        (_, _, total, success), _ = jax.lax.scan(body, start, keys)
        return success, total, module.optimal_return(state, params)

    run = jax.jit(jax.vmap(play, (0, None)))
    keys = jax.random.split(jax.random.key(0), NUMBER)
    tied = lambda x: strong(dataclasses.replace(env.params, paired=x))
    return jax.device_get([run(keys, tied(x)) for x in (0.0, 1.0)])


def test_the_expert_takes_the_fewest_actions():
    (success, total, optimal), _ = _play(module.named_cell)
    assert success.all()
    np.testing.assert_allclose(total, optimal, atol=1e-6)
    states, _ = _levels(0.0, 0.0)
    fewest = [_distances(jax.tree.map(lambda x, i=i: x[i], states)) for i in range(NUMBER)]
    assert min(fewest) > 0 and len(set(fewest)) > 8
    np.testing.assert_allclose(total, 1 - 0.9 * np.array(fewest) / 64, atol=1e-6)


def test_the_color_alone_is_enough_in_paired_episodes_and_misleads_in_others():
    def by_color(state):
        things = np.isin(np.arange(256), [int(x) | c << 4 for x in module._CODES for c in range(6)])
        return jnp.asarray(things)[state.grid] & (cells.color(state.grid) == state.extra.color)

    (untied, _, _), (tied, _, _) = _play(by_color)
    assert tied.all() and untied.mean() < 0.75


@pytest.mark.parametrize("full", [False, True])
def test_what_is_in_front_is_the_goal_that_is_achieved(full):
    env = make("instructed_room", full=full)
    state, _ = env.reset(jax.random.key(0), env.params)
    grid = np.array(state.inner.grid)
    grid[1:-1, 1:-1] = cells.EMPTY
    grid[3, 4], grid[5, 4] = cells.code(cells.BALL, cells.PURPLE), cells.code(cells.KEY, 4)
    named = module.Named(jnp.int32(4), jnp.int32(0))

    def look(row, column, heading, action):
        inner = moves.start(grid, row, column, heading, extra=named)
        at = dataclasses.replace(state, inner=inner)
        return env.step(jax.random.key(0), at, jnp.int32(action), env.params)[1]

    other = look(3, 3, cells.NORTH, RIGHT)
    np.testing.assert_array_equal(
        env.goals.achieved(other.observation), [0, 0, 0, 1, 0, 0, 0, 1, 0]
    )
    assert not bool(other.terminated) and float(other.reward) == 0
    right = look(5, 2, cells.EAST, FORWARD)
    np.testing.assert_array_equal(env.goals.achieved(right.observation), right.goal)
    assert bool(right.terminated) and float(right.reward) == pytest.approx(1 - 0.9 / 64)
    nothing = look(1, 1, cells.NORTH, RIGHT)
    assert not np.any(env.goals.achieved(nothing.observation))
    wall = look(1, 1, cells.EAST, LEFT)
    assert not np.any(env.goals.achieved(wall.observation))
    both = jax.tree.map(lambda *x: jnp.stack(x), other, right)
    np.testing.assert_array_equal(env.goals.achieved(both.observation)[1], right.goal)
    # Relabeled with what was met, the step ends the episode and pays; with another word, neither.
    first = dataclasses.replace(other, first=jnp.bool_(True))
    transition = Transition(first, jnp.int32(RIGHT), other, (), {})
    met = relabel(env, transition, env.goals.achieved(other.observation)).next_timestep
    assert bool(met.terminated) and float(met.reward) == 1
    half = other.goal.at[3].set(1.0).at[4].set(0.0)
    assert not bool(relabel(env, transition, half).next_timestep.terminated)


def test_a_text_says_the_words_of_the_goal():
    env = make("instructed_room", instruction="text")
    state, timestep = env.reset(jax.random.key(3), env.params)
    named = state.inner.extra
    text = module.VOCABULARY.decode(timestep.observation["mission"].tolist())
    assert text == f"go to the {module.COLORS[named.color]} {module.KINDS[named.kind]}"
    assert module.VOCABULARY.encode(text) == timestep.observation["mission"].tolist()
    assert timestep.goal is None and env.goals is None


def test_the_picture_shows_the_named_object_above_the_room(env):
    state, _ = env.reset(jax.random.key(3), env.params)
    frame = env.render(state, env.params)
    tile = frame.shape[1] // 8
    assert frame.shape[0] == 9 * tile
    top = frame[:tile].reshape(-1, 3)
    color = np.array(pictures.COLORS[int(state.inner.extra.color)])
    assert (np.abs(top.astype(int) - color).sum(-1) < 10).sum() > tile


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"size": 6}, "from 7 up"),
        ({"distractors": 1}, "from 2 up"),
        ({"distractors": 9}, "at most 8"),
        ({"instruction": "speech"}, "'goal' or 'text'"),
    ],
)
def test_bad_options_are_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        make("instructed_room", **settings)


def test_steps_are_those_of_babyai(env):
    """Play random actions and the expert's in BabyAI's environment, put into our states."""
    pytest.importorskip("minigrid", reason="this test compares with the published package")
    from minigrid.core.constants import IDX_TO_COLOR
    from minigrid.core.world_object import Ball, Box, Key
    from minigrid.envs.babyai.core.verifier import GoToInstr, ObjDesc
    from minigrid.envs.babyai.goto import GoToLocal

    state, timestep = env.reset(
        jax.random.key(5), strong(dataclasses.replace(env.params, paired=0.0))
    )
    theirs = GoToLocal()
    theirs.reset(seed=0)
    assert theirs.max_steps == env.max_steps
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)
    ended = 0
    for episode in range(6):
        key = jax.random.key(episode)
        state, timestep = env.reset(key, dataclasses.replace(env.params, paired=0.0))
        inner = jax.device_get(state.inner)
        for y in range(1, 7):
            for x in range(1, 7):
                theirs.grid.set(x, y, None)
        for y, x, color, kind in _objects(inner.grid):
            thing = (Key, Ball, Box)[kind](IDX_TO_COLOR[color])
            theirs.put_obj(thing, x, y)
        theirs.agent_pos, theirs.agent_dir = (int(inner.column), int(inner.row)), int(inner.heading)
        theirs.carrying, theirs.step_count = None, 0
        color, kind = IDX_TO_COLOR[int(inner.extra.color)], module.KINDS[int(inner.extra.kind)]
        theirs.instrs = GoToInstr(ObjDesc(kind, color))
        theirs.instrs.reset_verifier(theirs)
        np.testing.assert_array_equal(timestep.observation, theirs.gen_obs()["image"])
        for _ in range(40):
            wise = int(env.expert(state, env.params))
            action = wise if rng.random() < 0.5 else int(rng.integers(3))
            state, timestep = step(key, state, jnp.int32(action), env.params)
            seen, reward, terminated, _, _ = theirs.step(action)
            np.testing.assert_array_equal(timestep.observation, seen["image"])
            assert float(timestep.reward) == pytest.approx(reward, abs=1e-6)
            assert bool(timestep.terminated) == terminated
            if terminated:
                ended += 1
                break
    assert ended > 2
