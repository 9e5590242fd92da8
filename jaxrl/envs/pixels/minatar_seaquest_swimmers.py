"""Objects that move by themselves in MinAtar Seaquest: divers, enemies and the player's bullets.

The rules depend on the order in which they appeared. Each kind has a fixed number of places, taken
in turn, so that the oldest is the first from `turn` on. A place is empty where its `x` is EMPTY.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, struct
from jaxrl.envs.pixels.minatar import SIZE

LANES = SIZE - 2  # rows 1 to 8, where they swim
EMPTY = -1
# Maximum numbers on the screen. Enemies come at most once a step and then swim for 30 steps. With
# other parameters there might be more: none comes while its place is taken.
ENEMIES = 32
DIVERS = 2  # a diver swims for 60 steps, and one comes every 30
BULLETS = 2  # a bullet flies for 10 steps, and one comes every 5
DIVER_INTERVAL = 5  # steps between two moves of a diver
MOST_DIVERS = 6  # maximum on board


@struct
class Divers:  # int8 [2] unless stated otherwise
    x: Array
    y: Array
    right: Array  # bool: whether it swims to the right
    timer: Array  # int32: steps until its next move
    turn: Array  # int32 scalar: place of the next one to come


@struct
class Enemies:  # int8 [32] unless stated otherwise
    x: Array
    y: Array
    right: Array  # bool
    timer: Array  # int32: steps until its next move
    submarine: Array  # bool; else a fish
    shot_timer: Array  # int32: steps until it shoots, if it is a submarine
    turn: Array  # int32 scalar


@struct
class Bullets:  # int8 [2], the older one first
    x: Array
    y: Array
    right: Array  # bool


Swimmers = TypeVar("Swimmers", Divers, Enemies)


def nobody() -> tuple[Bullets, Divers, Enemies]:
    """Return all places, empty."""

    def places(n: int) -> dict[str, Array]:
        columns = jnp.full(n, EMPTY, jnp.int8)
        return {"x": columns, "y": jnp.zeros_like(columns), "right": jnp.zeros(n, bool)}

    zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
    enemies = Enemies(
        **places(ENEMIES),
        timer=zeros(ENEMIES),
        submarine=jnp.zeros(ENEMIES, bool),
        shot_timer=zeros(ENEMIES),
        turn=zeros(),
    )
    divers = Divers(**places(DIVERS), timer=zeros(DIVERS), turn=zeros())
    return Bullets(**places(BULLETS)), divers, enemies


def enter(swimmers: Swimmers, enters: Array, **newcomer: Array) -> Swimmers:
    """Add a `newcomer` to `swimmers` where one `enters` and the next place is empty."""
    places = swimmers.x.shape[0]
    place = enters & (jnp.arange(places) == swimmers.turn) & (swimmers.x == EMPTY)
    filled = {}
    for name, value in newcomer.items():
        old = getattr(swimmers, name)
        filled[name] = jnp.where(place, jnp.asarray(value).astype(old.dtype), old)
    turn = (swimmers.turn + jnp.any(place)) % places
    return dataclasses.replace(swimmers, **filled, turn=turn)


def fire(bullets: Bullets, fires: Array, x: Array, y: Array, right: Array) -> Bullets:
    """Add a bullet where the player at `x` and `y` `fires`."""
    # There is at most one other bullet then, which becomes the older one.
    other = jnp.where(bullets.x[1] == EMPTY, 0, 1)
    load = lambda old, new: jnp.where(fires, jnp.stack([old[other], new]), old)
    return jax.tree.map(load, bullets, Bullets(x, y, right))


def ahead(swimmers: Divers | Enemies | Bullets) -> Array:
    """Return the next column of each; EMPTY outside the screen and for empty places."""
    x = swimmers.x + jnp.where(swimmers.right, 1, -1).astype(jnp.int8)
    outside = (swimmers.x == EMPTY) | (x < 0) | (x >= SIZE)
    return jnp.where(outside, EMPTY, x).astype(jnp.int8)


def pick_up(divers: Divers, on_board: Array, x: Array, y: Array) -> tuple[Divers, Array]:
    """Return the divers in the water and the number on board; divers that are not picked up
    move."""
    moves = divers.timer == 0
    moved = jnp.where(moves, ahead(divers), divers.x)
    met = (divers.y == y) & (divers.x != EMPTY) & ((divers.x == x) | (moved == x))
    # The newer of the two first, if there is room for only one.
    after_the_other = met[::-1] & (jnp.arange(DIVERS) == divers.turn)
    picked = met & (on_board + after_the_other < MOST_DIVERS)
    x = jnp.where(picked, EMPTY, moved).astype(jnp.int8)
    timer = jnp.where(moves, DIVER_INTERVAL, divers.timer - 1)
    return dataclasses.replace(divers, x=x, timer=timer), on_board + picked.sum()


@struct
class Encounters:
    """Outcome of a step of the enemies."""

    hits: Array  # int32: number of enemies shot
    met: Array  # bool: whether one of the others met the player
    shots_left: Array  # int32 [8], one per lane: columns of shots to the left, column c in bit c
    shots_right: Array


def swim(
    enemies: Enemies,
    bullets: Bullets,
    x: Array,
    y: Array,
    move_interval: Array,
    shot_interval: Array,
) -> tuple[Enemies, Bullets, Encounters]:
    """Take a step of the enemies, among `bullets` that just moved and the player at `x` and `y`."""
    place = jnp.arange(ENEMIES, dtype=jnp.int32)
    # A set of enemies is an integer; the lower an enemy's bit, the older it is.
    bit = jnp.uint32(1) << ((place - enemies.turn) % ENEMIES).astype(jnp.uint32)
    members = lambda which: jnp.sum(jnp.where(which, bit, 0), axis=-1, dtype=jnp.uint32)
    moves = (enemies.x != EMPTY) & (enemies.timer == 0)
    moved = jnp.where(moves, ahead(enemies), enemies.x)
    # Rows: the two bullets and the player, in this order.
    columns = jnp.append(bullets.x, x)[:, None]
    beside = (columns != EMPTY) & (enemies.y == jnp.append(bullets.y, y)[:, None])
    here = members(beside & (enemies.x == columns))
    entered = members(beside & (moved == columns) & moves)
    submarines = members(enemies.submarine)

    # At its new cell, each bullet, the newer first, hits the oldest fish, else the oldest
    # submarine.
    hit_1 = _oldest(here[1] & ~submarines, here[1] & submarines)
    left = here[0] & ~hit_1
    hit_0 = _oldest(left & ~submarines, left & submarines)
    hit = hit_0 | hit_1
    # Enemies may also swim into a bullet, but not into the player: it hits the newest submarine,
    # else the newest fish; the older bullet comes first.
    left = jnp.where(jnp.stack([hit_0, hit_1]) == 0, entered[:2] & ~hit & ~entered[2], 0)
    swum_0 = _newest(left[0] & submarines, left[0] & ~submarines)
    left_1 = left[1] & ~swum_0
    swum_1 = _newest(left_1 & submarines, left_1 & ~submarines)
    shot = hit | swum_0 | swum_1

    # An enemy that swims into a bullet may shoot first.
    fires = enemies.submarine & (enemies.shot_timer == 0) & (moved != EMPTY) & (hit & bit == 0)
    # Both directions in one integer, so that one sum over the enemies is enough.
    cell = 1 << (moved.astype(jnp.int32) + jnp.where(enemies.right, SIZE, 0))
    shots = by_lane(enemies.y, jnp.where(fires, cell, 0))
    after = dataclasses.replace(
        enemies,
        x=jnp.where(shot & bit != 0, EMPTY, moved).astype(jnp.int8),
        timer=jnp.where(enemies.timer == 0, move_interval, enemies.timer - 1),
        shot_timer=jnp.where(enemies.shot_timer == 0, shot_interval, enemies.shot_timer - 1),
    )
    spent = jnp.stack([hit_0 | swum_0, hit_1 | swum_1]) != 0
    bullets = dataclasses.replace(bullets, x=jnp.where(spent, EMPTY, bullets.x).astype(jnp.int8))
    encounters = Encounters(
        hits=jax.lax.population_count(shot).astype(jnp.int32),
        met=(here[2] | entered[2]) & ~hit != 0,
        shots_left=shots & ((1 << SIZE) - 1),
        shots_right=shots >> SIZE,
    )
    return after, bullets, encounters


def _oldest(first: Array, second: Array) -> Array:
    """Return the set of the oldest in `first`, or in `second` if `first` is empty."""
    members = jnp.where(first != 0, first, second)
    return members & -members


def _newest(first: Array, second: Array) -> Array:
    members = jnp.where(first != 0, first, second)
    highest = jnp.uint32(1 << 31) >> jnp.minimum(jax.lax.clz(members), 31)
    return members & highest


def by_lane(y: Array, masks: Array) -> Array:
    """Combine, for each lane, the bits of the `masks` [n] whose row `y` [n] is the lane's: int32
    [8]."""
    lane = jnp.arange(1, SIZE - 1, dtype=jnp.int8)[:, None]
    mine = jnp.where(lane == y, masks, 0)
    return jax.lax.reduce(mine, jnp.int32(0), jax.lax.bitwise_or, (1,))
