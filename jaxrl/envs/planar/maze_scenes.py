"""Steer a ball to a goal through a scene that is different in each episode.

The ball, its force, its walls and its expert are those of `point_maze`, in a room of `size` x
`size` cells of 1 m, of which `blocks` are solid: another layout of a fixed list in each episode.
All free cells are connected. Observation: float32 [4 + size * size]: position (m, from the room's
center; x to the right, y up) and velocity (m/s), then the scene: 1 for each solid cell, row by row
from the top. Goal, in `timestep.goal`: float32 [2], a position (m). Action: float32 [2], the force
in units of `gear`, clipped to [-1, 1]. Reward: 1 within `goal_radius` of the goal, which ends the
episode, and 0 elsewhere; time limit 80 steps of 0.05 s. Metrics: `success`, and `touched`, the
share of steps after which the ball was at a wall or a block.

Layouts 0 .. `layouts` - 1 are drawn from when `held_out` is false, as many others when it is true:
what is planned in a scene must come from what is seen of it. Start and goal are centers of random
free cells, with noise.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Goals, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.planar import mazes, point_maze
from jaxrl.envs.wrappers.time_limit import State as LimitedState
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    inner: Any  # parameters of `point_maze`
    walls: np.ndarray  # uint8 [2 * K, H, W]: the layouts to learn from, then those held out
    cells: np.ndarray  # int32 [2 * K, H * W]: free cells of each layout, then padding
    count: int  # number of free cells of a layout
    held_out: bool = False  # whether layouts are those held out


@struct
class State:
    inner: LimitedState
    layout: Array  # int32
    touched: Array  # number of steps with a contact
    steps: Array


def scatter(number: int, size: int, blocks: int) -> list[str]:
    """Return drawings of `number` layouts whose free cells are connected, all different where there
    are as many."""
    generator, found = np.random.default_rng(0), []
    tries = 0
    while len(found) < number:
        inner = np.zeros(size * size, bool)
        inner[generator.permutation(size * size)[:blocks]] = True
        inner = inner.reshape(size, size)
        solid = np.pad(inner, 1, constant_values=True)
        drawing = " ".join("".join("#" if x else "." for x in row) for row in solid)
        tries += 1
        if is_connected(inner) and (drawing not in found or tries > 100 * number):
            found.append(drawing)
    return found


def is_connected(solid: np.ndarray) -> bool:
    """Return whether the free cells of bool [H, W] are connected through shared sides."""
    free = ~solid
    reached = np.zeros_like(free)
    reached[tuple(np.argwhere(free)[0])] = True
    while True:
        padded = np.pad(reached, 1)
        near = padded[:-2, 1:-1] | padded[2:, 1:-1] | padded[1:-1, :-2] | padded[1:-1, 2:]
        spread = free & (reached | near)
        if (spread == reached).all():
            return bool((reached == free).all())
        reached = spread


def split(observation: Array) -> tuple[Array, Array]:
    """Return position and velocity [..., 4], and the solid cells [..., size * size]."""
    return observation[..., :4], observation[..., 4:]


def signed_distance(position: Array, scene: Array, cell: float = 1.0) -> Array:
    """Return the distance [..., T] (m) of positions [..., T, 2] from the nearest solid cell or the
    room's walls, negative inside. scene: [..., size * size]."""
    size = round(scene.shape[-1] ** 0.5)
    row, column = np.divmod(np.arange(size * size), size)
    center = np.stack([column - (size - 1) / 2, (size - 1) / 2 - row], -1) * cell
    outside = jnp.abs(position[..., None, :] - center) - cell / 2
    beyond = jnp.maximum(outside, 0.0)
    length = jnp.sqrt(jnp.square(beyond).sum(-1) + 1e-12)
    away = jnp.where((outside > 0).any(-1), length, outside.max(-1))
    blocks = jnp.where(scene[..., None, :] > 0.5, away, jnp.inf).min(-1)
    return jnp.minimum(blocks, (size * cell / 2 - jnp.abs(position)).min(-1))


