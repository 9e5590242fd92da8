"""MinAtar Asterix: collect gold that crosses the screen and keep clear of the enemies.

Observation: bool [10, 10, 4]: player, enemies, trail (the cell behind each enemy or piece of gold,
which shows its direction), gold. Action: no-op, left, up, right, down, fire; the player moves by
one cell within rows 1 to 8, fire does nothing. Reward: 1 for a piece of gold. Every 10 steps
something enters an empty one of the eight rows from a random side, gold with probability 1/3;
everything moves by a cell every 5 steps, and both intervals shrink over time. Terminates when the
player meets an enemy; MinAtar has no time limit; here an episode is truncated after 10,000 steps
(never with `time_limit=0`). With probability 0.1 the last action is repeated (at an episode's
start, a no-op). Young and Tian (2019), arXiv:1903.03176; the rules of the `minatar` package 1.0.15.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.pixels import minatar, screen
from jaxrl.envs.pixels.minatar import DOWN, LEFT, NOOP, RIGHT, SIZE, UP

ROWS = SIZE - 2  # rows in which things move: slot i is row i + 1
EMPTY = -1  # column of an empty slot


@struct
class Params:
    sticky_probability: float = 0.1  # probability that the last action is repeated
    ramping: bool = True  # whether the intervals shrink over time
    ramp_interval: int = 100  # steps between two shrinkings of the intervals
    spawn_interval: int = 10  # steps between two entries, at an episode's start
    move_interval: int = 5  # steps between two moves, at an episode's start
    gold_probability: float = 1 / 3  # probability that what enters is gold


@struct
class Draws:
    right: Array  # bool: whether what enters moves to the right
    gold: Array  # bool
    place: Array  # float32 in [0, 1): choice among the empty rows


@struct
class State:  # int32 scalars unless stated otherwise
    player_x: Array
    player_y: Array
    x: Array  # int32 [8], one per row: column of what is there, or EMPTY
    right: Array  # bool [8]
    gold: Array  # bool [8]
    spawn_interval: Array
    spawn_timer: Array
    move_interval: Array
    move_timer: Array
    ramp_timer: Array
    ramps: Array


@functools.cache
def minatar_asterix(
    minimal_actions: bool = False, time_limit: int = minatar.TIME_LIMIT
) -> Environment:
    """Asterix, with the options of `minatar.game`."""
    return minatar.game(_RULES, minimal_actions, time_limit)


def _start(words: Array, params: Params) -> State:
    del words
    number = lambda value: jnp.full((), value, jnp.int32)
    return State(
        player_x=number(5),
        player_y=number(5),
        x=jnp.full(ROWS, EMPTY, jnp.int32),
        right=jnp.zeros(ROWS, bool),
        gold=jnp.zeros(ROWS, bool),
        spawn_interval=number(params.spawn_interval),
        spawn_timer=number(params.spawn_interval),
        move_interval=number(params.move_interval),
        move_timer=number(params.move_interval),
        ramp_timer=number(params.ramp_interval),
        ramps=number(0),
    )


def _chance(words: Array, params: Params) -> Draws:
    right, gold, place = (minatar.unit(words[i]) for i in range(3))
    return Draws(right < 0.5, gold < params.gold_probability, place)


def _transition(
    state: State, action: Array, draws: Draws, params: Params
) -> tuple[State, Array, Array]:
    x, right, gold, spawn_timer = _spawn(state, draws)
    player_x, player_y = minatar.move(state.player_x, state.player_y, action, 1, ROWS)

    row = jnp.arange(1, SIZE - 1, dtype=jnp.int32) == player_y
    met = row & (x == player_x)
    x = jnp.where(met & gold, EMPTY, x)
    moves = (state.move_timer == 0) & (x != EMPTY)
    x = jnp.where(moves, x + jnp.where(right, 1, -1), x)
    x = jnp.where(x >= SIZE, EMPTY, x)  # on the left side it is EMPTY already
    met_then = moves & row & (x == player_x)
    x = jnp.where(met_then & gold, EMPTY, x)
    touched = met | met_then
    reward = jnp.any(touched & gold)  # a row holds one thing, so at most one

    spawn_timer, move_timer = (
        spawn_timer - 1,
        jnp.where(state.move_timer == 0, state.move_interval, state.move_timer) - 1,
    )
    ramping = params.ramping & ((state.spawn_interval > 1) | (state.move_interval > 1))
    ramps = ramping & (state.ramp_timer < 0)
    faster = ramps & (state.move_interval > 1) & (state.ramps % 2 == 1)
    after = State(
        player_x=player_x,
        player_y=player_y,
        x=x,
        right=right,
        gold=gold,
        spawn_interval=state.spawn_interval - (ramps & (state.spawn_interval > 1)),
        spawn_timer=spawn_timer,
        move_interval=state.move_interval - faster,
        move_timer=move_timer,
        ramp_timer=jnp.where(ramps, params.ramp_interval, state.ramp_timer - ramping),
        ramps=state.ramps + ramps,
    )
    return after, reward.astype(jnp.float32), jnp.any(touched & ~gold)


def _spawn(state: State, draws: Draws) -> tuple[Array, Array, Array, Array]:
    """Return columns, directions, kinds and timer after something may have entered."""
    spawns = state.spawn_timer == 0
    slot = jnp.arange(ROWS, dtype=jnp.int32)
    empty = jnp.sum((state.x == EMPTY).astype(jnp.int32) << slot)  # one bit per row
    before = jax.lax.population_count(empty & ((1 << slot) - 1))  # empty rows above this one
    choice = draws.place * jax.lax.population_count(empty).astype(jnp.float32)
    chosen = spawns & (state.x == EMPTY) & (before == jnp.floor(choice).astype(jnp.int32))
    return (
        jnp.where(chosen, jnp.where(draws.right, 0, SIZE - 1), state.x),
        jnp.where(chosen, draws.right, state.right),
        jnp.where(chosen, draws.gold, state.gold),
        jnp.where(spawns, state.spawn_interval, state.spawn_timer),
    )


def _observe(state: State, params: Params) -> Array:
    del params
    # Nothing moves in rows 0 and 9.
    row, column = (jnp.arange(SIZE, dtype=jnp.int32) for _ in range(2))
    outer = lambda lanes, value: jnp.pad(lanes, 1, constant_values=value)[:, None]
    x, gold = outer(state.x, EMPTY), outer(state.gold, False)
    behind = outer(
        jnp.where(state.x == EMPTY, EMPTY, state.x - jnp.where(state.right, 1, -1)), EMPTY
    )
    player = (row == state.player_y)[:, None] & (column == state.player_x)
    there = column == x
    return screen.compose([player, there & ~gold, column == behind, there & gold])


def _expert(state: State, params: Params) -> Array:
    """Go to the nearest gold, away from the sides, over no cell where the next steps would end the
    game."""
    draws = Draws(jnp.array(True), jnp.array(True), jnp.float32(0.0))
    after, rewards, over = minatar.outlook(_transition, state, draws, params, 3)
    x, y = after.player_x[:, 0, None], after.player_y[:, 0, None]
    lane = jnp.arange(1, SIZE - 1)
    gold = state.gold & (state.x != EMPTY)
    away = jnp.where(gold, jnp.abs(x - state.x) + jnp.abs(y - lane), SIZE + jnp.abs(x - 5))
    sides = (after.player_x[:, 0] < 2) | (after.player_x[:, 0] > SIZE - 3)
    score = 10.0 * rewards[:, 0] - away.min(1) - 0.5 * sides
    return jnp.argmax(score - 100.0 * over[:, 0] - 50.0 * over[:, 1] - 25.0 * over[:, 2])


_RULES = minatar.Rules(
    name="minatar_asterix",
    params=Params(),
    start=_start,
    chance=_chance,
    transition=_transition,
    observe=_observe,
    expert=_expert,
    actions=(NOOP, LEFT, UP, RIGHT, DOWN),
    colors=(screen.SKY, screen.RED, screen.DIM, screen.GOLD),
    step_words=3,
)
