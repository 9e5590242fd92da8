"""MinAtar Freeway: lead a chicken over eight lanes of traffic, again and again.

Observation: bool [10, 10, 7]: chicken, cars, and five trails (the cell behind a car, in the channel
of its speed, from one move every step to one every five). Action: no-op, left, up, right, down,
fire; up and down move the chicken by a cell, at most every third step, the others do nothing.
Reward: 1 at the top, from where the chicken goes back to the bottom and all cars get new speeds and
directions. A car that hits the chicken sends it back to the bottom. Never terminates: MinAtar's
clock, which the screen does not show, ends an episode at its 2,501st step, which is a truncation
here (never with `time_limit=0`). With probability 0.1 the last action is repeated (at an episode's
start, a no-op). Young and Tian (2019), arXiv:1903.03176; the rules of the `minatar` package 1.0.15.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.pixels import minatar, screen
from jaxrl.envs.pixels.minatar import DOWN, NOOP, SIZE, UP

CARS = SIZE - 2  # one per lane: car i in row i + 1
SPEEDS = 5
COLUMN = 4  # column of the chicken
BOTTOM = SIZE - 1
CLOCK = 2501  # steps


@struct
class Params:
    sticky_probability: float = 0.1  # probability that the last action is repeated
    walking_interval: int = 3  # steps between two moves of the chicken


@struct
class State:  # int32
    y: Array  # row of the chicken
    walking_timer: Array
    x: Array  # [8] columns of the cars
    speed: Array  # [8] -5 to 5 without 0: steps between two moves, and the direction
    timer: Array  # [8] steps until the next move


@functools.cache
def minatar_freeway(minimal_actions: bool = False, time_limit: int = CLOCK) -> Environment:
    """Freeway, with the options of `minatar.game`."""
    return minatar.game(_RULES, minimal_actions, time_limit)


def _chance(words: Array, params: Params) -> Array:
    """Draw new speeds, int32 [8], each of the ten equally likely."""
    del params
    # Four of them per word: 10^4 outcomes of 2^32 are equally likely to within 3e-6.
    power = jnp.tile(jnp.asarray([1, 10, 100, 1000], jnp.uint32), 2)
    word = jnp.where(jnp.arange(CARS) < 4, words[0], words[1])
    digit = ((word // power) % 10).astype(jnp.int32)
    return jnp.where(digit < SPEEDS, digit - SPEEDS, digit - SPEEDS + 1)


def _start(words: Array, params: Params) -> State:
    speed = _chance(words, params)
    return State(
        y=jnp.full((), BOTTOM, jnp.int32),
        walking_timer=jnp.full((), params.walking_interval, jnp.int32),
        x=jnp.zeros(CARS, jnp.int32),
        speed=speed,
        timer=jnp.abs(speed),
    )


def _transition(
    state: State, action: Array, draws: Array, params: Params
) -> tuple[State, Array, Array]:
    walks = ((action == UP) | (action == DOWN)) & (state.walking_timer == 0)
    walking_timer = jnp.where(walks, params.walking_interval, state.walking_timer)
    step = jnp.where(walks, jnp.where(action == UP, -1, 1), 0)
    y = jnp.clip(state.y + step, 0, BOTTOM)
    wins = y == 0
    y = jnp.where(wins, BOTTOM, y)

    speed = jnp.where(wins, draws, state.speed)
    timer = jnp.where(wins, jnp.abs(draws), state.timer)
    moves = timer == 0
    ahead = state.x + jnp.where(moves, jnp.sign(speed), 0)
    x = jnp.where(ahead < 0, SIZE - 1, jnp.where(ahead >= SIZE, 0, ahead))
    lane = jnp.arange(1, SIZE - 1, dtype=jnp.int32) == y
    hit = jnp.any(lane & ((state.x == COLUMN) | (x == COLUMN)))
    after = State(
        y=jnp.where(hit, BOTTOM, y),
        walking_timer=walking_timer - (walking_timer > 0),
        x=x,
        speed=speed,
        timer=jnp.where(moves, jnp.abs(speed), timer - 1),
    )
    return after, wins.astype(jnp.float32), jnp.zeros((), bool)


def _observe(state: State, params: Params) -> Array:
    del params
    row, column = (jnp.arange(SIZE, dtype=jnp.int32) for _ in range(2))
    # No car in rows 0 and 9. A cell's integer has one bit per channel; a trail's is 1 + its pace.
    outer = lambda lanes, value: jnp.pad(lanes, 1, constant_values=value)[:, None]
    behind = state.x - jnp.sign(state.speed)
    behind = jnp.where(behind < 0, SIZE - 1, jnp.where(behind >= SIZE, 0, behind))
    trail = 2 << jnp.abs(state.speed)
    chicken = (row == state.y)[:, None] & (column == COLUMN)
    car = column == outer(state.x, -1)
    return screen.expand(
        chicken.astype(jnp.uint8)
        | (car.astype(jnp.uint8) << 1)
        | jnp.where(column == outer(behind, -1), outer(trail, 0), 0).astype(jnp.uint8),
        2 + SPEEDS,
    )


def _expert(state: State, params: Params) -> Array:
    """Go up, else stay, else go down: the first with which no car hits before the chicken can move
    again."""
    after, rewards, _ = minatar.outlook(_transition, state, jnp.ones(CARS, jnp.int32), params, 3)
    back = (after.y == BOTTOM) & (rewards == 0) & (state.y != BOTTOM)
    hit = jnp.any(back, axis=1) & ~jnp.any(rewards > 0, axis=1)
    best = jnp.where(~hit[UP], UP, jnp.where(~hit[NOOP] | hit[DOWN], NOOP, DOWN))
    # An up while the chicken cannot move might stick until it can.
    return jnp.where(state.walking_timer == 0, best, NOOP)


_RULES = minatar.Rules(
    name="minatar_freeway",
    params=Params(),
    start=_start,
    chance=_chance,
    transition=_transition,
    observe=_observe,
    expert=_expert,
    actions=(NOOP, UP, DOWN),
    colors=(
        screen.GOLD,
        screen.RED,
        *((50 + 12 * n, 56 + 14 * n, 66 + 16 * n) for n in range(5, 0, -1)),
    ),
    start_words=2,
    step_words=2,
)
