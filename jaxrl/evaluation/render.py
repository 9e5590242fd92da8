"""Watch a policy: the frames of one episode, as a GIF or a picture."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Key, Policy, TimeStep, Tree

UNTIMED_FPS = 8.0  # steps that are shown in a second where the environment has no time of its own
GIF_TICKS = 100  # a GIF counts time in hundredths of a second,
SHORTEST_TICKS = 2  # and viewers slow down frames that are shorter than two
GAP = 4  # pixels between pictures that are joined


class Recording(NamedTuple):
    """The frames, uint8 `[H, W, 3]`, of one episode, and how many of them are a second of the
    environment's own time (`UNTIMED_FPS` where it has none)."""

    frames: list[np.ndarray]
    fps: float


def record(
    env: Environment,
    policy: Policy,
    key: Key,
    max_steps: int | None = None,
    params: Tree = None,
    greedy: bool = True,
) -> Recording:
    """One episode: a frame of the first state and of the one after each step.

    max_steps: stop after so many steps; the environment's own limit when None.
    params: the environment's parameters; its defaults when None.
    greedy: what `policy.act` is told; false draws actions as in training.

    Raises `UserError` when `env` cannot be rendered, or when neither it nor `max_steps` limits the
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


def write_gif(
    frames: Sequence[np.ndarray], path: str | os.PathLike[str], fps: float = UNTIMED_FPS
) -> None:
    """Write `frames`, uint8 `[H, W, 3]`, as an endless GIF of `fps` frames per second.

    A GIF counts time in hundredths of a second, so frames differ by one where `fps` needs it; of
    more than 50 frames a second some are left out, never the first and the last. The whole lasts as
    long as `fps` says, to a hundredth of a second. Missing folders of `path` are made.

    Raises `UserError` when there are no frames, when they differ in shape, or when `fps` is not
    positive.
    """
    from PIL import Image

    if not len(frames):
        raise UserError("write_gif got no frames; it needs at least one.")
    if not fps > 0:
        raise UserError(f"write_gif got fps={fps}; it must be positive.")
    shapes = {_checked(frame, "write_gif").shape for frame in frames}
    if len(shapes) > 1:
        raise UserError(f"write_gif got frames of the shapes {sorted(shapes)}; all must be equal.")
    frames, ticks = _timed(frames, fps)
    # One palette for all: a palette for each frame makes flat colors flicker. It is taken from
    # frames throughout the episode, side by side.
    sampled = frames[:: max(1, len(frames) // 16)]
    palette = Image.fromarray(np.concatenate(list(sampled), axis=1)).quantize(256)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    images[0].save(
        _ready(path),
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[1000 // GIF_TICKS * n for n in ticks],
        loop=0,
    )


def _timed(frames: Sequence[np.ndarray], fps: float) -> tuple[Sequence[np.ndarray], list[int]]:
    """Those of `frames` that a GIF can show, and for how many ticks each."""
    ticks = max(SHORTEST_TICKS, GIF_TICKS * len(frames) / fps)
    count = min(len(frames), int(ticks / SHORTEST_TICKS + 1e-3))
    shown = np.linspace(0, len(frames) - 1, count).round().astype(int)
    ends = np.linspace(0, ticks, count + 1).round().astype(int)
    return [frames[i] for i in shown], np.diff(ends).tolist()


def write_png(frame: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Write one frame, uint8 `[H, W, 3]`, as a PNG. Missing folders of `path` are made.

    Raises `UserError` when `frame` has another shape or dtype.
    """
    from PIL import Image

    Image.fromarray(_checked(frame, "write_png")).save(_ready(path), format="PNG")


def side_by_side(frames: Sequence[np.ndarray], height: int) -> np.ndarray:
    """Frames, uint8 `[H, W, 3]`, scaled to one height, in a row `[height, W', 3]`."""
    from PIL import Image

    sizes = [(round(x.shape[1] * height / x.shape[0]), height) for x in frames]
    scaled = [
        np.asarray(Image.fromarray(_checked(x, "side_by_side")).resize(size, Image.Resampling.BOX))
        for x, size in zip(frames, sizes, strict=True)
    ]
    return joined(scaled, axis=1)


def joined(pictures: Sequence[np.ndarray], axis: int) -> np.ndarray:
    """The pictures in a row (axis 1) or a column (axis 0), with white gaps."""
    shape = list(pictures[0].shape)
    shape[axis] = GAP
    gap = np.full(shape, 255, np.uint8)
    return np.concatenate([x for picture in pictures for x in (picture, gap)][:-1], axis)


def _checked(frame: np.ndarray, name: str) -> np.ndarray:
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise UserError(
            f"{name} got a frame as {frame.dtype}{list(frame.shape)}; it must be uint8 [H, W, 3]."
        )
    return frame


def _ready(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
