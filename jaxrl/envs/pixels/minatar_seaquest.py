"""MinAtar Seaquest: a submarine shoots fish and submarines, saves divers, and needs air.

Observation: bool [10, 10, 10]: own front, own back, own bullets, trail (the cell behind whatever
swims), enemy bullets, fish, enemy submarines, oxygen gauge, diver gauge (both in the lowest row),
divers. Action: no-op, left, up, right, down, fire; a move is one cell within rows 0 to 8, a shot
flies the way the submarine faces, at most one every five steps. Reward: 1 for an enemy shot, and
the number of cells of the oxygen gauge for surfacing with six divers. Oxygen lasts for 200 steps
under water; surfacing refills it, costs a diver, and makes enemies come sooner and move faster.
Terminates when an enemy or its bullet hits, without oxygen, and on surfacing with no diver (but, as
in the package, not once six have been brought up: their count is -1 then); MinAtar has no time
limit; here an episode is truncated after 10,000 steps (never with `time_limit=0`). With probability
0.1 the last action is repeated (at an episode's start, a no-op). Young and Tian (2019),
arXiv:1903.03176; the rules of the `minatar` package 1.0.15.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.pixels import minatar, screen
from jaxrl.envs.pixels import minatar_seaquest_swimmers as swimmers
from jaxrl.envs.pixels.minatar import DOWN, FIRE, LEFT, NOOP, RIGHT, SIZE, UP
from jaxrl.envs.pixels.minatar_seaquest_swimmers import (
    EMPTY,
    LANES,
    MOST_DIVERS,
    Bullets,
    Divers,
    Enemies,
)

DIVER_SPAWN_INTERVAL = 30
COOL_DOWN = 5
FASTEST = 2  # least move interval, in steps


@struct
class Params:
    sticky_probability: float = 0.1  # probability that the last action is repeated
    ramping: bool = True  # whether surfacing makes the enemies faster
    oxygen: int = 200  # steps that a full tank lasts
    spawn_interval: int = 20  # steps between two enemies, at an episode's start
    move_interval: int = 5  # steps between two moves of an enemy, at an episode's start
    shot_interval: int = 10  # steps between two shots of an enemy submarine
    submarine_probability: float = 1 / 3  # probability that an enemy is a submarine, else a fish


@struct
class Draws:
    right: Array  # bool: whether the next enemy swims to the right
    submarine: Array  # bool
    lane: Array  # int8, 1 to 8
    diver_right: Array
    diver_lane: Array


@struct
class State:  # int32 scalars unless stated otherwise
    x: Array  # int8; column and row of the submarine
    y: Array
    right: Array  # bool: whether it faces right
    oxygen: Array
    on_board: Array  # number of divers
    surfaced: Array  # bool: whether it is at the surface and has unloaded
    bullets: Bullets
    divers: Divers
    enemies: Enemies
    bombs_left: Array  # int32 [8], one per lane: enemy bullets as bits, column c in bit c
    bombs_right: Array
    cannon_timer: Array
    spawn_interval: Array
    spawn_timer: Array
    diver_timer: Array
    move_interval: Array
    ramps: Array


@functools.cache
def minatar_seaquest(
    minimal_actions: bool = False, time_limit: int = minatar.TIME_LIMIT
) -> Environment:
    """Seaquest, with the options of `minatar.game`."""
    return minatar.game(_RULES, minimal_actions, time_limit)


def _start(words: Array, params: Params) -> State:
    del words
    number = lambda value, dtype=jnp.int32: jnp.full((), value, dtype)
    bullets, divers, enemies = swimmers.nobody()
    return State(
        x=number(5, jnp.int8),
        y=number(0, jnp.int8),
        right=number(False, bool),
        oxygen=number(params.oxygen),
        on_board=number(0),
        surfaced=number(True, bool),
        bullets=bullets,
        divers=divers,
        enemies=enemies,
        bombs_left=jnp.zeros(LANES, jnp.int32),
        bombs_right=jnp.zeros(LANES, jnp.int32),
        cannon_timer=number(0),
        spawn_interval=number(params.spawn_interval),
        spawn_timer=number(params.spawn_interval),
        diver_timer=number(DIVER_SPAWN_INTERVAL),
        move_interval=number(params.move_interval),
        ramps=number(0),
    )


def _chance(words: Array, params: Params) -> Draws:
    lane = lambda word: (1 + (word >> 29)).astype(jnp.int8)  # three bits
    return Draws(
        right=(words[0] & 1) == 1,
        submarine=minatar.unit(words[1]) < params.submarine_probability,
        lane=lane(words[0]),
        diver_right=(words[2] & 1) == 1,
        diver_lane=lane(words[2]),
    )


def _transition(
    state: State, action: Array, draws: Draws, params: Params
) -> tuple[State, Array, Array]:
    state = _spawn(state, draws, params)
    fires = (action == FIRE) & (state.cannon_timer == 0)
    bullets = swimmers.fire(state.bullets, fires, state.x, state.y, state.right)
    bullets = dataclasses.replace(bullets, x=swimmers.ahead(bullets))
    x, y = minatar.move(state.x, state.y, action, 0, SIZE - 2)
    right = jnp.where(action == LEFT, False, jnp.where(action == RIGHT, True, state.right))

    divers, on_board = swimmers.pick_up(state.divers, state.on_board, x, y)
    shot_interval = jnp.asarray(params.shot_interval)
    enemies, bullets, encounters = swimmers.swim(
        state.enemies, bullets, x, y, state.move_interval, shot_interval
    )

    bombs_left = state.bombs_left | encounters.shots_left
    bombs_right = state.bombs_right | encounters.shots_right
    bombs = bombs_left | bombs_right
    bombs_left, bombs_right = bombs_left >> 1, (bombs_right << 1) & ((1 << SIZE) - 1)
    bombs = bombs | bombs_left | bombs_right  # before and after they moved
    lane = jnp.arange(1, SIZE - 1, dtype=jnp.int8) == y
    bombed = lane & ((bombs >> x.astype(jnp.int32)) & 1 == 1)
    dead = encounters.met | jnp.any(bombed) | (state.oxygen <= 0)

    cannon_timer = jnp.where(fires, COOL_DOWN, state.cannon_timer)
    after = dataclasses.replace(
        state,
        x=x,
        y=y,
        right=right,
        on_board=on_board,
        bullets=bullets,
        divers=divers,
        enemies=enemies,
        bombs_left=bombs_left,
        bombs_right=bombs_right,
        cannon_timer=cannon_timer - (cannon_timer > 0),
        spawn_timer=state.spawn_timer - (state.spawn_timer > 0),
        diver_timer=state.diver_timer - (state.diver_timer > 0),
        oxygen=state.oxygen - (y > 0),
        surfaced=state.surfaced & (y == 0),
    )
    surfaces = (y == 0) & ~state.surfaced
    drowned = surfaces & (on_board == 0)
    served, bonus = _surface(after, params)
    serves = surfaces & ~drowned
    reward = encounters.hits + jnp.where(serves, bonus, 0)
    return trees.where(serves, served, after), reward.astype(jnp.float32), dead | drowned


def _spawn(state: State, draws: Draws, params: Params) -> State:
    enemies = state.enemies
    side = lambda right: jnp.where(right, 0, SIZE - 1)
    # Never in a lane where another one swims the other way.
    against = (enemies.x != EMPTY) & (enemies.y == draws.lane) & (enemies.right != draws.right)
    spawns, diver_spawns = state.spawn_timer == 0, state.diver_timer == 0
    return dataclasses.replace(
        state,
        enemies=swimmers.enter(
            enemies,
            spawns & ~jnp.any(against),
            x=side(draws.right),
            y=draws.lane,
            right=draws.right,
            timer=state.move_interval,
            submarine=draws.submarine,
            shot_timer=jnp.asarray(params.shot_interval),
        ),
        divers=swimmers.enter(
            state.divers,
            diver_spawns,
            x=side(draws.diver_right),
            y=draws.diver_lane,
            right=draws.diver_right,
            timer=jnp.int32(swimmers.DIVER_INTERVAL),
        ),
        spawn_timer=jnp.where(spawns, state.spawn_interval, state.spawn_timer),
        diver_timer=jnp.where(diver_spawns, DIVER_SPAWN_INTERVAL, state.diver_timer),
    )


def _surface(state: State, params: Params) -> tuple[State, Array]:
    """Return the state after bringing up the divers, and the reward (int32)."""
    full = state.on_board == MOST_DIVERS
    ramps = params.ramping & ((state.spawn_interval > 1) | (state.move_interval > FASTEST))
    faster = ramps & (state.move_interval > FASTEST) & (state.ramps % 2 == 1)
    served = dataclasses.replace(
        state,
        surfaced=jnp.ones((), bool),
        oxygen=jnp.asarray(params.oxygen, jnp.int32),
        on_board=jnp.where(full, 0, state.on_board) - 1,
        spawn_interval=state.spawn_interval - (ramps & (state.spawn_interval > 1)),
        move_interval=state.move_interval - faster,
        ramps=state.ramps + ramps,
    )
    return served, jnp.where(full, state.oxygen * SIZE // params.oxygen, 0)


def _observe(state: State, params: Params) -> Array:
    return screen.expand(minatar.once(_cells, state, params), len(_RULES.colors))


def _cells(state: State, params: Params) -> Array:
    row, column = (jnp.arange(SIZE, dtype=jnp.int32) for _ in range(2))
    everywhere = (1 << SIZE) - 1
    at = lambda x: jnp.where(x == EMPTY, 0, 1 << jnp.maximum(x, 0).astype(jnp.int32))
    trail = lambda them: jnp.where(them.right, at(them.x) >> 1, at(them.x) << 1) & everywhere
    enemies, divers, bullets = state.enemies, state.divers, state.bullets
    # Three maps side by side in each lane's integer: fish or divers, submarines, trails.
    kind = jnp.where(enemies.submarine, at(enemies.x) << SIZE, at(enemies.x))
    swimming = swimmers.by_lane(enemies.y, kind | trail(enemies) << 2 * SIZE)
    diving = swimmers.by_lane(divers.y, at(divers.x) | trail(divers) << 2 * SIZE)
    lanes = lambda rows: screen.bits(jnp.pad(rows & everywhere, 1), SIZE)
    cell = lambda x, y: (row == y)[:, None] & (column == x)
    bullet = lambda i: cell(bullets.x[i], bullets.y[i])
    gauge = lambda on: (row == SIZE - 1)[:, None] & on
    oxygen = jnp.maximum(state.oxygen, 0) * SIZE // params.oxygen
    last = SIZE - 1
    return screen.pack(
        [
            cell(state.x, state.y),
            cell(state.x - jnp.where(state.right, 1, -1), state.y),
            bullet(0) | bullet(1),
            lanes((swimming | diving) >> 2 * SIZE),
            lanes(state.bombs_left | state.bombs_right),
            lanes(swimming),
            lanes(swimming >> SIZE),
            gauge(column < oxygen),
            gauge((column >= last - state.on_board) & (column < last)),
            lanes(diving),
        ]
    )


def _expert(state: State, params: Params) -> Array:
    """Surface with six divers, or when the air runs short; else go to the nearest diver, or to the
    row of the nearest enemy, and shoot when that will hit; move through nothing that would end the
    game."""
    words = jnp.zeros(3, jnp.uint32)
    calm = dataclasses.replace(
        state, spawn_timer=jnp.int32(SIZE + 1), diver_timer=jnp.int32(SIZE + 1)
    )
    after, rewards, over = minatar.outlook(_transition, calm, _chance(words, params), params, SIZE)
    x, y = (z[:, 0, None].astype(jnp.int32) for z in (after.x, after.y))
    divers, enemies = state.divers, state.enemies
    reachable = (divers.x != EMPTY) & (state.on_board < MOST_DIVERS)
    to_diver = jnp.where(reachable, jnp.abs(x - divers.x) + jnp.abs(y - divers.y), 2 * SIZE).min(1)
    # Beside an enemy, at a distance and facing it.
    gap = enemies.x - x
    looks = jnp.where(after.right[:, 0, None], gap > 0, gap < 0)
    row = jnp.abs(y - enemies.y) + 0.5 * ~looks + 0.3 * (jnp.abs(gap) < 3)
    to_enemy = jnp.where(enemies.x != EMPTY, row, SIZE).min(1)
    short = state.oxygen <= state.y + 20
    surfaces = (state.on_board == MOST_DIVERS) | (short & (state.on_board > 0))
    depth = jnp.squeeze(y, 1)
    goal = jnp.where(jnp.any(reachable), to_diver + 0.2 * to_enemy, to_enemy)
    goal = jnp.where(surfaces, 2.0 * depth, goal + 3.0 * (depth == 0))
    hits = jnp.sum(jnp.where(over, 0.0, rewards), axis=1)
    score = 3.0 * jnp.clip(hits - hits[NOOP], 0.0, 4.0) - goal
    soon = jnp.where(over[:, :4], jnp.asarray([100.0, 80.0, 60.0, 40.0]), 0.0)
    return jnp.argmax(score - soon.max(1))


_RULES = minatar.Rules(
    name="minatar_seaquest",
    params=Params(),
    start=_start,
    chance=_chance,
    transition=_transition,
    observe=_observe,
    expert=_expert,
    actions=(NOOP, LEFT, UP, RIGHT, DOWN, FIRE),
    colors=(
        screen.SKY,
        screen.BLUE,
        screen.WHITE,
        screen.DIM,
        screen.ORANGE,
        screen.GREEN,
        screen.RED,
        screen.SILVER,
        screen.GOLD,
        screen.GOLD,
    ),
    step_words=3,
)
