"""Mazes as grids of cells: published layouts with their start and goal cells."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array

# '#' is a wall. Starts are in cells marked 'r' or 'c', goals in those marked 'g' or 'c'; if a maze
# marks none, any cell marked '.' will do.
# The layouts of D4RL and Gymnasium-Robotics (their `maps.py`), the diverse ones included.
LAYOUTS = {
    "open": "####### #.....# #.....# #.....# #######",
    "open_diverse_g": "####### #rgggg# #ggggg# #ggggg# #######",
    "open_diverse_gr": "####### #ccccc# #ccccc# #ccccc# #######",
    "u_maze": "##### #...# ###.# #...# #####",
    "medium": "######## #..##..# #..#...# ##...### #..#...# #.#..#.# #...#..# ########",
    "medium_diverse_g": "######## #r.##..# #..#..g# ##...### #..#...# #g#..#.# #...#g.# ########",
    "medium_diverse_gr": "######## #c.##..# #..#..c# ##...### #..#...# #c#..#.# #...#c.# ########",
    "large": "############ #....#.....# #.##.#.#.#.# #......#...# #.####.###.# #..#.#.....# "
    "##.#.#.#.### #..#...#...# ############",
    "giant": "################ #.#......##....# #.#.##.#.#..##.# #...#..#...#...# #.###.######.#.# "
    "#...#...#....#.# ###.#.#..#.#.### #...#..#...#...# #.#.#.######.#.# #.###...#...##.# "
    "#.....#...#....# ################",
    "large_diverse_g": "############ #r...#g....# #.##.#.#.#.# #....g.#..g# #.####.###.# "
    "#.g#.#.....# ##.#.#.#.### #..#g.g#.g.# ############",
    "large_diverse_gr": "############ #c...#c....# #.##.#.#.#.# #....c.#..c# #.####.###.# "
    "#.c#.#.....# ##.#.#.#.### #..#c.c#.c.# ############",
}
# The hard map of Lehman and Stanley (2011), "Abandoning objectives: evolution through the search
# for novelty alone", with walls as in the file `hard_maze.txt` of goNEAT_NS: the box from 5 to 200,
# and line segments inside it (x, y, x, y; y down), its start and its exit.
HARD_BOX = (5.0, 200.0)
HARD_SEGMENTS = (
    (5, 49, 57, 53),
    (56, 54, 56, 157),
    (57, 106, 158, 162),
    (77, 200, 108, 164),
    (5, 80, 33, 121),
    (200, 146, 87, 91),
    (56, 55, 133, 30),
)
HARD_START = (36, 184)
HARD_EXIT = (31, 20)
HARD_CELLS = 26  # cells per side, without the border: 7.5 units per cell

WIDEST = 32  # columns at most, since a row's cells are the bits of a number, see `next_cell`
NAMES = (*LAYOUTS, "deceptive")


@dataclasses.dataclass(frozen=True)
class Maze:
    """Maze. walls: uint8 [H, W]; starts and goals: cells as row * W + column, int32, each once."""

    walls: np.ndarray
    starts: np.ndarray
    goals: np.ndarray


@functools.cache
def maze(layout: str) -> Maze:
    """Return the maze called `layout` (one of `NAMES`), or the maze that it draws: rows separated
    by whitespace, of '#', '.', 'r', 'g' and 'c' as above.

    Raises `UserError` for an unknown name and for a drawing that is not a closed rectangle or has
    no start or goal cell.
    """
    if "#" in layout:
        return _parse(layout)
    if layout == "deceptive":
        return _parse(_hard_map())
    if layout not in LAYOUTS:
        raise UserError(
            f"The maze is {layout!r}; it must be one of {', '.join(NAMES)}, or rows of '#' (wall) "
            "and '.' (free) separated by spaces."
        )
    return _parse(LAYOUTS[layout])


def _parse(drawing: str) -> Maze:
    rows = drawing.split()
    if len({len(row) for row in rows}) != 1 or set(drawing) - set("#.rgc \n\t"):
        raise UserError(
            f"The maze {drawing!r} is not a rectangle of '#', '.', 'r', 'g' and 'c'; its rows must "
            "be of one length and separated by spaces."
        )
    cells = np.array([list(row) for row in rows])
    if cells.shape[1] > WIDEST:
        raise UserError(f"The maze has {cells.shape[1]} columns; it must have at most {WIDEST}.")
    inner = np.zeros(cells.shape, bool)
    inner[1:-1, 1:-1] = True
    if np.any((cells != "#") & ~inner):
        raise UserError(f"The maze {drawing!r} is open at its border; it must be closed by '#'.")
    plain, both = cells == ".", cells == "c"
    marked = np.any(np.isin(cells, ["r", "g", "c"]))

    def choose(mark: str) -> np.ndarray:
        own = (cells == mark) | both
        return np.flatnonzero(own if marked and own.any() else plain).astype(np.int32)

    starts, goals = choose("r"), choose("g")
    if not len(starts) or not len(goals):
        raise UserError(f"The maze {drawing!r} has no free cell; it needs a start and a goal.")
    if len({*starts.tolist(), *goals.tolist()}) == 1:
        raise UserError(f"The maze {drawing!r} starts at its goal; it needs another free cell.")
    return Maze((cells == "#").astype(np.uint8), starts, goals)


def _hard_map() -> str:
    """Draw the hard map in cells: a cell is solid if a wall's line passes through it."""
    low, high = HARD_BOX
    scale = HARD_CELLS / (high - low)
    cells = np.full((HARD_CELLS + 2, HARD_CELLS + 2), "#")
    cells[1:-1, 1:-1] = "."

    def cell(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = np.clip(((point - low) * scale).astype(int), 0, HARD_CELLS - 1) + 1
        return place[..., 1], place[..., 0]

    for segment in HARD_SEGMENTS:
        start, end = np.array(segment[:2], float), np.array(segment[2:], float)
        # Points so dense that two successive ones never skip a cell except at its very corner.
        cells[cell(start + np.linspace(0, 1, 4000)[:, None] * (end - start))] = "#"
    cells[cell(np.array(HARD_START, float))] = "r"
    cells[cell(np.array(HARD_EXIT, float))] = "g"
    return " ".join("".join(row) for row in cells)


def next_cell(walls: Array, cell: Array, goal: Array) -> Array:
    """Return the cell (row, column) next to `cell` on a shortest path to `goal` through free cells
    that share a side; `cell` itself at the goal and if there is no path. For experts, not for
    steps: its running time grows with the length of the path.

    The cells within n steps of the goal are bits, one uint32 per row; they spread until they
    include `cell`, and just before that they included the next cell.
    """
    bits = jnp.arange(walls.shape[1], dtype=jnp.uint32)
    free = jnp.sum(jnp.where(walls == 0, jnp.uint32(1) << bits, jnp.uint32(0)), 1, jnp.uint32)
    row, column = cell[0], cell[1].astype(jnp.uint32)
    at_goal = jnp.arange(walls.shape[0]) == goal[0]
    start = jnp.where(at_goal, jnp.uint32(1) << goal[1].astype(jnp.uint32), jnp.uint32(0))
    none = jnp.zeros(1, jnp.uint32)

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        _, near = carry
        rows = jnp.concatenate([near[1:], none]) | jnp.concatenate([none, near[:-1]])
        return near, near | ((near << 1 | near >> 1 | rows) & free)

    def searching(carry: tuple[Array, Array]) -> Array:
        before, near = carry
        return ((near[row] >> column) & 1 == 0) & (before != near).any()

    before, _ = jax.lax.while_loop(searching, spread, (jnp.zeros_like(start), start))
    beside = cell + jnp.asarray([[0, 1], [0, -1], [1, 0], [-1, 0]])
    nearer = (before[beside[:, 0]] >> beside[:, 1].astype(jnp.uint32)) & 1 == 1
    return jnp.where(nearer.any(), beside[jnp.argmax(nearer)], cell)
