"""Pathwise gradients of smoothed auctions: do they find the equilibrium bids?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import solvers
from jaxrl.core.types import Array, Key

TEMPERATURE, STEPS, RATE = 0.02, 1500, 0.02
KNOTS = 8  # of the piecewise linear bids
POINTS = {2: 32, 3: 16}  # quantiles of each other bidder's values, by the number of bidders
Auction = Callable[..., tuple[Array, Array]]  # like `solvers.smoothed_auction`


def quantiles(power: Array, points: int) -> Array:
    """Return midpoint quantiles [points] of values with the distribution v^power on [0, 1]."""
    return ((jnp.arange(points) + 0.5) / points) ** (1 / power)


def bids(parameters: Array, values: Array) -> Array:
    """Return the bids of an increasing piecewise linear strategy that bids 0 for 0."""
    heights = jnp.cumsum(jnp.append(0.0, jax.nn.softplus(parameters))) / (KNOTS - 1)
    return jnp.interp(values, jnp.linspace(0, 1, KNOTS), heights)


def gain(
    own: Array, rival: Array, power: Array, bidders: int, price: str, auction: Auction
) -> Array:
    """Return the expected gain of a bidder whose rivals all play the strategy `rival`.

    The expectation is a sum over quantiles of all values. No two values are equal, so that ties
    play no part.
    """
    mine = quantiles(power, POINTS[bidders] + 1)
    theirs = bids(rival, quantiles(power, POINTS[bidders]))
    others = jnp.stack([x.ravel() for x in jnp.meshgrid(*[theirs] * (bidders - 1))], -1)
    shape = (len(mine), len(others))
    first = jnp.broadcast_to(bids(own, mine)[:, None, None], (*shape, 1))
    both = jnp.concatenate([first, jnp.broadcast_to(others, (*shape, bidders - 1))], -1)
    allocation, payment = auction(both, TEMPERATURE, price)
    return (mine[:, None] * allocation[..., 0] - payment[..., 0]).mean()


def learn(key: Key, power: Array, bidders: int, price: str, auction: Auction) -> Array:
    """Return the strategy that all bidders have learned by simultaneous gradient ascent (Adam)."""
    gradient = jax.grad(gain)

    def step(carry, t):
        strategy, mean, square = carry
        new = gradient(strategy, strategy, power, bidders, price, auction)
        mean, square = 0.9 * mean + 0.1 * new, 0.99 * square + 0.01 * new**2
        scaled = (mean / (1 - 0.9**t)) / (jnp.sqrt(square / (1 - 0.99**t)) + 1e-8)
        rate = RATE * jnp.minimum(1, STEPS / (5 * t))
        return (strategy + rate * scaled, mean, square), None

    begin = 0.5 + 0.3 * jax.random.normal(key, (KNOTS - 1,), float)
    zero = jnp.zeros_like(begin)
    steps = jnp.arange(1, STEPS + 1, dtype=begin.dtype)
    (strategy, _, _), _ = jax.lax.scan(step, (begin, zero, zero), steps)
    return strategy


def distance(key: Key, power: Array, bidders: int, price: str, auction: Auction) -> Array:
    """Return the root mean square distance of the learned bids from those at the equilibrium.

    With values distributed as v^power, first price: v r / (r + 1), r = power (bidders - 1); second
    price: v.
    """
    values = quantiles(power, 200)
    ratio = power * (bidders - 1)
    best = values * ratio / (ratio + 1) if price == "first" else values
    strategy = learn(key, power, bidders, price, auction)
    return jnp.sqrt(jnp.square(bids(strategy, values) - best).mean())


def measure(key: Key, auction: Auction) -> Mapping[str, Any]:
    """Return the distances of learned bids from the equilibrium of the auction itself."""
    power_key, key = jax.random.split(key)
    power = jax.random.uniform(power_key, (), float, 0.6, 1.8)
    return {
        f"{price} price, {bidders} bidders": distance(key, power, bidders, price, auction)
        for price, bidders in (("first", 2), ("first", 3), ("second", 2))
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of gradients through the smoothed auction."""
    return measure(key, solvers.smoothed_auction)


def hard(auction: Auction) -> Auction:
    """Allocate to the highest bid alone, so that only the payment has a gradient."""
    return lambda bid, temperature, price="first": auction(bid, 1e-4 * temperature, price)


def free(auction: Auction) -> Auction:
    """Take no payment."""

    def without_payment(bid, temperature, price="first"):
        allocation, payment = auction(bid, temperature, price)
        return allocation, 0 * payment

    return without_payment


CLAIM = Exact(
    paper=Paper(
        "Enabling First-Order Gradient-Based Learning for Equilibrium Computation in Markets",
        "Kohring, Pieroth and Bichler",
        2023,
        "2303.09500",
        "Auctions are discontinuous, so gradients through them mislead; smoothed auctions have "
        "equilibria nearby, and gradients through them find these with less variance and compute "
        "than zeroth-order ones.",
    ),
    claim="Simultaneous gradient ascent through the smoothed auction ends within 0.02 of the "
    "equilibrium bids of the real one, at first price for two and three bidders and at second "
    "price for two, whose values are distributed as random powers; without smoothing it does not.",
    left_out="Neural networks as bidders, sampled values, comparisons with evolution strategies, "
    "auctions of several items, and how the smoothing is chosen beforehand.",
    parts=("jaxrl/solvers/markets.py",),
    errors=errors,
    planted={
        "no smoothing": jax.jit(lambda key: measure(key, hard(solvers.smoothed_auction))),
        "no payment": jax.jit(lambda key: measure(key, free(solvers.smoothed_auction))),
    },
    tolerance=0.02,
    effect=0.05,
    seeds=10,
    minutes=5.0,
    mutations=(Mutation("no smoothing", "jaxrl.solvers:smoothed_auction", hard),),
    notes="Errors are root mean square distances of bids for values on [0, 1], at a temperature of "
    "0.02. Expectations are sums over quantiles, so nothing is sampled.",
)
