"""Images of every environment, recorded episodes, and the files written from them."""

from __future__ import annotations

import dataclasses
import importlib.util

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxrl import envs
from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy
from jaxrl.envs import drawing, wrappers
from jaxrl.evaluation.render import (
    UNTIMED_FPS,
    Recording,
    record,
    write_gif,
    write_mp4,
    write_png,
    write_video,
)


def _frame(name, *numbers, **params):
    env = envs.make(name, **params)
    state, _ = env.reset(jax.random.key(0), env.params)
    inner = jax.flatten_util.ravel_pytree(state.inner)[1](np.asarray(numbers, np.float32))
    return env.render(dataclasses.replace(state, inner=inner), env.params)


def _center(frame, color):
    """Return the mean column and row of the pixels of `color`, from the top left."""
    rows, columns = np.nonzero(np.abs(frame.astype(int) - color).sum(axis=-1) < 10)
    assert len(rows), "there is no pixel of this color"
    return columns.mean(), rows.mean()


@pytest.mark.parametrize("name", envs.names())
def test_frames_are_uint8_pictures(name):
    env = envs.make(name)
    # As arrays, which gives the program that check_environment compiles, from the cache.
    params = jax.tree.map(lambda x: np.asarray(x, jnp.result_type(x)), env.params)
    state, _ = jax.jit(env.reset)(jax.random.key(0), params)
    frame = env.render(state, env.params)
    assert frame.dtype == np.uint8 and frame.shape[2:] == (3,)
    assert all(100 <= size <= 500 for size in frame.shape[:2])
    assert len(np.unique(frame @ np.array([1, 256, 65536]))) > 1  # colors
    np.testing.assert_array_equal(frame, env.render(state, env.params))


def test_the_cart_moves_right_and_the_pole_leans_right():
    upright = _frame("cartpole", 0.0, 0.0, 0.0, 0.0)
    assert _center(upright, drawing.INK)[0] == pytest.approx(199.5, abs=1)
    assert _center(upright, drawing.ORANGE)[0] == pytest.approx(199.5, abs=1)
    moved = _frame("cartpole", 2.4, 0.0, 0.2, 0.0)
    cart, pole = _center(moved, drawing.INK), _center(moved, drawing.ORANGE)
    assert 350 < cart[0] < 390  # in the picture, at its edge
    assert pole[0] > cart[0] + 3 and pole[1] < cart[1] - 20
    wide = _frame("cartpole", 9.6, 0.0, 0.0, 0.0, max_position=9.6)
    assert 350 < _center(wide, drawing.INK)[0] < 390


@pytest.mark.parametrize(
    ("angle", "side"),
    [(0.0, (0, -1)), (np.pi / 2, (-1, 0)), (np.pi, (0, 1)), (-np.pi / 2, (1, 0))],
)
def test_the_pendulum_points_up_at_zero_and_turns_counterclockwise(angle, side):
    x, y = _center(_frame("pendulum", angle, 0.0), drawing.RED)
    assert (x - 149.5) / 60 == pytest.approx(side[0], abs=0.1)
    assert (y - 149.5) / 60 == pytest.approx(side[1], abs=0.1)


@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_continuous"])
def test_the_car_climbs_to_the_right_where_the_flag_is(name):
    low, wall, goal = (
        _frame(name, x, 0.0) for x in (-np.pi / 6, -1.2, envs.make(name).params.goal_position)
    )
    bottom, left, top = (_center(f, drawing.BLUE) for f in (low, wall, goal))
    assert left[0] < bottom[0] < top[0]
    assert bottom[1] > left[1] > top[1]  # the goal is the highest
    assert top[0] == pytest.approx(_center(goal, drawing.GREEN)[0], abs=20)


