"""Exact shortest distances between all places of a grid with a goal, by breadth-first search."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, struct
from jaxrl.envs.grids import cells

MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))  # east, south, west, north


@struct
class MazeDistances:
    """Places of a maze and the steps between them.

    place: row and column of each place where one can stand, int32 [N, 2]. goal: the same on the
    scale of `goals.achieved`, float32 [N, 2]. steps: fewest steps from each place to each other,
    float32 [N, N], infinite where there is no path. next: number of the place that each of the four
    actions leads to, int32 [N, 4].
    """

    place: np.ndarray
    goal: np.ndarray
    steps: np.ndarray
    next: np.ndarray


def maze_distances(env: Environment) -> MazeDistances:
    """Return the distances in a maze of `envs.grids.goals` whose grid is always the same (a
    `layout`, or a number as `maze`).

    Walls cannot be entered, and a one-way door only in its direction. Raises `UserError` for
    environments without a grid, and for those whose grid changes with the episode.
    """
    grids = [_grid(env, seed) for seed in (0, 1)]
    if (grids[0] != grids[1]).any():
        raise UserError(
            f"The maze of '{env.name}' changes with the episode; fix it by `layout` or `maze`."
        )
    grid = grids[0]
    codes = jnp.asarray(grid)
    kind, direction = np.asarray(cells.kind(codes)), np.asarray(cells.color(codes))
    place = np.argwhere(kind != cells.WALL_KIND).astype(np.int32)
    number = {(int(row), int(column)): i for i, (row, column) in enumerate(place)}

    def after(row: int, column: int, action: int) -> int:
        down, right = MOVES[action]
        there = (row + down, column + right)
        blocked = there not in number or (
            kind[there] == cells.ONE_WAY and direction[there] != action
        )
        return number[(row, column) if blocked else there]

    follow = np.array([[after(*cell, action) for action in range(4)] for cell in number], np.int32)
    steps = np.full((len(place), len(place)), np.inf, np.float32)
    for start in range(len(place)):
        frontier, distance = {start}, 0
        while frontier:
            steps[start, list(frontier)] = distance
            reached = {int(there) for here in frontier for there in follow[here]}
            frontier = {there for there in reached if np.isinf(steps[start, there])}
            distance += 1
    scale = (np.array(grid.shape, np.float32) - 1) / 2
    return MazeDistances(place, place / scale - 1, steps, follow)


def _grid(env: Environment, seed: int) -> np.ndarray:
    state: Any = env.reset(random.key(seed), env.params)[0]
    while not hasattr(state, "grid"):
        if not hasattr(state, "inner"):
            raise UserError(f"'{env.name}' is not a grid; its distances are not known.")
        state = state.inner
    return np.asarray(state.grid)
