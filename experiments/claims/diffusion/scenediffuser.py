"""Paths of SceneDiffuser in rooms of 3 x 3 cells: the denoiser is exact for a mixture of paths, in
float64, and paths are drawn by the algorithm's own acting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import envs
from jaxrl.algorithms.diffusion import scenediffuser
from jaxrl.core.settings import Static, replace
from jaxrl.core.types import Array, Key, TimeStep
from jaxrl.diffusion import VariancePreserving

LEVELS, SAMPLES, SPREAD, RARE, NEAR = 150, 1024, 0.05, 0.1, 0.4
ENV = envs.make("maze_scenes", size=3, blocks=1, layouts=2)  # for its spaces and its ball
HALF = 1.5  # half-width of the room, m
SCENES = np.zeros((2, 9))
SCENES[0, 4] = SCENES[1, 1] = 1.0  # the middle is solid, or the middle of the top row
START, GOAL = np.array([-1.0, 0.0]), np.array([1.0, 0.0])
# Paths in m after their start: to the corners, to the goal above, to the goal through the middle,
# and to the nearest corner. In each scene one of the two that end at the goal is blocked.
PATHS = np.array(
    [
        [(-1, 1), (0, 1), (1, 1), (1, 1)],
        [(-1, -1), (0, -1), (1, -1), (1, -1)],
        [(-1, 1), (0, 1), (1, 1), (1, 0)],
        [(-0.5, 0), (0, 0), (0.5, 0), (1, 0)],
        [(-1, 0.5), (-1, 1), (-1, 1), (-1, 1)],
    ]
)
TO_GOAL = np.array([False, False, True, True, False])
PROCESS = VariancePreserving(LEVELS, "cosine", prediction="clean", axes=2)
CONFIG = replace(
    scenediffuser.Config(), {"horizon": len(PATHS[0]) + 1, "execute": 1, "levels": LEVELS}
)
RECIPE = scenediffuser.recipe(ENV, Static(CONFIG))  # pyright: ignore[reportArgumentType]


def draw(key: Key) -> tuple[Array, Array]:
    """Return paths [M, T, 4] of positions (half-widths) and velocities, and how likely each is in
    each scene, [2, M]."""
    path_key, share_key = jax.random.split(key)
    path = PATHS + jax.random.uniform(path_key, PATHS.shape, minval=-0.08, maxval=0.08)
    start = jnp.broadcast_to(START, (len(PATHS), 1, 2))
    path = jnp.concatenate([start, path], 1) / HALF
    rest = jax.random.dirichlet(share_key, jnp.full(3, 4.0), (2,)) * (1 - 2 * RARE)
    share = jnp.full((2, len(PATHS)), RARE).at[:, ~TO_GOAL].set(rest)
    return jnp.concatenate([path, jnp.zeros_like(path)], -1), share


def is_blocked(places: Array, scene: Array) -> Array:
    """Return whether paths [B, T, 2] (m) touch a solid cell of scenes [B, 9], or leave the room."""
    column, row = jnp.floor(places[..., 0] + HALF), jnp.floor(HALF - places[..., 1])
    inside = (column >= 0) & (column < 3) & (row >= 0) & (row < 3)
    cell = jnp.clip(3 * row + column, 0, 8).astype(int)
    return (~inside | (jnp.take_along_axis(scene, cell, 1) > 0.5)).any(-1)


def errors_of(
    key: Key, collision: Array | float, goal: Array | float, other: Array | int
) -> dict[str, Array]:
    """Return shares of paths, the larger of both scenes.

    "generated": total variation between paths of each kind without objectives and those of the
    data. "blocked": paths through something solid, with the collision objective. "not planned":
    paths through something solid, or that do not end near the goal, with both objectives.
    collision, goal: weights of objectives. other: 1 to show the other scene.
    """
    draw_key, *keys = jax.random.split(key, 4)
    path, share = draw(draw_key)
    at = jnp.arange(SAMPLES) % 2
    scene, shown = jnp.asarray(SCENES)[at], jnp.asarray(SCENES)[(at + other) % 2]

    def denoiser(noisy: Array, level: Array, scene: Array) -> Array:
        """Return the expected clean paths [B, T, 4] of noisy ones, whose first row is known."""
        bar = PROCESS.alpha_bars()[jnp.round(level * LEVELS).astype(int)][:, None, None, None]
        variance = bar * SPREAD**2 + 1 - bar
        apart = noisy[:, None] - jnp.sqrt(bar) * path
        fit = (-jnp.square(apart) / (2 * variance))[:, :, 1:].sum((-1, -2))
        number = (scene @ SCENES.T).argmax(-1)
        weight = jax.nn.softmax(fit + jnp.log(share)[number], -1)[..., None, None]
        return (weight * (path + jnp.sqrt(bar) * SPREAD**2 / variance * apart)).sum(1)

    def sample(key: Key, collision: Array | float, goal: Array | float) -> Array:
        """Return paths [B, T - 1, 2], m."""
        hyper = SimpleNamespace(
            collision_weight=collision, goal_weight=goal, largest_shift=0.1, margin=0.2
        )
        net: Any = SimpleNamespace(target=SimpleNamespace(denoiser=denoiser), hyper=hyper)
        begin = jnp.broadcast_to(jnp.append(START, jnp.zeros(2)), (SAMPLES, 4))
        no = jnp.zeros(SAMPLES, bool)
        timestep = TimeStep(
            jnp.concatenate([begin, shown], -1),
            jnp.zeros(SAMPLES),
            no,
            no,
            ~no,
            goal=jnp.broadcast_to(GOAL, (SAMPLES, 2)),
        )
        found = RECIPE.act(net, timestep, RECIPE.memory(SAMPLES), key, True)[1]
        return found.steps.astype(float)

    def by_scene(x: Array) -> Array:
        return jax.nn.one_hot(at, 2, dtype=float).T @ x / (SAMPLES / 2)

    plain = sample(keys[0], 0.0, 0.0)
    away = jnp.abs(plain[:, None] - HALF * path[None, :, 1:, :2]).sum((-1, -2))
    kinds = by_scene(jax.nn.one_hot(away.argmin(-1), len(PATHS), dtype=float))
    free = sample(keys[1], collision, 0.0)
    planned = sample(keys[2], collision, goal)
    arrived = jnp.abs(planned[:, -1] - GOAL).max(-1) < NEAR
    failed = is_blocked(planned, scene) | ~arrived
    return {
        "generated": 0.5 * jnp.abs(kinds - share).sum(-1).max(),
        "blocked": by_scene(is_blocked(free, scene).astype(float)).max(),
        "not planned": by_scene(failed.astype(float)).max(),
    }


compiled = jax.jit(errors_of)


def errors(key: Key) -> dict[str, Array]:
    """Return the errors with both objectives."""
    return compiled(key, 1.0, 1.0, 0)


CLAIM = Exact(
    paper=Paper(
        "Diffusion-based Generation, Optimization, and Planning in 3D Scenes",
        "Huang et al.",
        2023,
        "2301.06015",
        "One diffusion model that is told the scene generates, is optimized toward what is "
        "physically possible and plans toward goals, by objectives whose gradients guide its "
        "sampling.",
    ),
    claim="With an exact denoiser, paths have the data's shares in each of two scenes; with the "
    "collision objective at most a tenth is blocked, and with that of the goal too nine of ten "
    "reach it unblocked, by the way that the scene leaves, as a tenth of the data does.",
    left_out="Networks, scanned rooms, bodies and grasps. The denoiser is of a mixture of five "
    "paths of four steps in rooms of 3 x 3 cells; the steps of a path count as blocked, not the "
    "way between two of them. Guided paths do not have the law of the data times exp(-objective), "
    "since shifts are not multiplied by the variance of a step: with both objectives a tenth of "
    "the paths has a step 0.9 m off every path of the data. Shares are of 512 paths in each scene, "
    "which set the tolerance.",
    notes="Numbers were chosen on four other seeds. On two of them, with 20 denoising steps, the "
    "default, three of ten paths reached the goal unblocked, and with 60 half, since a step moves "
    "a path by at most 0.1 half-widths; so 150 are taken. With 20 and the goal's distance counted "
    "at all steps of a path, 7 to 82 of 100 did.",
    parts=(
        "jaxrl/algorithms/diffusion/scenediffuser.py",
        "jaxrl/envs/planar/maze_scenes.py",
        "jaxrl/diffusion/processes.py",
        "jaxrl/diffusion/sampling.py",
    ),
    errors=errors,
    planted={
        "no collision objective": lambda key: compiled(key, 0.0, 1.0, 0),
        "no goal": lambda key: compiled(key, 1.0, 0.0, 0),
        "the other scene is shown": lambda key: compiled(key, 1.0, 1.0, 1),
    },
    tolerance=0.1,
    effect=0.2,
    seeds=6,
    minutes=4.0,
    mutations=(
        Mutation(
            "distances are zero in walls",
            "jaxrl.envs.planar.maze_scenes:signed_distance",
            lambda distance: lambda places, scene: jnp.maximum(distance(places, scene), 0.0),
        ),
        Mutation(
            "the goal moves the first step",
            "jaxrl.algorithms.diffusion.scenediffuser:goal_distance",
            lambda distance: (
                lambda places, goal, frames: distance(places[..., :1, :], goal, frames)
            ),
        ),
    ),
)