@pytest.mark.parametrize(
    ("angles", "first", "second"),
    [
        ((0.0, 0.0), (0, 1), (0, 3)),  # hanging down
        ((np.pi, 0.0), (0, -1), (0, -3)),  # upright
        ((np.pi / 2, 0.0), (1, 0), (3, 0)),  # positive is counterclockwise from hanging down
        ((np.pi / 2, np.pi / 2), (1, 0), (2, -1)),  # the second angle is relative to the first
    ],
)
def test_the_acrobot_hangs_down_at_zero(angles, first, second):
    frame = _frame("acrobot", *angles, 0.0, 0.0)
    half_link = 34
    for color, expected in ((drawing.BLUE, first), (drawing.ORANGE, second)):
        x, y = _center(frame, color)
        assert (x - 149.5) / half_link == pytest.approx(expected[0], abs=0.2)
        assert (y - 149.5) / half_link == pytest.approx(expected[1], abs=0.2)
    line = _center(frame, drawing.GREEN)[1]  # one link above the pivot
    assert line == pytest.approx(149.5 - 2 * half_link, abs=1.5)


# ------------------------------------------------------------------------------ episodes


def _balance(state, timestep, memory, key, greedy):
    """Balance the pole while greedy, else push right; remember how often it acted."""
    assert timestep.observation.shape[0] == 1
    _, velocity, angle, turn = timestep.observation.T
    lean = (state * (angle + 0.5 * turn + 0.1 * velocity) > 0).astype(jnp.int32)
    action = lean if greedy else jnp.ones_like(lean)
    return action, memory + 1, {}


BALANCE = Policy(act=_balance, memory=lambda n: jnp.zeros(n), state=jnp.float32(1))


@pytest.fixture(scope="module")
def frames():
    env = envs.make("cartpole")
    return record(env, BALANCE, jax.random.key(0), max_steps=12).frames


@pytest.mark.slow
def test_an_episode_stops_at_the_step_that_ends_it(frames):
    assert len(frames) == 13  # the first state, and one after each step
    falls = record(envs.make("cartpole"), BALANCE, jax.random.key(0), greedy=False).frames
    assert 8 < len(falls) < 13
    pole = _center(falls[-1], drawing.ORANGE)[0] - _center(falls[-1], drawing.INK)[0]
    assert pole < -3  # pushed right, it fell to the left


def test_parameters_reach_the_recorded_environment():
    env = envs.make("cartpole")
    strict = dataclasses.replace(env.params, max_angle=0.0)
    assert len(record(env, BALANCE, jax.random.key(0), params=strict).frames) == 2


def test_the_memory_is_carried():
    def act(state, timestep, memory, key, greedy):
        return (memory >= 3).astype(jnp.int32), memory + 1, {}

    policy = Policy(act=act, memory=lambda n: jnp.zeros(n), state=())
    recorded = record(envs.make("cartpole"), policy, jax.random.key(0), max_steps=6)
    x = [_center(frame, drawing.INK)[0] for frame in recorded.frames]
    constant = Policy(act=lambda *a: (jnp.zeros(1, jnp.int32), a[2], {}), memory=lambda n: ())
    left = record(envs.make("cartpole"), constant, jax.random.key(0), max_steps=6)
    y = [_center(frame, drawing.INK)[0] for frame in left.frames]
    assert x[:5] == y[:5] and x[-1] > y[-1]


STEP_SECONDS = {
    "acrobot": 0.2,
    "cartpole": 0.02,
    "cartpole_swingup": 0.01,
    "cheetah": 0.05,
    "crossing": 0.5,
    "double_mass": 0.2,
    "double_pendulum": 0.05,
    "hopper": 0.008,
    "maze_scenes": 0.05,
    "pendulum": 0.05,
    "point_mass": 0.02,
    "push": 0.1,
    "push_buttons": 0.1,
    "push_play": 0.1,
    "push_skills": 0.1,
    "reacher": 0.02,
    "safe_cheetah": 0.05,
    "simple_adversary": 0.1,
    "simple_speaker_listener": 0.1,
    "simple_spread": 0.1,
    "simple_tag": 0.1,
    "soccer": 0.1,
    "walker": 0.008,
} | {name: 0.01 for name in envs.names() if name.startswith("point_maze")}
FIXED_STEPS = {
    "maze_scenes",
    "push_play",
    "push_skills",
    "safe_cheetah",
}  # without a setting for it


