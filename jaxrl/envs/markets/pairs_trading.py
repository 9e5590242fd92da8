"""Statistical arbitrage: bet on a spread of two prices that returns to a mean, which may jump.

The spread is a number of ticks from -`ticks` to `ticks`; in each step it moves one tick up with
probability 1/2 - `pull` (spread - mean), within 0 and 1, and else one down (at its bounds it may
stay). So it returns to the mean as an Ornstein-Uhlenbeck process does, and everything can be
computed exactly (`jaxrl.exact.markets.pairs_tables`). In each step, with probability `switch`, the
mean is drawn anew from -`shift`, 0 and `shift`, which nothing shows but the spread. It begins at
one of them.

Observation: float32 [window + 1]: the spreads of the last `window` steps by `ticks`, the newest
last, and the position. Action: the position to take, 0 short, 1 none, 2 long. Reward, in ticks: the
position times the change of the spread, minus `cost` for each unit of change of the position. Time
limit: `steps`. Metrics: `sharpe`, `turnover` and `drawdown` of `jaxrl.envs.markets.account`. The
expert is the rule of pairs traders, which believes in a mean of 0: it goes short or long where the
spread is at least `entry` ticks above or below 0, and closes a position when the spread reaches 0.
Made for Sarkar (2023), "Harnessing deep Q-learning for enhanced statistical arbitrage in
high-frequency trading: a comprehensive exploration", who has recorded prices; the rule is that of
Gatev, Goetzmann and Rouwenhorst (2006), "Pairs trading: performance of a relative-value arbitrage
rule", in ticks instead of deviations.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.markets import account
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit


@struct
class Params:
    pull: float = 0.05  # by how much each tick away from the mean makes the way back likelier
    shift: float = 6.0  # distance of the other means from 0, in ticks, at most `ticks`
    switch: float = 0.02  # probability in a step that the mean is drawn anew
    cost: float = 0.5  # ticks for each unit of change of the position, nonnegative
    entry: float = 3.0  # spread from which the expert takes a position, in ticks


@struct
class State:
    spreads: Array  # float32 [W]: ticks
    mean: Array  # int32: 0, 1 or 2
    position: Array  # float32: -1, 0 or 1
    ledger: account.Ledger


def means_of(params: Params) -> Array:
    """Return the means between which the process jumps, [3]."""
    return jnp.asarray(params.shift, jnp.float32) * jnp.arange(-1.0, 2.0)


def rise(spread: Array, mean: Array, params: Params) -> Array:
    """Return the probability [...] that the spread rises."""
    return jnp.clip(0.5 - params.pull * (spread - mean), 0.0, 1.0)


def follow_rule(spread: Array, position: Array, params: Params) -> Array:
    """Return the expert's position [...], from the spread and the position before."""
    keeps = jnp.where(position * spread < 0, position, 0.0)  # until the spread is at 0
    return jnp.where(jnp.abs(spread) >= params.entry, -jnp.sign(spread), keeps)


@functools.cache
def pairs_trading(ticks: int = 12, window: int = 8, steps: int = 256) -> Environment:
    """The spread between -`ticks` and `ticks`, limited to `steps` steps. Raises `UserError` for no
    tick, no window and no step."""
    at_least("pairs_trading", "ticks", ticks, 1)
    at_least("pairs_trading", "window", window, 1)
    at_least("pairs_trading", "steps", steps, 1)

    def move(key: Key, spread: Array, mean: Array, params: Params) -> tuple[Array, Array]:
        """Return the spread and the number of the mean after a step."""
        rise_key, switch_key, mean_key = jax.random.split(key, 3)
        up = jax.random.bernoulli(rise_key, rise(spread, means_of(params)[mean], params))
        spread = jnp.clip(spread + jnp.where(up, 1.0, -1.0), -ticks, ticks)
        switches = jax.random.bernoulli(switch_key, params.switch)
        return spread, jnp.where(switches, jax.random.randint(mean_key, (), 0, 3), mean)

    def observe(state: State) -> Array:
        return jnp.append(state.spreads / ticks, state.position)

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        key, mean_key = jax.random.split(key)
        mean = jax.random.randint(mean_key, (), 0, 3)

        def follow(carry, key):
            spread, mean = carry
            carry = move(key, spread, mean, params)
            return carry, carry[0]

        begin = jnp.clip(jnp.round(means_of(params)[mean]), -ticks, ticks)
        keys = jax.random.split(key, window)
        (_, mean), spreads = jax.lax.scan(follow, (begin, mean), keys)
        state = State(spreads, mean, jnp.zeros((), jnp.float32), account.open_ledger())
        return state, timesteps.first(observe(state), metrics=account.metrics(state.ledger))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        position = action.astype(jnp.float32) - 1
        turnover = jnp.abs(position - state.position)
        before = state.spreads[-1]
        spread, mean = move(key, before, state.mean, params)
        reward = position * (spread - before) - params.cost * turnover
        ledger = account.record(state.ledger, reward, turnover)
        spreads = jnp.append(state.spreads[1:], spread)
        state = State(spreads, mean, position, ledger)
        metrics = account.metrics(ledger)
        return state, timesteps.following(observe(state), reward, metrics=metrics)

    def expert(state: State, params: Params) -> Array:
        position = follow_rule(state.spreads[-1], state.position, params)
        return (position + 1).astype(jnp.int32)

    env = Environment(
        name="pairs_trading",
        reset=reset,
        step=step,
        params=Params(),
        observation_space=Box(-1.0, 1.0, (window + 1,)),
        action_space=Discrete(3),
        scores=account.SCORES,
        render=functools.partial(_draw, ticks),
        expert=expert,
    )
    return time_limit(env, steps)


def _draw(ticks: int, state: State, params: Params) -> np.ndarray:
    """Draw the last spreads, the mean, and the position as a bar."""
    canvas = drawing.Canvas(400, 280, scale=1.0, origin=(20, 140))
    unit = 120 / ticks
    spreads = np.asarray(state.spreads, float)
    mean = float(np.asarray(means_of(params))[int(state.mean)])
    canvas.line([(0.0, 0.0), (320.0, 0.0)], drawing.SHADE, 2.0)
    canvas.line([(0.0, unit * mean), (320.0, unit * mean)], drawing.ORANGE, 2.0)
    times = np.linspace(0, 320, len(spreads) + 1)[1:]
    canvas.line(list(zip(times, unit * spreads, strict=True)), drawing.BLUE, 3.0)
    canvas.circle((320.0, unit * spreads[-1]), 6.0, drawing.BLUE)
    position = float(state.position)
    if position:
        color = drawing.GREEN if position > 0 else drawing.RED
        corners = [(340.0, 0.0), (360.0, 0.0), (360.0, 100 * position), (340.0, 100 * position)]
        canvas.polygon(corners, color)
    return canvas.frame()
