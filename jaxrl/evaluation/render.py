"""Render a policy: the frames of one episode, as a video or a picture."""

from __future__ import annotations

import fractions
import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Environment, Key, Policy, TimeStep, Tree

UNTIMED_FPS = 8.0  # steps per second if the environment has no time of its own
GIF_TICKS = 100  # a GIF counts time in hundredths of a second
SHORTEST_TICKS = 2  # viewers slow down shorter frames
GAP = 4  # pixels between pictures side by side
VIDEOS = ("gif", "mp4")  # formats, by the ending of a file's name


class Recording(NamedTuple):
    """The frames of one episode, and how fast to show them."""

    frames: list[np.ndarray]  # uint8 `[H, W, 3]`
    fps: float  # frames per second of the environment's own time; `UNTIMED_FPS` if it has none


def record(
    env: Environment,
    policy: Policy,
    key: Key,
    *,
    max_steps: int | None = None,
    params: Tree = None,
    greedy: bool = True,
) -> Recording:
    """Record one episode: a frame of the first state and of the state after each step.

    max_steps: maximum number of steps; None for the environment's own limit.
    params: the environment's parameters; None for its defaults.
    greedy: act greedily; False samples actions as in training.

    Raises `UserError` if `env` cannot be rendered, or if neither it nor `max_steps` limits the
    episode.
    """
    if env.render is None:
        raise UserError(f"The environment '{env.name}' has no render function; it needs one.")
    limits = [limit for limit in (max_steps, env.max_steps) if limit is not None]
    if not limits:
        raise UserError(f"'{env.name}' has no time limit; give record a max_steps.")
    if min(limits) < 1:
        raise UserError(f"record got max_steps={max_steps}; it must be at least 1.")
    params = env.params if params is None else params
    first, *keys = jax.random.split(key, min(limits) + 1)
    state, timestep = jax.jit(env.reset)(first, params)
    memory = policy.memory(1)
    fps = UNTIMED_FPS
    if env.step_seconds is not None:
        fps = 1.0 / float(env.step_seconds(state, params))
    frames = [env.render(state, params)]
    for step_key in keys:
        state, timestep, memory = _advance(
            env, greedy, policy, params, step_key, state, timestep, memory
        )
        frames.append(env.render(state, params))
        if bool(timestep.done):
            break
    return Recording(frames, fps)


@functools.partial(jax.jit, static_argnames=("env", "greedy"))
def _advance(
    env: Environment,
    greedy: bool,
    policy: Policy,
    params: Tree,
    key: Key,
    state: Tree,
    timestep: TimeStep,
    memory: Tree,
) -> tuple[Tree, TimeStep, Tree]:
    act_key, step_key = jax.random.split(key)
    batch = jax.tree.map(lambda x: x[None], timestep)
    action, memory, _ = policy.act(policy.state, batch, memory, act_key, greedy)
    action = jax.tree.map(lambda x: x[0], action)
    state, timestep = env.step(step_key, state, action, params)
    return state, timestep, memory