@pytest.mark.parametrize("name", envs.names())
def test_environments_with_a_time_step_report_it(name):
    env = envs.make(name)
    if name not in STEP_SECONDS:
        assert env.step_seconds is None
        return
    state = jax.eval_shape(env.reset, jax.random.key(0), env.params)[0]
    assert env.step_seconds(state, env.params) == pytest.approx(STEP_SECONDS[name])
    if name in FIXED_STEPS:
        return
    slow = envs.make(name, dt=2 * envs.make(name).params.dt)
    assert slow.step_seconds(state, slow.params) == pytest.approx(2 * STEP_SECONDS[name])


@pytest.mark.slow
def test_a_recording_plays_at_the_speed_of_its_environment():
    short = lambda env: record(env, BALANCE, jax.random.key(0), max_steps=2).fps
    env = envs.make("cartpole", dt=0.04)
    assert short(env) == pytest.approx(25)
    assert short(wrappers.action_repeat(env, 4)) == pytest.approx(25 / 4)
    assert short(wrappers.sticky_actions(env)) == pytest.approx(25)
    drawn = wrappers.domain_randomization(
        env, lambda key, params: dataclasses.replace(params, dt=0.1)
    )
    assert short(drawn) == pytest.approx(10)
    assert short(dataclasses.replace(env, step_seconds=None)) == UNTIMED_FPS


def test_errors_say_what_cannot_be_recorded():
    env = envs.make("cartpole")
    key = jax.random.key(0)
    with pytest.raises(UserError, match="no render function"):
        record(dataclasses.replace(env, render=None), BALANCE, key)
    with pytest.raises(UserError, match="no time limit; give record a max_steps"):
        record(dataclasses.replace(env, max_steps=None), BALANCE, key)
    with pytest.raises(UserError, match="max_steps=0"):
        record(env, BALANCE, key, max_steps=0)


# ------------------------------------------------------------------------------ files


def test_a_gif_plays_every_frame_at_its_rate(frames, tmp_path):
    path = tmp_path / "new" / "episode.gif"
    write_gif(frames, path, fps=10)
    with Image.open(path) as gif:
        assert gif.format == "GIF" and gif.size == (400, 300) and gif.info["loop"] == 0
        total = 0
        for index in range(gif.n_frames):
            gif.seek(index)
            total += gif.info["duration"]
        assert total == 100 * len(frames)  # ms; equal frames in a row are stored once
        last = np.asarray(gif.convert("RGB"), int)
    assert np.abs(last - frames[-1]).mean() < 2  # of 255: the palette is close


def _read_gif(path):
    """Read the frames of a GIF and how long each is shown, in milliseconds."""
    with Image.open(path) as gif:
        shown = []
        for index in range(gif.n_frames):
            gif.seek(index)
            shown.append((np.asarray(gif.convert("RGB")), gif.info["duration"]))
    return shown


@pytest.mark.parametrize("fps", [1 / 0.008, 1 / 0.01, 60.0, 50.0, 30.0, 8.0, 1 / 0.3])
def test_a_gif_lasts_as_long_as_its_episode(tmp_path, fps):
    """Record a pixel that moves on in each frame."""
    frames = [255 * (np.arange(90) == i).reshape(9, 10, 1).repeat(3, -1) for i in range(85)]
    frames = [frame.astype(np.uint8) for frame in frames]
    write_gif(frames, tmp_path / "episode.gif", fps)
    shown = _read_gif(tmp_path / "episode.gif")
    durations = np.asarray([duration for _, duration in shown])
    assert durations.sum() == pytest.approx(1000 * len(frames) / fps, abs=5)
    assert (
        durations.min() >= 20 and np.ptp(durations) <= 10
    )  # evenly, and slow enough for every viewer
    assert len(shown) == len(frames) or durations.max() <= 30  # none is left out unnecessarily
    steps = np.asarray([frame[..., 0].argmax() for frame, _ in shown])
    assert (steps[0], steps[-1]) == (0, 84)
    time = (
        np.cumsum(durations) - durations
    )  # at which each appears, in the GIF and in the environment
    np.testing.assert_allclose(time, 1000 * steps / fps, atol=1000 / fps + 5)


