"""SceneDiffuser (Huang et al., 2023, "Diffusion-based generation, optimization, and planning in 3D
scenes", arXiv:2301.06015, and its published code): one diffusion model of paths in scenes, which
objectives guide while it samples.

The model denoises paths, given the scene and where they begin (generation). What is wanted of a
path besides is an objective whose gradient moves the mean of each denoising step: not to lie within
`margin` of anything solid (optimization), and to end at the goal (planning). The model itself never
sees the goal. A path is followed for `execute` steps, and then planned anew.

    collision = sum over the path of max(0, margin - distance to the nearest wall)
    goal      = L1 distance from the goal, at the path's end or summed over the path

These are objectives of the authors' code for navigation (`last_frame_l1`, its default, and
`all_frame_l1`), which measures distances to the points of a scanned room; here rooms are grids of
cells, and distances are signed, so that there is a way out of a wall. There the gradient is
multiplied by the step's variance or not (`div_var`), and each number is clipped to 0.1; here it is
not multiplied. The paper's scenes are scans of rooms, seen by a point transformer, and its agent is
moved along the path; here the denoiser is told a vector of cells, paths are of positions and
velocities, and the ball is driven to each next position by the force that its mass and damping ask
for.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import diffusion, losses
from jaxrl.algorithms.diffusion.shared import policies
from jaxrl.algorithms.diffusion.shared.chunks import (
    check_plans,
    follow_plan,
    no_plan,
    rows_within_episodes,
    take_rows,
)
from jaxrl.algorithms.diffusion.shared.data import Data
from jaxrl.core import spaces
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import WIDE
from jaxrl.core.types import Array, Environment, Source, TimeStep, Transition
from jaxrl.diffusion import Hooks, VariancePreserving
from jaxrl.envs.planar.maze_scenes import Params, signed_distance, split
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, hyper, loss, static
from jaxrl.kit.groups import Optimizer, Target
from jaxrl.networks.denoisers import TrajectoryDenoiser

STATE = 4  # numbers of position and velocity
FASTEST = 2.0  # m/s that count as 1


@group
class Config:
    """Settings of SceneDiffuser: paths in scenes, guided by objectives (arXiv:2301.06015)."""

    data: Data = Data(name="demonstrations", batch_size=64)
    optimizer: Optimizer = Optimizer(learning_rate=5e-4)
    """Optimizer settings of the denoiser."""
    average: Target = Target(rate=0.005)
    """Running average of the denoiser, which plans."""

    horizon: int = static(32, low=2)
    """Number of steps in a path."""
    execute: int = static(8, low=1)
    """Number of steps of a path that are followed."""
    levels: int = static(20, low=1)
    """Number of denoising steps."""
    width: int = static(64, low=1, high=WIDE)
    """Channels of the convolutions."""
    blocks: int = static(4, low=1)
    """Number of residual blocks of the denoiser, whose reach doubles."""
    goal_frames: str = static("last", choices=("last", "all"))
    """Steps of a path whose distance from the goal counts: last, or all."""
    collision_weight: float = hyper(1.0, low=0)
    """Weight of the collision objective while planning; 0 for none."""
    goal_weight: float = hyper(1.0, low=0)
    """Weight of the goal objective while planning; 0 for none."""
    largest_shift: float = hyper(0.1, above=0)
    """Largest size of each number by which a step is moved for either objective, in half-widths of
    the room. 0.1: authors' code."""
    margin: float = hyper(0.2, above=0)
    """Distance to anything solid, in m, below which a path is penalized."""


def collision(places: Array, scene: Array, margin: Array | float) -> Array:
    """Return by how much paths [..., T, 2] come too close to anything solid, summed: [...]."""
    return jnp.maximum(margin - signed_distance(places, scene), 0.0).sum(-1)


def goal_distance(places: Array, goal: Array, frames: str = "last") -> Array:
    """Return the L1 distance [...] of the ends of paths [..., T, 2] from goals [..., 2], or the sum
    over all of their steps."""
    away = jnp.abs(places - goal[..., None, :]).sum(-1)
    return away[..., -1] if frames == "last" else away.sum(-1)


def drive(physics: Array, aim: Array, ball: Any) -> Array:
    """Return the action [..., 2] after which a ball at `physics` [..., 4] is at `aim` [..., 2], but
    for limits and walls.

    ball: parameters of `point_maze`.
    """
    velocity = (aim - physics[..., :2]) / ball.dt
    change = (velocity - physics[..., 2:]) / ball.dt
    return (ball.mass * change + ball.damping * velocity) / ball.gear


