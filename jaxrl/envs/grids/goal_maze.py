"""Reach a given place in a maze.

Observation, actions, reward, termination and `goals` as in `jaxrl.envs.grids.goals`; time limit
2 * the maze's free cells. By default every episode has a new perfect maze (one path between any two
cells): the tree of shortest paths over a lattice whose links cost exp(10 u), u uniform; so uneven
that it is nearly the minimum spanning tree that Prim's and Kruskal's algorithms draw. With `layout`
or `maze` the maze is always the same, and only start and goal are random: `open`, `spiral`, and the
layouts `u_maze`, `medium` and `large` of D4RL's PointMaze (Fu et al., 2020), here as grids; or the
random maze of a number. Expert: a shortest path.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core import errors
from jaxrl.core.types import Array, Environment, Key
from jaxrl.envs.grids import cells, levels, paths
from jaxrl.envs.grids.goals import goal_environment
from jaxrl.envs.options import at_least
from jaxrl.envs.planar import mazes

LAYOUTS = {
    **{name: mazes.LAYOUTS[name] for name in ("u_maze", "medium", "large")},
    "open": "######### " + "#.......# " * 7 + "#########",
    "spiral": (
        "########### #.........# #########.# #.......#.# #.#####.#.# #.#...#.#.# #.#.###.#.# "
        "#.#.....#.# #.#######.# #.........# ###########"
    ),
}


@functools.cache
def goal_maze(
    size: int = 11, layout: str = "random", observe: str = "planes", maze: int = levels.FRESH
) -> Environment:
    """The random maze of `size` x `size` cells (odd), or the maze called `layout`. `observe`:
    "planes" or "position". `maze`: number of one random maze for all episodes; -1 for new ones."""
    if layout == "random":
        at_least("goal_maze", "size", size, 5, odd=True)
        at_least("goal_maze", "maze", maze, levels.FRESH)
        free = (size // 2) ** 2 * 2 - 1
        draw, shape = functools.partial(_perfect, size // 2), (size, size)
        grid = None if maze == levels.FRESH else levels.fixed(draw, maze)
    elif maze != levels.FRESH:
        raise errors.UserError(
            f"The maze of 'goal_maze' is '{layout}' and number {maze}; give one of the two."
        )
    else:
        if layout not in LAYOUTS:
            raise errors.unknown("layout of 'goal_maze'", layout, [*LAYOUTS, "random"])
        grid = parse(LAYOUTS[layout])
        free = int((grid == cells.EMPTY).sum())
        draw, shape = lambda key: jnp.asarray(grid), grid.shape
    return goal_environment("goal_maze", draw, shape, 2 * free, observe, passes=free, fixed=grid)


def parse(text: str) -> np.ndarray:
    """Parse a layout, `#` for walls and one word per row, into a grid, uint8 [H, W]."""
    return np.array(
        [[cells.WALL if c == "#" else cells.EMPTY for c in row] for row in text.split()], np.uint8
    )


def _perfect(n: int, key: Key) -> Array:
    """Draw a perfect maze, uint8 [2n + 1, 2n + 1], over a lattice of n x n cells."""
    # [2, n, n]: costs of the links to the east and to the south. Ten keeps every sum exact enough
    # in float32 that a cell is strictly farther from the root than its parent.
    cost = jnp.exp(10 * jax.random.uniform(key, (2, n, n)))
    edge = np.array([[[i == n - 1 for i in range(n)]] * n, [[j == n - 1] * n for j in range(n)]])
    cost = jnp.where(edge, jnp.inf, cost)
    shift = lambda x, d: paths.next_to(x, d, np.float32(jnp.inf))
    links = jnp.stack([cost[0], cost[1], shift(cost[0], cells.WEST), shift(cost[1], cells.NORTH)])

    def through(distance: Array) -> Array:
        return jnp.stack([shift(distance, d) + links[d] for d in range(4)])

    root = np.full((n, n), np.inf, np.float32)
    root[0, 0] = 0.0
    distance = lax.fori_loop(
        0, n * n - 1, lambda _, x: jnp.minimum(x, through(x).min(0)), jnp.asarray(root)
    )
    parent = jnp.argmin(through(distance), 0)
    linked = [(parent == d) & (root > 0) for d in range(4)]  # the root has no parent
    east = linked[cells.EAST] | paths.next_to(linked[cells.WEST], cells.EAST, False)
    south = linked[cells.SOUTH] | paths.next_to(linked[cells.NORTH], cells.SOUTH, False)
    # Each cell with its links to the east and to the south is a block of four.
    blocks = jnp.stack(
        [jnp.stack([jnp.ones_like(east), east], -1), jnp.stack([south, jnp.zeros_like(east)], -1)],
        1,
    )
    free = jnp.pad(blocks.reshape(2 * n, 2 * n), ((1, 0), (1, 0)))
    return jnp.where(free, cells.EMPTY, cells.WALL)
