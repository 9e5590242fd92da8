"""MinAtar Space Invaders: shoot down waves of aliens that shoot back.

Observation: bool [10, 10, 6]: cannon, aliens, aliens that move left, aliens that move right (the
aliens again, in the channel of their direction), own bullets, enemy bullets. Action: no-op, left,
up, right, down, fire; left and right move the cannon by one cell, fire shoots, at most every fifth
step, up and down do nothing. Reward: 1 for an alien. The aliens cross the screen, come down a row
at its edge, and move faster the fewer they are; the one nearest to the cannon shoots every ten
steps. Each wave is followed by a slightly faster one. Terminates when an alien or its bullet hits
the cannon, or when the aliens would come down from the lowest row; MinAtar has no time limit; here
an episode is truncated after 10,000 steps (never with `time_limit=0`). With probability 0.1 the
last action is repeated (at an episode's start, a no-op). Young and Tian (2019), arXiv:1903.03176;
the rules of the `minatar` package 1.0.15.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.pixels import minatar, screen
from jaxrl.envs.pixels.minatar import FIRE, LEFT, NOOP, RIGHT, SIZE

BOTTOM = SIZE - 1
WAVE = 0b0011111100  # columns 2 to 7
WAVE_ROWS = 4


@struct
class Params:
    sticky_probability: float = 0.1  # probability that the last action is repeated
    ramping: bool = True  # whether each wave is faster than the last
    cool_down: int = 5  # steps between two shots of the cannon
    move_interval: int = 12  # steps between two moves of the first wave
    fastest_interval: int = 6  # steps between two moves of the last waves
    shot_interval: int = 10  # steps between two shots of the aliens


@struct
class State:  # int32; a map is [10], one integer per row with column c in bit c
    x: Array  # column of the cannon
    bullets: Array  # [10]: bullets of the cannon
    bombs: Array  # [10]: bullets of the aliens
    aliens: Array  # [10]
    direction: Array  # direction of the aliens: -1 or 1
    cannon_timer: Array  # steps until the cannon can shoot
    move_interval: Array
    move_timer: Array
    bomb_timer: Array


@functools.cache
def minatar_space_invaders(
    minimal_actions: bool = False, time_limit: int = minatar.TIME_LIMIT
) -> Environment:
    """Space Invaders, with the options of `minatar.game`."""
    return minatar.game(_RULES, minimal_actions, time_limit)


def _start(words: Array, params: Params) -> State:
    del words
    number = lambda value: jnp.full((), value, jnp.int32)
    return State(
        x=number(5),
        bullets=jnp.zeros(SIZE, jnp.int32),
        bombs=jnp.zeros(SIZE, jnp.int32),
        aliens=_wave(),
        direction=number(-1),
        cannon_timer=number(0),
        move_interval=number(params.move_interval),
        move_timer=number(params.move_interval),
        bomb_timer=number(params.shot_interval),
    )


def _wave() -> Array:
    return jnp.where(jnp.arange(SIZE) < WAVE_ROWS, WAVE, 0).astype(jnp.int32)


def _transition(
    state: State, action: Array, draws: tuple[()], params: Params
) -> tuple[State, Array, Array]:
    del draws
    fires = (action == FIRE) & (state.cannon_timer == 0)
    cannon_timer = jnp.where(fires, params.cool_down, state.cannon_timer)
    move = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    x = jnp.clip(state.x + move, 0, BOTTOM)
    row = jnp.arange(SIZE, dtype=jnp.int32)
    at_cannon = jnp.where(row == BOTTOM, 1 << x, 0)  # a map

    shot = jnp.where(fires, 1 << x, 0)
    bullets = jnp.where(row == BOTTOM - 1, shot, 0) | jnp.roll(state.bullets, -1)
    bullets = jnp.where(row == BOTTOM, 0, bullets)
    bombs = jnp.where(row == 0, 0, jnp.roll(state.bombs, 1))

    aliens, direction, reached = _march(state)
    dead = reached | jnp.any(at_cannon & (bombs | state.aliens | aliens) != 0)
    moves = state.move_timer == 0
    count = jnp.sum(jax.lax.population_count(state.aliens))
    move_timer = jnp.where(moves, jnp.minimum(count, state.move_interval), state.move_timer)

    drops = state.bomb_timer == 0
    bombs = jnp.where(drops, bombs | _nearest(aliens, x), bombs)
    bomb_timer = jnp.where(drops, params.shot_interval, state.bomb_timer)

    hits = aliens & bullets
    aliens = aliens & ~hits
    cleared = ~jnp.any(aliens != 0)
    faster = cleared & params.ramping & (state.move_interval > params.fastest_interval)
    after = State(
        x=x,
        bullets=bullets & ~hits,
        bombs=bombs,
        aliens=jnp.where(cleared, _wave(), aliens),
        direction=direction,
        cannon_timer=cannon_timer - (cannon_timer > 0),
        move_interval=state.move_interval - faster,
        move_timer=move_timer - 1,
        bomb_timer=bomb_timer - 1,
    )
    reward = jnp.sum(jax.lax.population_count(hits)).astype(jnp.float32)
    return after, reward, dead


def _march(state: State) -> tuple[Array, Array, Array]:
    """Move the aliens; return them, their direction, and whether they came down from the lowest
    row."""
    moves = state.move_timer == 0
    edge = jnp.where(state.direction < 0, 1, 1 << BOTTOM)
    turns = moves & jnp.any(state.aliens & edge != 0)
    aside = jnp.where(state.direction < 0, state.aliens >> 1, state.aliens << 1)
    down = jnp.roll(state.aliens, 1)
    aliens = jnp.where(turns, down, jnp.where(moves, aside, state.aliens))
    direction = jnp.where(turns, -state.direction, state.direction)
    return aliens, direction, turns & (state.aliens[BOTTOM] != 0)


def _nearest(aliens: Array, x: Array) -> Array:
    """Return a map of the lowest alien in the column that is nearest to `x` (the left one of
    two)."""
    column = jnp.arange(SIZE, dtype=jnp.int32)
    occupied = functools.reduce(jnp.bitwise_or, [aliens[i] for i in range(SIZE)])
    distance = jnp.abs(column - x) * SIZE + column
    there = (occupied >> column) & 1 == 1
    nearest = jnp.min(jnp.where(there, distance, SIZE * SIZE)) % SIZE
    in_column = aliens & (1 << nearest)
    lowest = jnp.max(jnp.where(in_column != 0, column, -1))
    return jnp.where(column == lowest, in_column, 0)


def _observe(state: State, params: Params) -> Array:
    del params
    row = jnp.arange(SIZE, dtype=jnp.int32)
    aliens = screen.bits(state.aliens, SIZE)
    return screen.compose(
        [
            screen.bits(jnp.where(row == BOTTOM, 1 << state.x, 0), SIZE),
            aliens,
            aliens & (state.direction < 0),
            aliens & (state.direction > 0),
            screen.bits(state.bullets, SIZE),
            screen.bits(state.bombs, SIZE),
        ]
    )


def _expert(state: State, params: Params) -> Array:
    """Shoot when that will hit, else go below the nearest alien; avoid falling bullets."""
    after, rewards, over = minatar.outlook(_transition, state, (), params, SIZE)
    hits = jnp.sum(jnp.where(over, 0.0, rewards), axis=1)
    column = jnp.arange(SIZE)
    occupied = functools.reduce(jnp.bitwise_or, [state.aliens[i] for i in range(SIZE)])
    there = (occupied >> column) & 1 == 1
    away = jnp.where(there, jnp.abs(column - after.x[:, 0, None]), SIZE).min(1)
    score = 3.0 * (hits - hits[NOOP]) - away
    soon = jnp.where(over[:, :4], jnp.asarray([100.0, 80.0, 60.0, 40.0]), 0.0)
    return jnp.argmax(score - soon.max(1))


_RULES = minatar.Rules(
    name="minatar_space_invaders",
    params=Params(),
    start=_start,
    chance=lambda words, params: (),
    transition=_transition,
    observe=_observe,
    expert=_expert,
    actions=(NOOP, LEFT, RIGHT, FIRE),
    colors=(
        screen.SKY,
        screen.GREEN,
        screen.GREEN,
        screen.GREEN,
        screen.WHITE,
        screen.RED,
    ),
)