def write_video(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording as the video that the ending of `path` names, .gif or .mp4.

    Raises `UserError` for any other ending, or as `write_gif` and `write_mp4` do.
    """
    kind = Path(path).suffix.removeprefix(".")
    if kind not in VIDEOS:
        raise unknown("format of a video", kind, VIDEOS)
    write = write_gif if kind == "gif" else write_mp4
    write(recording.frames, path, recording.fps)


def check_video_format(kind: str) -> None:
    """Raise `UserError` if videos of this format cannot be written here."""
    if kind == "mp4" and importlib.util.find_spec("av") is None:
        raise UserError(
            "mp4 videos need the package av: pip install 'jaxrl-research[video]', or use gif."
        )


def write_mp4(
    frames: Sequence[np.ndarray], path: str | os.PathLike[str], fps: float = UNTIMED_FPS
) -> None:
    """Write `frames`, uint8 `[H, W, 3]`, as an mp4 (H.264) of `fps` frames per second.

    Odd heights and widths lose their last row or column, since the format needs even ones. Missing
    folders of `path` are created.

    Raises `UserError` as `write_gif` does, or if the package av is not installed.
    """
    check_video_format("mp4")
    import av

    frames = _check_frames(frames, fps, "write_mp4")
    height, width = (n - n % 2 for n in frames[0].shape[:2])
    with av.open(str(_prepare_path(path)), "w") as file:
        stream = file.add_stream("libx264", rate=fractions.Fraction(fps).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for frame in frames:
            picture = np.ascontiguousarray(frame[:height, :width])
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


def write_gif(
    frames: Sequence[np.ndarray], path: str | os.PathLike[str], fps: float = UNTIMED_FPS
) -> None:
    """Write `frames`, uint8 `[H, W, 3]`, as an endless GIF of `fps` frames per second.

    A GIF counts time in hundredths of a second, so the durations of frames may differ by one. Above
    50 frames a second some frames are left out, but never the first or the last. The total duration
    matches `fps` to a hundredth of a second. Missing folders of `path` are created.

    Raises `UserError` if there are no frames, if they differ in shape, or if `fps` is not positive.
    """
    from PIL import Image

    frames, ticks = _schedule_frames(_check_frames(frames, fps, "write_gif"), fps)
    # All frames share a palette, since flat colors flicker with a palette for each frame. It is
    # computed from frames of the whole episode, side by side.
    sampled = frames[:: max(1, len(frames) // 16)]
    palette = Image.fromarray(np.concatenate(list(sampled), axis=1)).quantize(256)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    images[0].save(
        _prepare_path(path),
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[1000 // GIF_TICKS * n for n in ticks],
        loop=0,
    )


def _check_frames(frames: Sequence[np.ndarray], fps: float, name: str) -> list[np.ndarray]:
    """Return the frames as arrays, or raise `UserError`, which names the caller."""
    if not len(frames):
        raise UserError(f"{name} got no frames; it needs at least one.")
    if not fps > 0:
        raise UserError(f"{name} got fps={fps}; it must be positive.")
    checked = [_check_frame(frame, name) for frame in frames]
    shapes = {frame.shape for frame in checked}
    if len(shapes) > 1:
        raise UserError(f"{name} got frames of the shapes {sorted(shapes)}; all must be equal.")
    return checked


def _schedule_frames(
    frames: Sequence[np.ndarray], fps: float
) -> tuple[Sequence[np.ndarray], list[int]]:
    """Select the frames that a GIF can show, and the duration of each in ticks."""
    ticks = max(SHORTEST_TICKS, GIF_TICKS * len(frames) / fps)
    count = min(len(frames), int(ticks / SHORTEST_TICKS + 1e-3))
    shown = np.linspace(0, len(frames) - 1, count).round().astype(int)
    ends = np.linspace(0, ticks, count + 1).round().astype(int)
    return [frames[i] for i in shown], np.diff(ends).tolist()


def write_png(frame: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write one frame, uint8 `[H, W, 3]`, as a PNG. Missing folders of `path` are created.

    Raises `UserError` if `frame` has another shape or dtype.
    """
    from PIL import Image

    Image.fromarray(_check_frame(frame, "write_png")).save(_prepare_path(path), format="PNG")


def side_by_side(frames: Sequence[np.ndarray], height: int) -> np.ndarray:
    """Scale frames, uint8 `[H, W, 3]`, to one height and join them in a row `[height, W', 3]`."""
    from PIL import Image

    sizes = [(round(x.shape[1] * height / x.shape[0]), height) for x in frames]
    scaled = [
        np.asarray(
            Image.fromarray(_check_frame(x, "side_by_side")).resize(size, Image.Resampling.BOX)
        )
        for x, size in zip(frames, sizes, strict=True)
    ]
    return join_pictures(scaled, axis=1)


def join_pictures(pictures: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """Join pictures in a row (axis 1) or a column (axis 0), with white gaps."""
    shape = list(pictures[0].shape)
    shape[axis] = GAP
    gap = np.full(shape, 255, np.uint8)
    return np.concatenate([x for picture in pictures for x in (picture, gap)][:-1], axis)


def _check_frame(frame: np.ndarray, name: str) -> np.ndarray:
    """Return the frame as an array, or raise `UserError`, which names the caller."""
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UserError(
            f"{name} got a frame as {frame.dtype}{list(frame.shape)}; it must be uint8 [H, W, 3]."
        )
    return frame


def _prepare_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` after creating its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
