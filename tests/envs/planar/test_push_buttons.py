"""The table with buttons: presses, lights, gates, goals, the expert, play and pictures."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.trees import strong
from jaxrl.core.types import Transition
from jaxrl.envs import check_environment, make
from jaxrl.envs.goals import relabel, set_new_goals
from jaxrl.envs.planar import lights_out
from jaxrl.envs.planar import push_buttons as module
from tests.envs.planar.test_lights_out import _press

KEY = random.key(0)


@functools.cache
def _env(task="puzzle", **settings):
    return make("push_buttons", task=task, **settings)


@functools.cache
def _step(task="puzzle", **settings):
    return jax.jit(_env(task, **settings).step)


def _put(env, **fields):
    """Return a first state with some of its fields replaced."""
    state, _ = env.reset(KEY, env.params)
    fields = {k: jnp.asarray(v, getattr(state.inner, k).dtype) for k, v in fields.items()}
    return dataclasses.replace(state, inner=dataclasses.replace(state.inner, **fields))


@pytest.mark.parametrize(
    "settings",
    [
        {"rows": 2, "columns": 2},
        {"rows": 2, "columns": 2, "goals": "observations"},
        {"task": "scene"},
        {"task": "scene", "goals": "observations"},
    ],
)
def test_it_keeps_the_rules_of_environments(settings):
    check_environment(make("push_buttons", reward="count", **settings))


def test_a_press_toggles_the_cross_once_for_each_time_that_the_button_goes_down():
    env = _env()
    lights = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 1]])
    for number, place in enumerate(np.asarray(env.params.buttons)):
        still = [*place, 0.0, 0.0]
        state = _put(env, pusher=still, lights=lights.reshape(-1), goal=np.full(9, 0.5))
        expected, down = lights, False
        for press in (-1.0, 0.0, 1.0, 1.0, -1.0, 1.0):  # up, up, down, held, up, down
            state, timestep = _step()(KEY, state, jnp.array([0.0, 0.0, press]), env.params)
            if press > 0 and not down:
                expected = _press(expected, *divmod(number, 3))
            down = press > 0
            np.testing.assert_array_equal(state.inner.lights, expected.reshape(-1))
            np.testing.assert_array_equal(timestep.observation[4:13], expected.reshape(-1))
            shown = down * np.eye(9)[number]
            np.testing.assert_array_equal(timestep.observation[13:], shown)
        np.testing.assert_array_equal(expected, lights)  # two presses undo each other


def test_a_pusher_that_is_down_presses_what_it_slides_onto():
    env = _env(rows=1, columns=2)
    first, second = np.asarray(env.params.buttons)
    between = (first + second) / 2
    state = _put(env, pusher=[*between, 0.0, 0.0], lights=[0, 0], goal=[0.5, 0.5])
    step = _step(rows=1, columns=2)
    right = jnp.array([1.0, 0.0, 1.0])
    for _ in range(4):
        state, _ = step(KEY, state, right, env.params)
    assert state.inner.lights.tolist() == [1, 1] and state.inner.down.tolist() == [0, 1]
    for _ in range(2):  # on, and out of the button: nothing more
        state, _ = step(KEY, state, right, env.params)
    assert state.inner.lights.tolist() == [1, 1]


@pytest.mark.parametrize("side", [3, 4])
def test_every_goal_can_be_reached_and_none_is_already(side):
    env = _env(rows=side, columns=side)
    keys = jax.random.split(KEY, 256)
    state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(keys, strong(env.params))
    matrix, solution = lights_out.neighbors(side, side), lights_out.board_solution(side, side)
    change = np.abs(np.asarray(state.inner.lights) - np.asarray(state.inner.goal)).astype(int)
    # Also from the lights of one episode to the goal of another, as in play.
    other = np.abs(np.asarray(state.inner.lights) - np.roll(state.inner.goal, 1, 0)).astype(int)
    for wanted in (change, other):
        presses = wanted @ solution.inverse.T % 2
        np.testing.assert_array_equal(presses @ matrix.T % 2, wanted)
    assert change.any(1).all()
    assert 0.4 < change.mean() < 0.6


def _drive(env, state, action, steps):
    step = _step(env_task(env))
    for _ in range(steps):
        state, timestep = step(KEY, state, jnp.asarray(action), env.params)
    return state.inner, timestep


def env_task(env):
    return "scene" if env.observation_space.shape == (13,) else "puzzle"


@pytest.mark.parametrize("gate", [0, 1])
def test_a_gate_is_open_while_its_button_is_lit(gate):
    env, y = _env("scene"), 0.25 - 0.5 * gate
    block = [0.1, y, 0.0, 0.0, 0.0]
    right = [1.0, 0.0, -1.0]
    lit = [int(i == gate) for i in range(2)]
    passed, _ = _drive(env, _put(env, pusher=[0.0, y, 0, 0], block=block, lights=lit), right, 12)
    assert passed.pusher[0] > module.GATE and passed.block[0] > module.GATE + 0.1
    assert int(module.chamber_of(passed.block[:2])) == gate
    dark = [int(i != gate) for i in range(2)]
    stopped, _ = _drive(env, _put(env, pusher=[0.0, y, 0, 0], block=block, lights=dark), right, 12)
    edge = module.GATE - module.THICK / 2
    assert stopped.block[0] == pytest.approx(edge - 0.045, abs=2e-3)
    assert stopped.pusher[0] == pytest.approx(float(stopped.block[0]) - 0.065, abs=2e-3)
    alone = _put(env, pusher=[0.1, y, 0, 0], block=[-0.2, -y, 0, 0, 0], lights=dark)
    assert _drive(env, alone, right, 12)[0].pusher[0] == pytest.approx(edge - 0.02, abs=2e-3)


def test_a_scene_button_toggles_its_own_light_and_locks_the_block_in():
    env = _env("scene")
    x, y = module.SCENE_BUTTONS[0]
    state = _put(
        env,
        pusher=[x, y, 0, 0],
        block=[0.36, 0.25, 0, 0, 0],
        lights=[1, 1],
        goal=[0, 1, 0.36, 0.27],
    )
    inner, timestep = _drive(env, state, [0.0, 0.0, 1.0], 1)
    assert inner.lights.tolist() == [0, 1]
    assert bool(timestep.terminated) and float(timestep.reward) == 1
    assert float(timestep.metrics["success"]) == float(timestep.metrics["solved"]) == 1


def test_the_count_is_of_what_is_missing():
    env = _env("scene", reward="count")
    step = jax.jit(env.step)
    still = jnp.array([0.0, 0.0, -1.0])

    def pay(lights, block):
        goal = [1, 0, 0.0, 0.0]
        state = _put(env, pusher=[-0.3, 0, 0, 0], block=[*block, 0, 0, 0], lights=lights, goal=goal)
        _, timestep = step(KEY, state, still, env.params)
        return float(timestep.reward), bool(timestep.terminated), float(timestep.metrics["solved"])

    assert pay([0, 1], [0.1, 0.0]) == (-3, False, 0)
    assert pay([1, 1], [0.1, 0.0]) == (-2, False, pytest.approx(1 / 3))
    assert pay([1, 1], [0.03, 0.0]) == (-1, False, pytest.approx(2 / 3))
    assert pay([1, 0], [0.03, 0.0]) == (0, True, 1)
    assert pay([1, 0], [0.0, 0.05]) == (-1, False, pytest.approx(2 / 3))


def test_relabeled_steps_are_those_of_the_other_goal():
    env = _env("scene")
    state = _put(env, pusher=[-0.3, 0, 0, 0], block=[0.0, 0.0, 0, 0, 0], lights=[1, 0])
    before = env.reset(KEY, env.params)[1]
    _, after = _step("scene")(KEY, state, jnp.array([0.0, 0.0, -1.0]), env.params)
    transition = Transition(before, jnp.zeros(3), after, (), {})
    met = relabel(env, transition, env.goals.achieved(after.observation)).next_timestep
    assert float(met.reward) == 1 and bool(met.terminated)
    away = relabel(env, transition, jnp.array([1.0, 1.0, 0.0, 0.0])).next_timestep
    assert float(away.reward) == 0 and not bool(away.terminated)


@pytest.mark.parametrize("task", ["puzzle", "scene"])
def test_goals_may_be_whole_observations(task):
    """All else is the same as with goals of lights and a block's place."""
    env, plain = _env(task, goals="observations"), _env(task)
    (state, first), (_, other) = env.reset(KEY, env.params), plain.reset(KEY, plain.params)
    np.testing.assert_array_equal(first.observation, other.observation)
    assert first.goal.shape == first.observation.shape
    np.testing.assert_array_equal(plain.goals.achieved(first.goal), other.goal)
    resting = env.state_of(dataclasses.replace(first, observation=first.goal)).inner
    assert not resting.pusher[2:].any() and not resting.down.any() and not resting.block[2:].any()
    assert (resting.pusher[:2] != state.inner.pusher[:2]).all()
    np.testing.assert_array_equal(env.goals.achieved(first.observation), first.observation)
    reached = first.goal.at[:2].set(0.1)  # wherever the pusher is
    assert env.goals.outcome(reached, first.goal, env.params)[1]
    assert not env.goals.outcome(first.observation, first.goal, env.params)[1]
    following = env.goals.next(KEY, first.goal, env.params)
    np.testing.assert_array_equal(
        plain.goals.achieved(following), plain.goals.next(KEY, other.goal, plain.params)
    )
    np.testing.assert_array_equal(following[:2], first.goal[:2])
    action = env.expert(state, env.params)
    np.testing.assert_array_equal(
        action, plain.expert(plain.reset(KEY, plain.params)[0], plain.params)
    )
    assert (env.render(state, env.params) == plain.render(state, plain.params)).all()


