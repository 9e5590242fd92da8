"""Exact answers of markets: the best constant shares, and pairs trading as a finite MDP.

All are pure functions of arrays, in the precision of their arguments.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.envs.markets import pairs_trading, portfolio


def growth(weights: Array, relatives: Array, chances: Array) -> Array:
    """Return the expected logarithm of the growth of wealth in a step by constant shares.

    weights: [N + 1]. relatives: [M, N + 1], prices of each outcome by those before. chances: [M].
    """
    return (chances * jnp.log(precise.matmul(relatives, weights))).sum()


def best_constant_shares(relatives: Array, chances: Array, iterations: int = 10_000) -> Array:
    """Return the shares [N + 1] with the largest `growth` (log-optimal, in one asset Kelly's).

    Repeats w_i <- w_i E[x_i / (w . x)], of which each step raises the growth (Cover, 1984, "An
    algorithm for maximizing expected log investment return"). Arguments are those of `growth`.
    """

    def improve(_: int, weights: Array) -> Array:
        worth = precise.matmul(relatives, weights)
        return weights * precise.matmul(chances / worth, relatives)

    assets = relatives.shape[1]
    begin = jnp.full(assets, 1 / assets, relatives.dtype)
    return jax.lax.fori_loop(0, iterations, improve, begin)


def coin_outcomes(params: portfolio.Params, last: Array) -> tuple[Array, Array]:
    """Return what can happen next in a `portfolio` with coins: prices by those before, [M, N + 1],
    cash first, and chances [M].

    last: the last log-returns, [N]; they matter unless `momentum` and `lead` are 0.
    """
    assets = len(last)
    coins = np.array(list(itertools.product((-1.0, 1.0), repeat=assets + 1)))
    coins = jnp.asarray(coins, last.dtype)
    noise = jax.vmap(lambda c: portfolio.mix_noise(c[0], c[1:], params))(coins)
    returns = portfolio.expect_returns(last, params) + noise
    relatives = jnp.exp(jnp.concatenate([jnp.zeros_like(returns[:, :1]), returns], 1))
    return relatives, jnp.full(len(coins), 1 / len(coins), last.dtype)


def pairs_states(ticks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of the mean, the spread and the position of each state of `pairs_tables`,
    [S] each; the position changes fastest, then the spread."""
    spread = np.arange(-ticks, ticks + 1)
    mean, spread, position = np.meshgrid(np.arange(3), spread, np.arange(-1, 2), indexing="ij")
    return mean.ravel(), spread.ravel(), position.ravel()


def pairs_tables(params: pairs_trading.Params, ticks: int) -> tuple[Array, Array]:
    """Return transitions [S, 3, S] and rewards [S, 3] of `pairs_trading` for a trader who knows the
    mean, as `exact.dynamic_programming` takes them; for states see `pairs_states`.

    Its optimal values bound those of any trader, and are reached where there is one mean (`switch`
    and `shift` 0). Raises `UserError` unless there is a tick.
    """
    if ticks < 1:
        raise UserError(f"The spread has {ticks} ticks on each side; there must be at least 1.")
    mean, spread, position = (jnp.asarray(x) for x in pairs_states(ticks))
    means = pairs_trading.means_of(params)
    up = pairs_trading.rise(spread, means[mean], params)
    action = jnp.arange(3) - 1
    stays = jnp.eye(3) * (1 - params.switch) + params.switch / 3
    width = 2 * ticks + 1
    rows = jnp.arange(len(mean))
    transition = jnp.zeros((len(mean), 3, 3, width, 3))
    reward = -params.cost * jnp.abs(action - position[:, None])
    for change, chance in ((1, up), (-1, 1 - up)):
        after = jnp.clip(spread + change, -ticks, ticks)
        reward += chance[:, None] * action * (after - spread)[:, None]
        each = chance[:, None] * stays[mean]  # [S, 3 means]
        for a in range(3):
            transition = transition.at[rows, a, :, after + ticks, a].add(each)
    return transition.reshape(len(mean), 3, len(mean)), reward