@pytest.mark.parametrize("fps", [1 / 0.013, 8.0])
def test_an_mp4_plays_every_frame_at_its_rate(tmp_path, fps):
    """Record a gray level that rises by 10 in each frame, in pictures of odd sizes."""
    av = pytest.importorskip("av")
    frames = [np.full((61, 83, 3), 10 * i, np.uint8) for i in range(20)]
    write_video(Recording(frames, fps), tmp_path / "new" / "episode.mp4")
    with av.open(str(tmp_path / "new" / "episode.mp4")) as file:
        (stream,) = file.streams
        assert float(stream.average_rate) == pytest.approx(fps, rel=1e-4)
        shown = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        seconds = float(stream.duration * stream.time_base)
    assert seconds == pytest.approx(len(frames) / fps, rel=1e-3)
    assert {frame.shape for frame in shown} == {(60, 82, 3)}
    levels = np.asarray([frame.mean() for frame in shown])
    np.testing.assert_allclose(levels, 10 * np.arange(20), atol=4)


def test_videos_that_cannot_be_written(tmp_path, monkeypatch):
    frame = np.zeros((4, 6, 3), np.uint8)
    with pytest.raises(UserError, match="Unknown format of a video 'webm'"):
        write_video(Recording([frame], 8.0), tmp_path / "a.webm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'jaxrl-research\[video\]', or use gif"):
        write_mp4([frame], tmp_path / "a.mp4")


@pytest.mark.parametrize("dt", [0.02, 0.013, 0.07])
def test_an_episode_lasts_as_long_as_in_the_environment(tmp_path, dt):
    env = envs.make("cartpole", dt=dt)
    episode = record(env, BALANCE, jax.random.key(0), max_steps=40)
    assert len(episode.frames) == 41  # the last one is shown as long as any other
    write_gif(episode.frames, tmp_path / "episode.gif", episode.fps)
    total = sum(duration for _, duration in _read_gif(tmp_path / "episode.gif"))
    assert total == pytest.approx(1000 * 41 * dt, abs=5)


def test_a_gif_of_still_frames_lasts_as_long(tmp_path):
    frames = [np.zeros((4, 4, 3), np.uint8)] * 10
    write_gif(frames, tmp_path / "still.gif", 1 / 0.07)
    assert [duration for _, duration in _read_gif(tmp_path / "still.gif")] == [700]


def test_a_png_is_the_frame(frames, tmp_path):
    write_png(frames[0], tmp_path / "new" / "frame.png")
    with Image.open(tmp_path / "new" / "frame.png") as png:
        np.testing.assert_array_equal(np.asarray(png), frames[0])


def test_errors_say_what_cannot_be_written(frames, tmp_path):
    path = tmp_path / "no.gif"
    with pytest.raises(UserError, match="got no frames"):
        write_gif([], path)
    with pytest.raises(UserError, match="fps=0"):
        write_gif(frames, path, fps=0)
    with pytest.raises(UserError, match="all must be equal"):
        write_gif([frames[0], frames[0][:10]], path)
    with pytest.raises(UserError, match=r"float64\[2, 2, 3\]; it must be uint8"):
        write_gif([np.zeros((2, 2, 3))], path)
    with pytest.raises(UserError, match=r"uint8\[2, 2\]; it must be uint8 \[H, W, 3\]"):
        write_png(np.zeros((2, 2), np.uint8), path)
    assert not path.exists()