@functools.cache
def maze_scenes(size: int = 5, blocks: int = 6, layouts: int = 64) -> Environment:
    """Rooms of `size` x `size` cells (at least 3) with `blocks` solid ones, at most all but two."""
    at_least("maze_scenes", "size", size, 3)
    at_least("maze_scenes", "blocks", blocks, 0)
    at_least("maze_scenes", "layouts", layouts, 1)
    if blocks > size**2 - 2:
        raise UserError(
            f"The blocks of 'maze_scenes' are {blocks}; in {size} x {size} cells there may be at "
            f"most {size**2 - 2}, since a start and a goal must be free."
        )
    drawings = scatter(2 * layouts, size, blocks)
    parsed = [mazes.maze(drawing) for drawing in drawings]
    env = point_maze.point_maze(drawings[0])
    ball = dataclasses.replace(env.params, dt=0.05)
    padded = [point_maze.with_maze(ball, maze).starts for maze in parsed]
    params = Params(
        ball, np.stack([maze.walls for maze in parsed]), np.stack(padded), len(parsed[0].starts)
    )

    def here(layout: Array, params: Params) -> Any:
        """Return the parameters of the ball in a layout."""
        cells = jnp.asarray(params.cells)[layout]
        return dataclasses.replace(
            params.inner,
            walls=jnp.asarray(params.walls)[layout],
            starts=cells,
            goals=cells,
            num_starts=params.count,
            num_goals=params.count,
        )

    def observe(state: State, params: Params) -> Array:
        walls = jnp.asarray(params.walls)[state.layout, 1:-1, 1:-1]
        physics = state.inner.inner.physics
        return jnp.concatenate([physics, walls.reshape(-1).astype(jnp.float32)])

    def channels(state: State, success: Array) -> dict:
        touched = state.touched / jnp.maximum(state.steps, 1.0)
        metrics = {"success": success, "touched": touched}
        return {"goal": state.inner.inner.goal, "metrics": metrics}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        layout_key, key = jax.random.split(key)
        layout = jax.random.randint(layout_key, (), 0, layouts) + layouts * jnp.asarray(
            params.held_out
        )
        inner, _ = env.reset(key, here(layout, params))
        none = jnp.zeros(())
        state = State(inner, layout.astype(jnp.int32), none, none)
        return state, timesteps.first(observe(state, params), **channels(state, none))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        before = dataclasses.replace(state.inner, steps=jnp.int32(0))
        inner, timestep = env.step(key, before, action, here(state.layout, params))
        after = dataclasses.replace(state, inner=inner)
        physics, scene = split(observe(after, params))
        distance = signed_distance(physics[None, :2], scene, params.inner.cell)[0]
        touch = (distance < params.inner.radius + 1e-3).astype(jnp.float32)
        after = State(inner, state.layout, state.touched + touch, state.steps + 1)
        assert timestep.metrics is not None
        return after, timesteps.following(
            observe(after, params),
            timestep.reward,
            timestep.terminated,
            **channels(after, timestep.metrics["success"]),
        )

    inner_goals, inner_expert, inner_render = env.goals, env.expert, env.render
    assert inner_goals is not None and inner_expert is not None and inner_render is not None
    outcome = lambda achieved, goal, params: inner_goals.outcome(achieved, goal, params.inner)
    return time_limit(
        Environment(
            name="maze_scenes",
            reset=jax.jit(reset, inline=True),
            step=jax.jit(step, inline=True),
            params=params,
            observation_space=Box(-np.inf, np.inf, (4 + size * size,)),
            action_space=Box(-1.0, 1.0, (2,)),
            render=lambda state, params: inner_render(state.inner, here(state.layout, params)),
            step_seconds=lambda state, params: params.inner.dt,
            expert=lambda state, params: inner_expert(state.inner, here(state.layout, params)),
            goals=Goals(inner_goals.achieved, outcome),
        ),
        80,
    )
