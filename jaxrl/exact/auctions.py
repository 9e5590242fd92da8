"""Exact answers of sealed-bid auctions with independent private values (`envs.sealed_auction`).

Values lie in [0, 1], and a value up to v has the probability v^power. The equilibrium's bids are
`envs.markets.sealed_auction.equilibrium_bid`. All are pure functions of arrays, in the precision of
their arguments. Source: Krishna, 2009, "Auction theory", chapters 2 and 5; Myerson, 1981, "Optimal
auction design".
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import precise
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array


def equilibrium_gain(
    value: Array, bidders: int, *, power: Array | float, reserve: Array | float
) -> Array:
    """Return the expected gain of a bidder with this value in equilibrium, [...]: the same at first
    and at second price.

    integral from reserve to v of F(x)^(bidders-1) = (v^(k+1) - reserve^(k+1)) / (k+1),
    k = power (bidders - 1); 0 below the reserve.
    """
    k = power * (bidders - 1)
    gain = (value ** (k + 1) - jnp.asarray(reserve) ** (k + 1)) / (k + 1)
    return jnp.maximum(gain, 0.0)


def equilibrium_revenue(bidders: int, *, power: Array | float, reserve: Array | float) -> Array:
    """Return the seller's expected revenue in equilibrium, at first and at second price.

    It is N times the integral from reserve to 1 of (x f(x) + F(x) - 1) F(x)^(N-1), N = bidders
    (Krishna, 2009, section 5.2: virtual values).
    """
    k, r = power * (bidders - 1), jnp.asarray(reserve)
    whole = (power + 1) * (1 - r ** (k + power + 1)) / (k + power + 1)
    return bidders * (whole - (1 - r ** (k + 1)) / (k + 1))


def best_reserve(power: Array | float) -> Array:
    """Return the reserve with the largest revenue, whatever the number of bidders: the value whose
    virtual value x - (1 - F(x)) / f(x) is 0, (1 + power)^(-1/power)."""
    return (1 + jnp.asarray(power)) ** (-1 / jnp.asarray(power))


def expected_gains(
    value: Array,
    bid: Array,
    chances: Array,
    bidders: int,
    *,
    reserve: Array | float = 0.0,
    price: str = "first",
) -> Array:
    """Return the expected gain [V, B] of each bid for each value against independent rivals.

    value: [V]. bid: [B], rising. chances: [B], the probability of each bid of a rival. Equal bids
    win alike. price: "first" or "second".

    Raises `UserError` for another price.
    """
    if price not in ("first", "second"):
        raise UserError(f"price is {price!r}; it must be 'first' or 'second'.")
    rivals = bidders - 1
    below = jnp.cumsum(chances) - chances  # a rival bids less than this bid
    ties = jnp.arange(rivals + 1)
    ways = jnp.asarray([math.comb(rivals, m) for m in range(rivals + 1)], chances.dtype)
    # Probability that m rivals bid as much and the others less, [B, M + 1].
    equal = ways * chances[:, None] ** ties * below[:, None] ** (rivals - ties)
    sold = bid >= reserve
    alone, shared = equal[:, 0], (equal / (ties + 1))[:, 1:].sum(-1)
    if price == "first":
        win = jnp.where(sold, alone + shared, 0.0)
        return (value[:, None] - bid) * win
    # The highest rival's bid is each bid below with the probability that `highest` says.
    reached = jnp.cumsum(chances) ** rivals
    highest = jnp.diff(reached, prepend=0)
    paid = jnp.cumsum(highest * jnp.maximum(bid, reserve)) - highest * jnp.maximum(bid, reserve)
    gain = value[:, None] * alone - paid + (value[:, None] - bid) * shared
    return jnp.where(sold, gain, 0.0)


def fictitious_bidders(
    value: Array,
    weight: Array,
    bid: Array,
    bidders: int,
    *,
    reserve: Array | float = 0.0,
    price: str = "first",
    rounds: int = 1000,
) -> tuple[Array, Array]:
    """Play fictitious play between alike bidders, who each know their own value alone.

    In each round every value's best response to the bids so far is found (the lowest of equal
    ones), and takes its part in the average strategy. The first strategy bids evenly up to the
    value.

    value: [V]. weight: [V], their probabilities. bid: [B], rising, from 0.
    Returns the average strategy, [V, B], and how much a bidder gains by its best response to it on
    average over values.
    """

    def gains(strategy: Array) -> Array:
        chances = precise.matmul(weight, strategy)
        return expected_gains(value, bid, chances, bidders, reserve=reserve, price=price)

    def step(t: Array, strategy: Array) -> Array:
        best = jax.nn.one_hot(gains(strategy).argmax(-1), len(bid), dtype=strategy.dtype)
        return strategy + (best - strategy) / (t + 2)

    begin = (bid <= value[:, None]).astype(value.dtype)
    strategy = jax.lax.fori_loop(0, rounds, step, begin / begin.sum(-1, keepdims=True))
    each = gains(strategy)
    return strategy, (weight * (each.max(-1) - (strategy * each).sum(-1))).sum()


def value_quantiles(count: int, power: float, dtype: type = np.float64) -> Array:
    """Return midpoint quantiles [count] of the values, equally likely."""
    return jnp.asarray(((np.arange(count) + 0.5) / count) ** (1 / power), dtype)
