"""Accounts of a trader: proportional costs, holdings that prices move, and a ledger of an episode.

Holdings are shares of the wealth, [..., N + 1], cash first; they add up to 1.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.types import Array, struct

SCORES = {"sharpe": "Sharpe ratio", "turnover": "turnover", "drawdown": "drawdown"}


def pay_for_trades(held: Array, weights: Array, cost: Array | float) -> tuple[Array, Array]:
    """Return the turnover [...] of a trade from the holdings `held` to `weights`, and the share of
    the wealth [...] that is left.

    Turnover is sum_i |weights_i - held_i| over all assets but cash, and `cost` is paid for each
    unit of it (Zhang et al., 2020, "Cost-sensitive portfolio selection via deep reinforcement
    learning", as in the authors' code: a bound of what a trade costs exactly, to first order).
    """
    turnover = jnp.abs(weights[..., 1:] - held[..., 1:]).sum(-1)
    return turnover, 1 - cost * turnover


def move_prices(weights: Array, relatives: Array) -> tuple[Array, Array]:
    """Return by which factor [...] the wealth grows, and the holdings afterwards.

    relatives: price of each asset after a step by that before, [..., N + 1], of cash 1.
    """
    worth = weights * relatives
    growth = worth.sum(-1)
    return growth, worth / growth[..., None]


@struct
class Ledger:
    """Sums over an episode, float32 scalars."""

    steps: Array
    total: Array  # of the gains
    squares: Array  # of the gains
    peak: Array  # largest total so far, at least 0
    drawdown: Array  # largest fall of the total below its peak
    turnover: Array


def open_ledger() -> Ledger:
    """Return an empty ledger."""
    return Ledger(*[jnp.zeros((), jnp.float32)] * 6)


def record(ledger: Ledger, gain: Array, turnover: Array) -> Ledger:
    """Return the ledger after a step with a gain and a turnover."""
    total = ledger.total + gain
    peak = jnp.maximum(ledger.peak, total)
    return Ledger(
        ledger.steps + 1,
        total,
        ledger.squares + jnp.square(gain),
        peak,
        jnp.maximum(ledger.drawdown, peak - total),
        ledger.turnover + turnover,
    )


def metrics(ledger: Ledger) -> dict[str, Array]:
    """Return the metrics of an account: `sharpe`, the mean gain of a step by its standard deviation
    (0 where all are equal), `turnover`, and `drawdown`."""
    steps = jnp.maximum(ledger.steps, 1)
    mean = ledger.total / steps
    variance = ledger.squares / steps - jnp.square(mean)
    varies = variance > 1e-12
    sharpe = jnp.where(varies, mean / jnp.sqrt(jnp.where(varies, variance, 1)), 0)
    return {"sharpe": sharpe, "turnover": ledger.turnover, "drawdown": ledger.drawdown}
