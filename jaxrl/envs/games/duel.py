"""Duel: two fighters on a line, in the manner of fighting games.

In every frame both choose at once, the left one first and hidden. Who is in the middle of something
can only stay. A fighter that is hit is stunned, loses what it was doing and is pushed back. Strikes
beat throws, throws beat blocks, and blocks beat strikes:

| action | frames | hits in frame | reach | damage | stun | blocked | against a jump |
|---|---|---|---|---|---|---|---|
| jab | 3 | 1 | 2 | 8 | 2 | 0 | hits |
| heavy | 5 | 3 | 3 | 20 | 4 | 4 | misses |
| throw | 4 | 1 | 1 | 14 | 3 | 14 | misses |

A block holds for one frame, a jump for three. A throw fails if a strike hits the thrower in the
same frame, or if the other is stunned. Two strikes that meet both hit. Neither fighter passes the
other. A round ends with a knockout or after `frames` frames. Observation: float32 [26], of the
mover and then of the other: health, cells to the own wall, what it is doing (one-hot) and for how
many more frames; then the distance and the time left. It is the same for both sides. Action: 0
stay, 1 advance, 2 retreat, 3 block, 4 jump, 5 jab, 6 heavy, 7 throw. Reward, at the end: the
difference in health left, as a share of full health. All rules are deterministic; a round begins
at one of three distances.

This is the kind of game, at a small size, of FightLadder (Li et al., 2024, "FightLadder: a
benchmark for competitive multi-agent reinforcement learning", arXiv:2406.02081), which plays
commercial fighting games from pixels. The rules and their numbers are ours.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import Rules, environment, one_hot

STAY, ADVANCE, RETREAT, BLOCK, JUMP, JAB, HEAVY, THROW = range(8)
STUN = 8  # what a fighter is doing that was hit
KINDS = 9
NOT_YET = -1

FULL = 100  # health
WIDTH = 13  # cells
GAPS = (2, 4, 6)  # distances at which a round begins
LONGEST = 5  # frames of the longest action

# By what a fighter is doing: its frames, the frame (from 0) in which it hits, reach, damage, frames
# of stun, damage through a block, and cells that it pushes back.
FRAMES = np.asarray([1, 1, 1, 1, 3, 3, 5, 4, 1], np.int32)
HIT_FRAME = np.asarray([-1, -1, -1, -1, -1, 0, 2, 0, -1], np.int32)
REACH = np.asarray([0, 0, 0, 0, 0, 2, 3, 1, 0], np.int32)
DAMAGE = np.asarray([0, 0, 0, 0, 0, 8, 20, 14, 0], np.int32)
STUNS = np.asarray([0, 0, 0, 0, 0, 2, 4, 3, 0], np.int32)
BLOCKED = np.asarray([0, 0, 0, 0, 0, 0, 4, 14, 0], np.int32)
PUSH = np.asarray([0, 0, 0, 0, 0, 1, 1, 2, 0], np.int32)


@struct
class State:
    position: Any  # int32 [2]: cells from the left; the first fighter is left of the second
    health: Any  # int32 [2]
    doing: Any  # int32 [2]: an action, or `STUN`
    left: Any  # int32 [2]: more frames of it, in which the fighter cannot choose
    chosen: Any  # int32: the left one's choice in this frame, until the right one has chosen
    frame: Any  # int32
    frames: Any  # int32: number of frames of a round


def _mover(state: State) -> Array:
    return (jnp.asarray(state.chosen) != NOT_YET).astype(jnp.int32)


def _play(state: State, action: Array) -> State:
    second = _mover(state) == 1
    both = jnp.stack([jnp.asarray(state.chosen), action]).astype(jnp.int32)
    after = frame(state, jnp.where(second, both, STAY))
    pick = lambda new, old: jnp.where(second, new, old)
    return State(
        pick(after.position, state.position),
        pick(after.health, state.health),
        pick(after.doing, state.doing),
        pick(after.left, state.left),
        jnp.where(second, NOT_YET, action).astype(jnp.int32),
        pick(after.frame, state.frame),
        jnp.asarray(state.frames, jnp.int32),
    )


def frame(state: State, choice: Array) -> State:
    """Return the state after one frame, in which those who can choose do `choice` [2]."""
    busy = jnp.asarray(state.left) > 0
    doing = jnp.where(busy, jnp.asarray(state.doing), choice)
    length = jnp.asarray(FRAMES)[doing]
    left = jnp.where(busy, jnp.asarray(state.left), length)
    elapsed = length - left  # of a stun it is negative or 0, and it never hits

    toward = (doing == ADVANCE).astype(jnp.int32) - (doing == RETREAT)
    position = _move(jnp.asarray(state.position), toward * jnp.asarray([1, -1]))
    distance = position[1] - position[0]

    other = lambda x: x[::-1]
    reaches = (elapsed == jnp.asarray(HIT_FRAME)[doing]) & (distance <= jnp.asarray(REACH)[doing])
    airborne, blocking, stunned = other(doing == JUMP), other(doing == BLOCK), other(doing == STUN)
    strikes = reaches & ((doing == JAB) | ((doing == HEAVY) & ~airborne))
    hits = strikes & ~blocking
    throws = reaches & (doing == THROW) & ~airborne & ~stunned & ~other(hits)
    throws = throws & ~other(throws)  # two throws at once undo each other
    lands = hits | throws
    damage = jnp.where(lands, jnp.asarray(DAMAGE)[doing], 0)
    damage = jnp.where(strikes & blocking, jnp.asarray(BLOCKED)[doing], damage)

    struck = other(lands)
    health = jnp.maximum(jnp.asarray(state.health) - other(damage), 0)
    pushed = other(jnp.where(strikes | throws, jnp.asarray(PUSH)[doing], 0))
    position = _move(position, pushed * jnp.asarray([-1, 1]))
    return State(
        position,
        health,
        jnp.where(struck, STUN, doing),
        jnp.where(struck, other(jnp.asarray(STUNS)[doing]), left - 1),
        jnp.asarray(state.chosen),
        jnp.asarray(state.frame, jnp.int32) + 1,
        jnp.asarray(state.frames),
    )


def _move(position: Array, change: Array) -> Array:
    """Return the positions after a change, within the walls; nobody moves who would meet or pass
    the other."""
    moved = jnp.clip(position + change, 0, WIDTH - 1)
    return jnp.where(moved[0] < moved[1], moved, position)


def _legal(state: State) -> Array:
    free = jnp.asarray(state.left)[_mover(state)] == 0
    return (jnp.arange(STUN) == STAY) | free


def _observe(state: State) -> Array:
    mover = _mover(state)
    position = jnp.asarray(state.position)
    walls = jnp.stack([position[0], WIDTH - 1 - position[1]])

    def fighter(i: Array) -> Array:
        left = jnp.asarray(state.left)[i]
        doing = jnp.where(left > 0, jnp.asarray(state.doing)[i], STAY)
        numbers = [jnp.asarray(state.health)[i] / FULL, walls[i] / (WIDTH - 1), left / LONGEST]
        return jnp.concatenate([jnp.stack(numbers), one_hot(doing, KINDS)])

    shared = jnp.stack([(position[1] - position[0]) / (WIDTH - 1), 1 - state.frame / state.frames])
    return jnp.concatenate([fighter(mover), fighter(1 - mover), shared])


def _over(state: State) -> Array:
    out = (jnp.asarray(state.health) <= 0).any() | (jnp.asarray(state.frame) >= state.frames)
    return out & (jnp.asarray(state.chosen) == NOT_YET)


def _payoff(state: State, params: Tree) -> Array:
    health = jnp.asarray(state.health).astype(jnp.float32)
    lead = (health[0] - health[1]) / FULL
    return jnp.stack([lead, -lead])


def make_rules(frames: int) -> Rules:
    """Return the rules of rounds of so many frames."""
    gaps = np.asarray(GAPS, np.int32)
    start = (WIDTH - 1 - gaps) // 2
    rounds = len(gaps)
    number = lambda x: np.full(rounds, x, np.int32)
    pair = lambda x: np.full((rounds, 2), x, np.int32)
    return Rules(
        deals=State(
            np.stack([start, start + gaps], 1).astype(np.int32),
            pair(FULL),
            pair(STAY),
            pair(0),
            number(NOT_YET),
            number(0),
            number(frames),
        ),
        play=_play,
        mover=_mover,
        legal=_legal,
        observe=_observe,
        over=_over,
        payoff=_payoff,
        num_actions=STUN,
        max_moves=2 * frames,
    )


@functools.cache
def duel(frames: int = 40) -> Environment:
    """Duel of two fighters.

    frames: number of frames of a round, at least 1.
    """
    if frames < 1:
        raise UserError(f"A duel needs at least 1 frame, got {frames}.")
    return environment("duel", make_rules(frames), render=_render)


def _render(state: State) -> np.ndarray:
    """Draw both fighters, what they reach for, and their health above."""
    canvas = drawing.Canvas(WIDTH * 30, 160, scale=1.0, origin=(0, 160))
    canvas.polygon([(0, 0), (WIDTH * 30, 0), (WIDTH * 30, 20), (0, 20)], drawing.SHADE)
    colors = (drawing.BLUE, drawing.ORANGE)
    for i, side in enumerate((1, -1)):
        x, doing = 30.0 * int(state.position[i]) + 15.0, int(state.doing[i])
        busy = int(state.left[i]) > 0
        bottom = 50.0 if busy and doing == JUMP else 20.0
        color = drawing.STEEL if busy and doing == STUN else colors[i]
        canvas.polygon(
            [(x - 9, bottom), (x + 9, bottom), (x + 9, bottom + 45), (x - 9, bottom + 45)], color
        )
        canvas.circle((x, bottom + 55.0), 9.0, color)
        if busy and doing in (JAB, HEAVY, THROW):
            reach = x + side * 30.0 * int(REACH[doing])
            canvas.line([(x, bottom + 35), (reach, bottom + 35)], drawing.RED, 4.0)
        if doing == BLOCK:
            canvas.line([(x + side * 13, 20), (x + side * 13, 70)], drawing.INK, 4.0)
        edge, length = (10.0, 380.0)[i], 1.7 * int(state.health[i])
        canvas.polygon(
            [(edge, 145), (edge + side * length, 145), (edge + side * length, 152), (edge, 152)],
            colors[i],
        )
    return canvas.frame()
