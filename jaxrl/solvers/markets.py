"""Auctions and portfolios."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "smoothed_auction",
    "universal_portfolio",
]


def smoothed_auction(
    bid: Array, temperature: Array | float, price: str = "first"
) -> tuple[Array, Array]:
    """Sealed-bid auction of one item whose winner is a softmax, so that gradients reach the bids.

    allocation_i = softmax(bid / temperature)_i, payment_i = allocation_i * price_i

    Args:
      bid: [..., N], one for each bidder.
      temperature: positive; toward 0 the highest bid wins, and bids have no gradient any more.
      price: "first": one's own bid; "second": the highest of the others' (0 without others).
    Returns: allocation and payment, each [..., N]; a bidder's gain is value * allocation - payment.
    Gradients: none is stopped.
    Source: Kohring et al., 2023, "Enabling first-order gradient-based learning for equilibrium
      computation in markets".
    Example: `solvers.smoothed_auction(bid, temperature=0.1)`
    """
    allocation = jax.nn.softmax(bid / temperature)
    if price == "first":
        return allocation, allocation * bid
    if price != "second":
        raise ValueError(f"price is 'first' or 'second', not {price!r}")
    if bid.shape[-1] < 2:
        return allocation, jnp.zeros_like(bid)
    own = jnp.eye(bid.shape[-1], dtype=bool)
    return allocation, allocation * jnp.where(own, -jnp.inf, bid[..., None, :]).max(-1)


def universal_portfolio(portfolio: Array, log_wealth: Array) -> Array:
    """Mixture of investment strategies by the wealth that each would have made.

    sum_k softmax(log_wealth)_k portfolio_k

    Args:
      portfolio: [..., D, K], shares of D assets that each of K strategies holds next.
      log_wealth: [..., K], logarithm of what each strategy made of one unit so far.
    Returns: [..., D]. Its wealth is the strategies' mean, so its growth nears the best one's.
    Gradients: none is stopped.
    Source: Cover, 1991, "Universal portfolios" (for a finite set of strategies).
    Example: `solvers.universal_portfolio(portfolio, log_wealth)`
    """
    return (portfolio * jax.nn.softmax(log_wealth)[..., None, :]).sum(-1)
