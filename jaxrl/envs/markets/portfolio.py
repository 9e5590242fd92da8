"""A portfolio of cash and several assets whose prices follow each other; trading costs.

Observation: a dict of `returns`, float32 [window, N], the log-returns of the last steps, the newest
last; `held`, float32 [N + 1], the shares of the wealth that cash (first) and the assets have now;
and `cost`, float32 [1]. Action: float32 [N + 1] from 0 to 1, which are divided by their sum (all of
it cash where that is 0): the shares to hold, cash first. Reward: the logarithm of the factor by
which the wealth grows, after costs: `cost` times the turnover, sum |share - share held| over the
assets. Time limit: `steps`.

The log-return of asset i in a step is drift + `momentum` times its own last one + `lead` times that
of asset i - 1 (of the first asset: of the last one), both less the drift, plus `volatility` times
noise. Noise is normal or, with `noise="coin"`, 1 or -1, so that everything that can happen can be
enumerated (`jaxrl.exact.markets`); the assets' noises have the given `correlation` (of coins: that
share of their variance is common). With `momentum` and `lead` 0 the steps are independent, and
without costs no strategy grows faster than the best constant shares (Cover and Thomas, 2006,
"Elements of Information Theory", chapter 16). Prices do not react to the trader.

Metrics: `sharpe`, the mean reward of a step by its standard deviation, `turnover`, summed, and
`drawdown`, the largest fall of the log-wealth below its highest value so far. The expert is a rule
of thumb that knows the process: it moves everything to the asset with the highest expected
log-return, or to cash, where that pays for the trade in one step, and else keeps what it holds.
Made for Zhang et al. (2020), "Cost-sensitive portfolio selection via deep reinforcement learning",
who use recorded prices.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.markets import account
from jaxrl.envs.options import at_least, one_of
from jaxrl.envs.wrappers.time_limit import time_limit

NOISES = ("normal", "coin")


@struct
class Params:
    drift: Any  # [N]: mean log-return of each asset in a step
    volatility: Any  # [N]: standard deviation of each asset's noise
    correlation: float = 0.3  # of the assets' noises, from 0 to 1
    momentum: float = 0.1  # weight of an asset's last log-return
    lead: float = 0.3  # weight of the last log-return of the asset before; |momentum| + |lead| < 1
    cost: float = 0.0025  # share of a trade's volume that is paid, at least 0, below 0.5


@struct
class State:
    returns: Array  # float32 [W, N]
    held: Array  # float32 [N + 1]
    ledger: account.Ledger


def expect_returns(last: Array, params: Params) -> Array:
    """Return the expected log-returns [N] of the next step, from the last ones [N]."""
    drift = jnp.asarray(params.drift, jnp.float32)
    away = last - drift
    return drift + params.momentum * away + params.lead * jnp.roll(away, 1)


def mix_noise(common: Array, own: Array, params: Params) -> Array:
    """Return the assets' noises [N] from a common number [] and one for each asset [N], all with
    variance 1."""
    shared = jnp.asarray(params.correlation, jnp.float32)
    both = jnp.sqrt(shared) * common + jnp.sqrt(1 - shared) * own
    return jnp.asarray(params.volatility, jnp.float32) * both


def shares_of(action: Array) -> Array:
    """Return the shares [..., N + 1] that an action stands for: all cash where it is 0."""
    positive = jnp.clip(action, 0.0, 1.0)
    total = positive.sum(-1, keepdims=True)
    cash = jnp.zeros_like(positive).at[..., 0].set(1.0)
    return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1.0), cash)


@functools.cache
def portfolio(
    assets: int = 4, window: int = 8, steps: int = 64, noise: str = "normal"
) -> Environment:
    """The portfolio with `assets` N, limited to `steps` steps. Raises `UserError` for no asset, no
    window, no step and an unknown noise."""
    at_least("portfolio", "assets", assets, 1)
    at_least("portfolio", "window", window, 1)
    at_least("portfolio", "steps", steps, 1)
    one_of("portfolio", "noise", noise, NOISES)
    draw = jax.random.normal if noise == "normal" else jax.random.rademacher

    def next_returns(key: Key, last: Array, params: Params) -> Array:
        numbers = draw(key, (assets + 1,), jnp.float32)
        return expect_returns(last, params) + mix_noise(numbers[0], numbers[1:], params)

    def observe(state: State, params: Params) -> dict[str, Array]:
        cost = jnp.asarray(params.cost, jnp.float32)[None]
        return {"cost": cost, "held": state.held, "returns": state.returns}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        def follow(last, key):
            last = next_returns(key, last, params)
            return last, last

        begin = jnp.broadcast_to(jnp.asarray(params.drift, jnp.float32), (assets,))
        # Twice the window, so that the first returns that are seen follow others.
        _, returns = jax.lax.scan(follow, begin, jax.random.split(key, 2 * window))
        held = jnp.zeros(assets + 1, jnp.float32).at[0].set(1.0)
        state = State(returns[window:], held, account.open_ledger())
        metrics = account.metrics(state.ledger)
        return state, timesteps.first(observe(state, params), metrics=metrics)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        weights = shares_of(action)
        turnover, left = account.pay_for_trades(state.held, weights, params.cost)
        new = next_returns(key, state.returns[-1], params)
        relatives = jnp.exp(jnp.concatenate([jnp.zeros(1), new]))
        growth, held = account.move_prices(weights, relatives)
        reward = jnp.log(growth) + jnp.log(left)
        state = State(
            jnp.concatenate([state.returns[1:], new[None]]),
            jnp.clip(held, 0.0, 1.0),
            account.record(state.ledger, reward, turnover),
        )
        metrics = account.metrics(state.ledger)
        return state, timesteps.following(observe(state, params), reward, metrics=metrics)

    def follow_rule(state: State, params: Params) -> Array:
        expected = jnp.append(0.0, expect_returns(state.returns[-1], params))
        best = jax.nn.one_hot(expected.argmax(), assets + 1)
        left = account.pay_for_trades(state.held, best, params.cost)[1]
        pays = expected.max() + jnp.log(left) > (state.held * expected).sum()
        return jnp.where(pays, best, state.held)

    env = Environment(
        name="portfolio",
        reset=reset,
        step=step,
        params=Params(np.full(assets, 0.0005, np.float32), np.full(assets, 0.02, np.float32)),
        observation_space={
            "cost": Box(0.0, 1.0, (1,)),
            "held": Box(0.0, 1.0, (assets + 1,)),
            "returns": Box(-math.inf, math.inf, (window, assets)),
        },
        action_space=Box(0.0, 1.0, (assets + 1,)),
        scores=account.SCORES,
        render=_draw,
        expert=follow_rule,
    )
    return time_limit(env, steps)


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw the prices over the window, and the share of each asset as a disc at its end."""
    del params
    canvas = drawing.Canvas(400, 280, scale=1.0, origin=(30, 140))
    returns, held = np.asarray(state.returns, float), np.asarray(state.held, float)
    prices = np.concatenate([np.zeros((1, returns.shape[1])), returns.cumsum(0)])
    unit = 110 / max(np.abs(prices).max(), 1e-6)
    times = np.linspace(0, 300, len(prices))
    colors = (drawing.BLUE, drawing.ORANGE, drawing.GREEN, drawing.RED, drawing.STEEL)
    canvas.line([(0.0, 0.0), (330.0, 0.0)], drawing.SHADE, 2.0)
    for asset, line in enumerate((unit * prices).T):
        color = colors[asset % len(colors)]
        canvas.line(list(zip(times, line, strict=True)), color, 3.0)
        canvas.circle((300.0, line[-1]), 2 + 18 * held[asset + 1] ** 0.5, color)
    return canvas.frame()
