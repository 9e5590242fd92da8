"""Catch: move a paddle under a falling ball.

Observation: bool [rows, columns, 1], by default [10, 5, 1]: the ball and, in the last row, the
paddle. Action: 0 left, 1 stay, 2 right, by one cell, before the ball falls by one. Reward: 1 if the
ball comes down on the paddle, else -1; 0 until then (with `delayed`, all rewards of an episode are
paid at its end). Terminates when the last ball is down: after rows - 1 steps per ball, one ball by
default. Every ball falls from a random column; each after the first appears in the step in which
the one before it comes down, so the latter is never observed at the bottom. Osband et al. (2020),
"Behavior Suite for Reinforcement Learning", arXiv:1908.03568, whose board has no channel axis and
one ball. The metric `success` is the fraction of the episode's balls that was caught so far.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.pixels import screen


@struct
class Params:
    delayed: bool = False  # whether rewards are paid only at the episode's end


@struct
class State:  # int32 scalars
    paddle: Array  # column of the paddle
    x: Array  # column of the ball
    y: Array
    ball: Array  # number of balls that came down
    caught: Array  # number of balls that were caught


@functools.cache
def catch(rows: int = 10, columns: int = 5, balls: int = 1) -> Environment:
    """Catch on a board of `rows` x `columns`, with `balls` balls one after the other in an episode.

    Raises `UserError` for fewer than two rows, one column or one ball.
    """
    for option, value, least in (("rows", rows, 2), ("columns", columns, 1), ("balls", balls, 1)):
        at_least("catch", option, value, least)

    def observe(state: State) -> Array:
        row, column = (jnp.arange(n, dtype=jnp.int32) for n in (rows, columns))
        ball = (row == state.y)[:, None] & (column == state.x)
        paddle = (row == rows - 1)[:, None] & (column == state.paddle)
        return (ball | paddle)[..., None]

    def success(state: State) -> dict[str, Array]:
        return {"success": state.caught.astype(jnp.float32) / balls}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        del params
        none = jnp.zeros((), jnp.int32)
        x = jax.random.randint(key, (), 0, columns)
        state = State(jnp.full((), columns // 2, jnp.int32), x, none, none, none)
        return state, timesteps.first(observe(state), metrics=success(state))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        paddle = jnp.clip(state.paddle + action - 1, 0, columns - 1).astype(jnp.int32)
        y = state.y + 1
        down = y == rows - 1
        hit = down & (state.x == paddle)
        caught, ball = state.caught + hit, state.ball + down
        ends = ball == balls
        # The last ball stays in sight; any other is replaced by a new one at the top.
        again = down & ~ends
        column = jax.random.randint(key, (), 0, columns) if balls > 1 else state.x
        state = State(
            paddle, jnp.where(again, column, state.x), jnp.where(again, 0, y), ball, caught
        )
        reward = jnp.where(
            params.delayed,
            jnp.where(ends, 2 * caught - balls, 0),
            jnp.where(down, jnp.where(hit, 1, -1), 0),
        )
        return state, timesteps.following(observe(state), reward, ends, metrics=success(state))

    def render(state: State, params: Params) -> np.ndarray:
        del params
        return screen.picture(jax.jit(observe)(state), (screen.SKY,))

    def expert(state: State, params: Params) -> Array:
        del params
        return (1 + jnp.sign(state.x - state.paddle)).astype(jnp.int32)

    return Environment(
        name="catch",
        # One program for users who step by hand; inside another program, jit changes nothing.
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=Box(0, 1, (rows, columns, 1), jnp.bool_),
        action_space=Discrete(3),
        max_steps=balls * (rows - 1),
        render=render,
        expert=jax.jit(expert, inline=True),
    )
