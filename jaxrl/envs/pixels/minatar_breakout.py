"""MinAtar Breakout: bounce a ball off a paddle to break three rows of bricks.

Observation: bool [10, 10, 4]: paddle, ball, trail (where the ball was), bricks. Action: no-op,
left, up, right, down, fire; left and right move the paddle by one cell, the others do nothing.
Reward: 1 for a brick. The ball flies along diagonals and is reflected by walls, bricks and the
paddle on which it comes down; at the paddle's edge it goes back the way it came. When it comes down
with no brick left, three new rows appear. Terminates when the ball passes the paddle; MinAtar has
no time limit; here an episode is truncated after 10,000 steps (never with `time_limit=0`). With
probability 0.1 the last action is repeated (at an episode's start, a no-op). Young and Tian (2019),
"MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning
Experiments", arXiv:1903.03176; the rules of the `minatar` package 1.0.15.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.types import Array, Environment, struct
from jaxrl.envs.pixels import minatar, screen
from jaxrl.envs.pixels.minatar import LEFT, NOOP, RIGHT, SIZE

BRICKS = (1 << 3 * SIZE) - 1  # one bit per brick, rows 1 to 3 of the screen
BOTTOM = SIZE - 1
FLIGHT = 32  # steps; the ball is never away from the paddle for so long


@struct
class Params:
    sticky_probability: float = 0.1  # probability that the last action is repeated


@struct
class State:  # int32 and bool scalars
    paddle: Array  # column
    x: Array  # column and row of the ball
    y: Array
    dx: Array  # direction of the ball, 1 or -1 each
    dy: Array
    last_x: Array  # where the ball was
    last_y: Array
    strike: Array  # whether the ball was in a brick's cell: the next brick in its way is spared
    bricks: Array  # bit 10 * (row - 1) + column is a brick


@functools.cache
def minatar_breakout(
    minimal_actions: bool = False, time_limit: int = minatar.TIME_LIMIT
) -> Environment:
    """Breakout, with the options of `minatar.game`."""
    return minatar.game(_RULES, minimal_actions, time_limit)


def _start(words: Array, params: Params) -> State:
    del params
    right = (words[0] >> 31).astype(jnp.int32)  # the side on which the ball starts
    number = lambda value: jnp.full((), value, jnp.int32)
    return State(
        paddle=number(4),
        x=right * BOTTOM,
        y=number(3),
        dx=1 - 2 * right,
        dy=number(1),
        last_x=right * BOTTOM,
        last_y=number(3),
        strike=jnp.zeros((), bool),
        bricks=number(BRICKS),
    )


def _transition(
    state: State, action: Array, draws: tuple[()], params: Params
) -> tuple[State, Array, Array]:
    del draws, params
    move = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    paddle = jnp.clip(state.paddle + move, 0, BOTTOM)

    ahead = state.x + state.dx
    x = jnp.clip(ahead, 0, BOTTOM)
    dx = jnp.where(x == ahead, state.dx, -state.dx)
    below = state.y + state.dy
    y = jnp.maximum(below, 0)
    ceiling = below < 0

    index = SIZE * (y - 1) + x
    among_bricks = (index >= 0) & (index < 3 * SIZE)
    bit = jnp.where(among_bricks, 1 << jnp.clip(index, 0, 3 * SIZE - 1), 0)
    inside = ~ceiling & ((state.bricks & bit) != 0)
    breaks = inside & ~state.strike

    falling = y == BOTTOM
    on_top = falling & (state.x == paddle)
    on_edge = falling & (state.x != paddle) & (x == paddle)
    caught = on_top | on_edge
    bricks = jnp.where(breaks, state.bricks & ~bit, state.bricks)
    bricks = jnp.where(falling & (state.bricks == 0), BRICKS, bricks)
    after = State(
        paddle=paddle,
        x=x,
        y=jnp.where(breaks | caught, state.y, y),
        dx=jnp.where(on_edge, -dx, dx),
        dy=jnp.where(ceiling | breaks | caught, -state.dy, state.dy),
        last_x=state.x,
        last_y=state.y,
        strike=inside,
        bricks=bricks,
    )
    return after, breaks.astype(jnp.float32), falling & ~caught


def _observe(state: State, params: Params) -> Array:
    del params
    cell = jnp.arange(SIZE * SIZE, dtype=jnp.int32)
    brick = cell - SIZE
    among_bricks = (brick >= 0) & (brick < 3 * SIZE)
    bricks = (state.bricks >> jnp.clip(brick, 0, 3 * SIZE)) & 1
    # On flat cells, which takes half the time of rows and columns.
    flat = screen.compose(
        [
            cell == SIZE * BOTTOM + state.paddle,
            cell == SIZE * state.y + state.x,
            cell == SIZE * state.last_y + state.last_x,
            among_bricks & (bricks == 1),
        ]
    )
    return flat.reshape(SIZE, SIZE, 4)


def _expert(state: State, params: Params) -> Array:
    """Go where the ball will come down, found by playing on; of the two ways to catch it there,
    choose the one whose next flight breaks more bricks."""
    landing, _ = _fly(state, params)

    def flight(paddle):
        caught, _, _ = _transition(
            dataclasses.replace(landing, paddle=paddle), jnp.int32(NOOP), (), params
        )
        return _fly(caught, params)[1]

    top, edge = landing.x, jnp.clip(landing.x + landing.dx, 0, BOTTOM)
    target = jnp.where(flight(edge) > flight(top), edge, top)
    return jnp.where(
        target > state.paddle, RIGHT, jnp.where(target < state.paddle, LEFT, NOOP)
    ).astype(jnp.int32)


def _fly(state: State, params: Params) -> tuple[State, Array]:
    """Play until the ball is about to come down to the paddle's row; return the state and the
    number of bricks broken until then."""

    def on(_, carry):
        state, broken = carry
        after, reward, _ = _transition(state, jnp.int32(NOOP), (), params)
        landing = (state.y == BOTTOM - 1) & (state.dy > 0)
        return trees.where(landing, state, after), broken + jnp.where(landing, 0.0, reward)

    return jax.lax.fori_loop(0, FLIGHT, on, (state, jnp.float32(0.0)))


_RULES = minatar.Rules(
    name="minatar_breakout",
    params=Params(),
    start=_start,
    chance=lambda words, params: (),
    transition=_transition,
    observe=_observe,
    expert=_expert,
    actions=(NOOP, LEFT, RIGHT),
    colors=(screen.SKY, screen.WHITE, screen.DIM, screen.ORANGE),
    start_words=1,
)