@functools.cache
def _expert_rollout(number, **settings):
    """Return success, steps and the number of presses of the expert, and the first states."""
    env = _env(**settings)

    def roll(key):
        def body(carry, _):
            state, done, success, steps, presses = carry
            after, timestep = env.step(key, state, env.expert(state, env.params), env.params)
            pressed = (after.inner.down * (1 - state.inner.down)).sum()
            success = jnp.where(done, success, timestep.metrics["success"])
            presses += jnp.where(done, 0, pressed)
            return (after, done | timestep.done, success, steps + ~done, presses), None

        first, _ = env.reset(key, env.params)
        zero = jnp.int32(0)
        start = first, jnp.bool_(False), jnp.float32(0), zero, zero
        (_, _, *counted), _ = jax.lax.scan(body, start, None, env.max_steps)
        return (*counted, first.inner)

    keys = jax.random.split(random.key(1), number)
    return jax.device_get(jax.jit(jax.vmap(roll))(keys))


@pytest.mark.parametrize("side", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_expert_solves_puzzles_with_the_fewest_presses(side):
    success, steps, presses, first = _expert_rollout(64, rows=side, columns=side)
    assert success.all() and steps.max() < 20 * side**2
    solution = lights_out.board_solution(side, side)
    change = np.abs(first.lights - first.goal).astype(int)
    fewest = jax.vmap(functools.partial(lights_out.fewest_presses, solution))(change).sum(1)
    np.testing.assert_array_equal(presses, fewest)


def test_the_expert_of_a_scene_brings_the_block_to_its_place_and_sets_the_lights():
    success, _, presses, first = _expert_rollout(96, task="scene")
    assert success.mean() > 0.97
    ways = {
        (int(module.chamber_of(a[:2])), int(module.chamber_of(b[2:])))
        for a, b in zip(first.block, first.goal, strict=True)
    }
    assert len(ways) == 9  # from everywhere to everywhere
    # Presses change lights by pairs beyond those that differ at first, to unlock and lock again.
    change = np.abs(first.lights - first.goal[:, :2]).sum(1).astype(int)
    done = success > 0
    assert (presses[done] >= change[done]).all() and (presses[done] > change[done]).any()
    assert ((presses - change)[done] % 2 == 0).all()


def test_play_reaches_one_goal_after_the_other():
    env = set_new_goals(_env(rows=2, columns=2))

    def body(state, key):
        action = _env(rows=2, columns=2).expert(state, env.params)
        state, timestep = env.step(key, state, action, env.params)
        return state, (
            timestep.metrics["success"],
            env.goals.achieved(timestep.observation),
            timestep,
        )

    state, _ = env.reset(KEY, env.params)
    run = jax.jit(lambda state: jax.lax.scan(body, state, jax.random.split(KEY, 240)))
    success, lights, timestep = jax.device_get(run(state)[1])
    reached = success > 0
    assert reached.sum() > 10
    change = np.abs(timestep.goal - lights)[reached].astype(int)  # to the next goal, by one press
    crosses = lights_out.neighbors(2, 2)
    assert {tuple(x) for x in change} == {tuple(x) for x in crosses}


def test_play_in_a_scene_asks_for_a_light_or_another_place():
    env = _env("scene")
    achieved = jnp.array([1.0, 0.0, 0.05, 0.1])
    draw = jax.vmap(lambda key: env.goals.next(key, achieved, env.params))
    goals = np.asarray(draw(jax.random.split(KEY, 400)))
    lights = (goals[:, :2] != achieved[:2]).sum(1)
    moved = (goals[:, 2:] != achieved[2:]).any(1)
    np.testing.assert_array_equal(lights == 0, moved)
    assert (lights <= 1).all() and 0.4 < moved.mean() < 0.6


def test_the_picture_shows_lights_rims_and_gates():
    env = _env("scene")
    lights, goal = [1, 0], [1, 1, 0.36, 0.25]
    state = _put(env, pusher=[0, 0, 0, 0], block=[-0.1, 0.2, 0, 0, 0], lights=lights, goal=goal)
    frame = env.render(state, env.params)

    def at(x, y):
        return tuple(int(c) for c in frame[round(172 - 320 * y), round(172 + 320 * x)])

    (x, y), (_, low) = module.SCENE_BUTTONS.tolist()
    rim = 0.044
    assert at(x, y) == module.YELLOW and at(x + rim, y) == module.drawing.GREEN
    assert at(x, low) == module.drawing.STEEL and at(x + rim, low) == module.drawing.RED
    assert at(module.GATE, 0.3) == module.drawing.PAPER  # open
    assert at(module.GATE, -0.3) == module.drawing.INK  # locked
    assert at(-0.1, 0.2) == module.drawing.ORANGE and at(0.0, 0.0) == module.drawing.BLUE
    assert at(0.36, 0.25) == module.drawing.GREEN and at(0.385, 0.25) == (171, 202, 187)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"task": "drawer"}, "'puzzle' or 'scene'"),
        ({"reward": "dense"}, "'sparse' or 'count'"),
        ({"goals": "buttons"}, "'lights' or 'observations'"),
        ({"rows": 7}, "may be 6 at most"),
        ({"columns": 0}, "from 1 up"),
        ({"rows": 1, "columns": 1}, "from 2 up"),
    ],
)
def test_bad_options_are_one_sentence(settings, match):
    with pytest.raises(UserError, match=match):
        make("push_buttons", **settings)