def recipe(env: Environment, config: Config) -> Recipe:
    space, horizon, ball = env.action_space, config.horizon, env.params.inner
    cells = env.observation_space.shape[0] - STATE
    half = cells**0.5 / 2 * float(ball.cell)
    units = jnp.asarray([half, half, FASTEST, FASTEST])
    process = VariancePreserving(config.levels, "cosine", prediction="clean", axes=2)
    known = jnp.asarray(np.arange(horizon) == 0)[:, None]

    def paths(x: Transition) -> tuple[Array, Array]:
        """Return windows [H, B] as paths [B, H, 4], and the scenes [B, C] they are in."""
        physics, scene = split(x.observation)
        steps = take_rows(physics / units, rows_within_episodes(x, 0))
        return jnp.moveaxis(steps, 0, 1), scene[0]

    @loss("denoiser")
    def denoiser_loss(net, x):
        """Predict clean paths from noisy ones, their beginning and the scene."""
        clean, scene = paths(x)
        found = process.add_noise(net.key(), clean)
        noisy = diffusion.inpaint(found.noisy, clean, known)
        output = diffusion.inpaint(net.denoiser(noisy, found.level, scene), clean, known)
        error = losses.prediction_error(output, clean).mean(-1)
        return jnp.broadcast_to(error, x.reward.shape)

    def make_plan(net: Net, timestep: TimeStep, key: Any) -> Array:
        """Return the positions [B, H - 1, 2] (m) of paths that begin here, after the first."""
        batch, h = timestep.reward.shape, net.hyper
        physics, scene = split(timestep.observation)
        told = jnp.zeros((*batch, horizon, STATE)).at[:, 0].set(physics / units)

        distance = functools.partial(goal_distance, frames=config.goal_frames)

        def avoid(x: Array) -> Array:
            return -h.collision_weight * collision(x[..., :2] * half, scene, h.margin).sum()

        def approach(x: Array) -> Array:
            return -h.goal_weight * distance(x[..., :2] * half, timestep.goal).sum()

        def adjust(mean: Array, variance: Array, level: Array) -> Array:
            del variance, level
            limit = lambda gradient: jnp.clip(gradient, -h.largest_shift, h.largest_shift)
            mean = mean + limit(jax.grad(avoid)(mean))
            return mean + limit(jax.grad(approach)(mean))

        hooks = Hooks(known=lambda x: diffusion.inpaint(x, told, known), adjust=adjust)
        predict = lambda noisy, level: net.target.denoiser(noisy, level, scene)
        found = process.sample(key, predict, told.shape, hooks=hooks)
        return found[:, 1:, :2] * half

    def act(net, timestep, memory, key, greedy):
        plan = lambda timestep, past, key: make_plan(net, timestep, key)
        now, execute = split(timestep.observation)[0], config.execute
        aim, memory = follow_plan(plan, timestep, memory, key, features=now, execute=execute)
        return spaces.clip(space, drive(now, aim, ball)), memory, {}

    inputs = jnp.zeros((1, horizon, STATE)), jnp.ones(1), jnp.zeros((1, cells))
    network = TrajectoryDenoiser(STATE, config.width, config.blocks)
    return Recipe(
        parts={"denoiser": Part(network, inputs, config.optimizer, config.average)},
        act=act,
        losses=(denoiser_loss,),
        memory=lambda n: no_plan(n, horizon - 1, 2, 0, STATE),
    )


def source(env: Environment, config: Config) -> Source:
    """Return windows [H, B] of the dataset, in the layouts that are not held out."""
    shown = dataclasses.replace(env, params=dataclasses.replace(env.params, held_out=False))
    steps = config.data.steps(shown)
    return config.data.windows(steps, config.data.batch_size, config.horizon)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` unless `env` shows scenes, actions are one bounded box, paths are as long
    as they are followed, and there is a dataset alone."""
    policies.check(env, config, name)
    check_plans(dataclasses.replace(config, horizon=config.horizon - 1), name)
    if not isinstance(env.params, Params):
        raise UserError(
            f"{name} plans in scenes, which '{env.name}' does not show; try maze_scenes."
        )


scenediffuser = AlgorithmBuilder("scenediffuser", Config, recipe, source, check=check)

TINY = {
    "env": "maze_scenes",
    "env_params": {"size": 3, "blocks": 1, "layouts": 2},
    "data.size": 600,
    "data.batch_size": 8,
    "data.updates": 2,
    "data.num_shards": 4,
    "horizon": 4,
    "execute": 2,
    "levels": 2,
    "width": 8,
    "blocks": 1,
}
