"""Several agents in one grid who act at the same time, and boxes that they push, pull and lock.

An environment keeps a `Crowd`; `move` lets all of its agents take a step, `toggle_locks` lets them
lock boxes, `visible` says what a place sees past walls and boxes, `look` cuts out an agent's view,
and `draw` makes a picture.

Moves have one rule. Every agent that is alive claims a cell: the one it steps to, or the one it
stays in. An agent that steps to a box pushes it, and one that pulls takes along a box behind it;
the box then claims the next cell in the direction of the step. A claim fails if the cell is a wall
or beyond the grid, if somebody or something else claims it too, if the box that is taken along
fails (or is locked, or taken in two directions), and for a box if one of those who take it fails.
Whoever fails claims the cell where it is, which may let others fail, until nobody more does. So two
agents may change places or follow one another, and never share a cell.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, struct
from jaxrl.envs import drawing
from jaxrl.envs.grids.pictures import Glyphs

FREE = -1  # the lock of a box that nobody locked
NEIGHBORS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]], np.int32)  # east, south, west, north
TILE = 32  # pixels of a cell in a picture


@struct
class Crowd:
    """N agents and M boxes in a grid; no two of those that are alive are in one cell."""

    place: Array  # int32 [N, 2]: row and column
    alive: Array  # bool [N]; the dead are in nobody's way
    box: Array  # int32 [M, 2]
    lock: Array  # int32 [M]: number of the team that locked it, or FREE


def gather(place: Array, box: Array | None = None) -> Crowd:
    """Return a crowd at the places [N, 2], alive, with boxes [M, 2] that nobody has locked."""
    place = jnp.asarray(place, jnp.int32)
    box = jnp.zeros((0, 2), jnp.int32) if box is None else jnp.asarray(box, jnp.int32)
    return Crowd(place, jnp.ones(len(place), bool), box, jnp.full(len(box), FREE, jnp.int32))


def move(crowd: Crowd, step: Array, wall: Array | np.ndarray, pull: Array | None = None) -> Crowd:
    """Let all agents take a step at the same time, by the rule above.

    step: int32 [N, 2], rows and columns, of which one at most is -1 or 1 and the others 0.
    wall: bool [H, W]. pull: bool [N], whether an agent takes along the box behind it instead of the
    one ahead; by default nobody does.
    """
    around = jnp.pad(wall, 1, constant_values=True)
    width = around.shape[1]
    # Cells are numbers from here on, and steps are differences of numbers.
    cell = lambda place: (place[..., 0] + 1) * width + place[..., 1] + 1
    place, box = cell(crowd.place), cell(crowd.box)
    step = jnp.where(crowd.alive, step[:, 0] * width + step[:, 1], 0)
    side = step if pull is None else jnp.where(pull, -step, step)
    takes = (step != 0)[:, None] & ((place + side)[:, None] == box)  # [N, M]
    pushed = jnp.where(takes, step[:, None], 0)
    box_step = jnp.where(pushed.max(0, initial=0) > 0, pushed.max(0), pushed.min(0, initial=0))
    stuck = takes.any(0) & (crowd.lock != FREE)
    stuck |= (takes & (step[:, None] != box_step)).any(0)

    count = len(place) + len(box)
    at = jnp.concatenate([place, box])
    goal = at + jnp.concatenate([step, box_step])
    there = jnp.concatenate([crowd.alive, jnp.ones(len(box), bool)])
    fails = around.reshape(-1)[goal] | jnp.concatenate([jnp.zeros(len(place), bool), stuck])
    linked = jnp.zeros((count, count), bool).at[: len(place), len(place) :].set(takes)
    linked |= linked.T
    others = there[:, None] & there & ~np.eye(count, dtype=bool)

    def settle(_: Array, fails: Array) -> Array:
        claim = jnp.where(fails, at, goal)
        clash = (claim[:, None] == claim) & others
        return fails | (clash | linked & fails).any(1)

    fails = jax.lax.fori_loop(0, count, settle, fails)
    end = jnp.where(fails, at, goal)
    end = jnp.stack([end // width - 1, end % width - 1], -1)
    return dataclasses.replace(crowd, place=end[: len(place)], box=end[len(place) :])


def toggle_locks(crowd: Crowd, wants: Array, team: np.ndarray) -> Crowd:
    """Let agents lock the boxes beside them, or unlock those that their own team has locked.

    A free box that members of two teams reach for stays free.

    wants: bool [N]. team: int [N], numbers of the agents' teams from 0 up.
    """
    reach = (wants & crowd.alive)[:, None] & beside(crowd.place, crowd.box)  # [N, M]
    teams = np.unique(team)
    by_team = jnp.stack([(reach & (team == t)[:, None]).any(0) for t in teams])  # [teams, M]
    one = by_team.sum(0) == 1
    own = (by_team & (crowd.lock == teams[:, None])).any(0)
    locked = jnp.where(one, jnp.asarray(teams)[by_team.argmax(0)], FREE)
    lock = jnp.where(crowd.lock == FREE, locked, jnp.where(own, FREE, crowd.lock))
    return dataclasses.replace(crowd, lock=lock.astype(jnp.int32))


def beside(places: Array, others: Array) -> Array:
    """Return which of `places` [n, 2] share an edge with which of `others` [m, 2]: bool [n, m]."""
    return jnp.abs(places[:, None] - others).sum(-1) == 1


def mark(places: Array, shape: tuple[int, int], values: Array | bool = True) -> Array:
    """Return a grid [H, W] with `values` at `places` [n, 2], and 0 elsewhere."""
    values = jnp.asarray(values)
    return jnp.zeros(shape, values.dtype).at[places[:, 0], places[:, 1]].max(values)


@functools.cache
def sight_lines(height: int, width: int) -> np.ndarray:
    """Return the cells between each two cells of a grid, as bits of uint32 [H W, H W, words]: those
    whose inside the line between the two centers crosses, without the two."""
    size = height * width
    lines = np.zeros((size, size, -(-size // 32)), np.uint32)
    for down in range(-height + 1, height):
        for right in range(-width + 1, width):
            way = lambda n: np.arange(n + 1) if n >= 0 else np.arange(0, n - 1, -1)
            rows, columns = (x.reshape(-1) for x in np.meshgrid(way(down), way(right)))
            corners = [down * (2 * columns + i) - right * (2 * rows + j)
                       for i in (-1, 1) for j in (-1, 1)]  # fmt: skip
            crossed = (np.min(corners, 0) < 0) & (np.max(corners, 0) > 0)
            crossed &= (rows != 0) | (columns != 0)
            crossed &= (rows != down) | (columns != right)
            for row in range(max(0, -down), min(height, height - down)):
                for column in range(max(0, -right), min(width, width - right)):
                    cells = (row + rows[crossed]) * width + column + columns[crossed]
                    bits = lines[row * width + column, (row + down) * width + column + right]
                    np.bitwise_or.at(bits, cells // 32, np.uint32(1) << (cells % 32).astype("u4"))
    return lines


def visible(place: Array, opaque: Array | np.ndarray) -> Array:
    """Return what is seen from places [n, 2]: bool [n, H, W].

    A cell is seen unless an opaque one (bool [H, W]) is between it and the place (`sight_lines`),
    so whoever sees is seen.
    """
    height, width = opaque.shape
    lines = jnp.asarray(sight_lines(height, width))
    bits = jnp.pad(
        jnp.asarray(opaque).reshape(-1), (0, 32 * lines.shape[-1] - opaque.size)
    ).reshape(-1, 32)
    words = jnp.where(bits, np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint32(0)).sum(
        1, dtype=jnp.uint32
    )
    hidden = (lines[place[:, 0] * width + place[:, 1]] & words).any(-1)
    return ~hidden.reshape(-1, height, width)


def look(planes: Array, place: Array, radius: int, seen: Array | None = None) -> Array:
    """Cut out the square around each agent: [N, 2 radius + 1, 2 radius + 1, C].

    planes: [H, W, C], of all, or [N, H, W, C], of each agent. place: int32 [N, 2]. seen: bool
    [N, H, W]; by default all is seen. Planes are 0 beyond the grid and where they are not seen, so
    that a plane of ones tells what is.
    """
    side = 2 * radius + 1

    def cut(planes: Array, place: Array, seen: Array | None) -> Array:
        shown = planes if seen is None else planes * seen[..., None].astype(planes.dtype)
        around = jnp.pad(shown, ((radius, radius), (radius, radius), (0, 0)))
        corner = (place[0], place[1], jnp.int32(0))
        return jax.lax.dynamic_slice(around, corner, (side, side, planes.shape[-1]))

    axes = (0 if planes.ndim == 4 else None, 0, None if seen is None else 0)
    return jax.vmap(cut, in_axes=axes)(planes, place, seen)


def draw(
    ground: np.ndarray,
    crowd: Crowd,
    colors: Sequence[tuple[int, ...]],
    team: Sequence[int] | np.ndarray = (),
) -> tuple[Glyphs, np.ndarray]:
    """Draw a crowd on the ground's colors, uint8 [H, W, 3], each agent that is alive as a disc of
    its color. A box is orange, and framed in the color of the first agent of the `team` that locked
    it. Returns the drawing, to add to, and the agents' places."""
    picture = Glyphs(drawing.tiles(ground, TILE), TILE)
    for (row, column), lock in zip(np.asarray(crowd.box), np.asarray(crowd.lock), strict=True):
        if lock != FREE:
            picture.box(row, column, 0.04, 0.04, 0.96, 0.96, colors[list(team).index(int(lock))])
        picture.box(row, column, 0.14, 0.14, 0.86, 0.86, drawing.ORANGE)
    places = np.asarray(crowd.place)
    for (row, column), alive, color in zip(places, np.asarray(crowd.alive), colors, strict=True):
        if alive:
            picture.disc(row, column, 0.5, 0.5, 0.34, color)
    return picture, places
