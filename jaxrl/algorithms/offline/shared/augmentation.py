"""Augmentation of transitions in the plane: the same motion at another place, turned, and for
another goal, where the dynamics and the reward of the result are known to be right.

`turn_in_maze` is of point mazes: the ball moves alike everywhere that it touches no wall, and
whatever it does can be turned by quarters of a circle. A guided augmentation turns each motion the
way that leads on to the goal.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, TimeStep, Transition
from jaxrl.datasets.transitions import concatenate
from jaxrl.envs.planar import mazes, vectors
from jaxrl.envs.planar.point_maze import Params

QUARTERS = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]])
ROUNDOFF = 1e-4  # m, largest distance of a free step from the sum of place and velocity
MOST_ROUNDS = 100  # proposals for each augmented transition that is wanted


class Augmentation(Protocol):
    """A random change of one transition."""

    def __call__(self, key: Key, x: Transition, /) -> tuple[Transition, Array]:
        """Return a changed transition, and whether it is valid: whether the environment could have
        played it, and, in a guided augmentation, whether it is progress.

        x: one transition.
        """
        ...


def check_maze(env: Environment, name: str) -> None:
    """Raise `UserError` unless `env` is a point maze whose steps have no delay."""
    if not isinstance(env.params, Params) or env.goals is None or env.state_of is None:
        raise UserError(
            f"{name} augments transitions of point mazes; there is no augmentation for "
            f"'{env.name}'."
        )
    if float(env.params.delay):
        raise UserError(f"{name} needs steps without delay; that of '{env.name}' is not 0.")


def turn_in_maze(env: Environment, guided: bool) -> Augmentation:
    """Return the augmentation that moves a step of a point maze to a random free place, with a
    random goal, and turns it by a quarter of a circle or several.

    guided: turn it so that it leads to the next cell on a shortest path to the goal, or in the
        goal's cell to the goal itself, as well as a turn can; and leave out what leads away even
        so. Otherwise the turn is random.

    A step is invalid where it or the original touches a wall, and where it begins at its goal.
    """
    params, goals = env.params, env.goals
    assert goals is not None
    walls, cell = np.asarray(params.walls), float(params.cell)
    height, width = walls.shape

    def center(cells):
        row, column = cells[..., 0], cells[..., 1]
        place = jnp.stack([column - (width - 1) / 2, (height - 1) / 2 - row], -1)
        return place * cell

    def cell_of(place):
        down = jnp.stack([height / 2 - place[1] / cell, place[0] / cell + width / 2])
        return jnp.floor(down).astype(jnp.int32)

    free, solid = (jnp.asarray(np.argwhere(x)) for x in (walls == 0, walls != 0))
    blocks = center(solid)

    def is_clear(place):
        beyond = jnp.maximum(jnp.abs(place - blocks) - cell / 2, 0.0)
        return (vectors.norm(beyond) > params.radius).all()

    def augment(key: Key, x: Transition) -> tuple[Transition, Array]:
        cell_key, place_key, goal_key, turn_key = jax.random.split(key, 4)
        before, after = x.observation, x.next_observation
        move = after[:2] - before[:2]
        was_free = jnp.abs(move - params.dt * after[2:]).max() < ROUNDOFF
        where = center(free[jax.random.randint(cell_key, (), 0, len(free))])
        offset = jax.random.uniform(place_key, (2,), minval=-0.5, maxval=0.5)
        place = where + cell * offset
        goal = env.reset(goal_key, params)[1].goal

        turn = jax.random.randint(turn_key, (), 0, len(QUARTERS))
        progress = jnp.bool_(True)
        if guided:
            here, there = cell_of(place), cell_of(goal)
            onward = center(mazes.next_cell(jnp.asarray(walls), here, there)) - center(here)
            direction = jnp.where((here == there).all(), goal - place, onward)
            ahead = jnp.einsum("qij,j,i->q", QUARTERS, move, direction)
            turn, progress = ahead.argmax(), ahead.max() > 0
        rotation = jnp.asarray(QUARTERS, jnp.float32)[turn]
        turned = lambda vector: rotation @ vector
        next_place = place + turned(move)

        def move_step(timestep: TimeStep, place, velocity, **changes) -> TimeStep:
            seen = jnp.concatenate([place, turned(velocity)])
            return dataclasses.replace(timestep, observation=seen, goal=goal, **changes)

        reward, terminated = goals.outcome(next_place, goal, params)
        never = jnp.zeros((), bool)
        found = dataclasses.replace(
            x,
            timestep=move_step(x.timestep, place, before[2:], first=never),
            action=turned(x.action),
            next_timestep=move_step(
                x.next_timestep,
                next_place,
                after[2:],
                reward=jnp.asarray(reward, jnp.float32),
                terminated=jnp.asarray(terminated, bool),
                truncated=never,
            ),
        )
        arrived = goals.outcome(place, goal, params)[1]
        clear = is_clear(place) & is_clear(next_place)
        return found, was_free & clear & ~arrived & progress

    return augment


def augment(
    observed: Transition, augmentation: Augmentation, count: int, seed: int
) -> tuple[Transition, float]:
    """Return `count` augmented transitions as NumPy arrays, all valid, and the share of proposals
    that were.

    observed: transitions [N], which are gone through in turn. Metrics are left out.

    Raises `UserError` if too few proposals are valid.
    """
    bare = without_metrics(observed)
    propose = jax.jit(jax.vmap(augmentation))
    size, found, number = len(observed.reward), [], 0
    rounds = -(-count // size) * MOST_ROUNDS
    for attempt in range(rounds):
        keys = jax.random.split(jax.random.fold_in(random.key(seed), attempt), size)
        proposed, valid = jax.device_get(propose(keys, bare))
        found.append(jax.tree.map(lambda x, kept=valid: x[kept], proposed))
        number += int(valid.sum())
        if number >= count:
            whole = concatenate(found, [f"round {i}" for i in range(len(found))])
            return jax.tree.map(lambda x: x[:count], whole), number / (size * (attempt + 1))
    raise UserError(
        f"Of {rounds * size} augmented transitions {number} are valid; {count} were wanted. Use "
        "data that touch fewer walls, or fewer copies."
    )


def without_metrics(transitions: Transition) -> Transition:
    """Return transitions without the channel `metrics`."""
    bare = lambda timestep: dataclasses.replace(timestep, metrics=None)
    return dataclasses.replace(
        transitions,
        timestep=bare(transitions.timestep),
        next_timestep=bare(transitions.next_timestep),
    )
