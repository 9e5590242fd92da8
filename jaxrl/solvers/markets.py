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
    """Sealed-bid auction of one item with a softmax winner, so that gradients reach the bids.

    allocation_i = softmax(bid / temperature)_i, payment_i = allocation_i * price_i

    Args:
      bid: [..., N], one for each bidder.
      temperature: positive; toward 0 the highest bid wins, and bids no longer have a gradient.
      price: "first": one's own bid; "second": the highest of the others' (0 without others).
    Returns: allocation and payment, each [..., N]; a bidder's gain is value * allocation - payment.
    Gradients: none are stopped.
    Source: Kohring et al., 2023, "Enabling first-order gradient-based learning for equilibrium
      computation in markets".
    Example: `solvers.smoothed_auction(bid, temperature=0.1)`
    """
    allocation = jax.nn.softmax(bid / temperature)
    if price == "first":
        return allocation, allocation * bid
    if price != "second":
        raise ValueError(f"price must be 'first' or 'second', not {price!r}")
    if bid.shape[-1] < 2:
        return allocation, jnp.zeros_like(bid)
    own = jnp.eye(bid.shape[-1], dtype=bool)
    return allocation, allocation * jnp.where(own, -jnp.inf, bid[..., None, :]).max(-1)


def universal_portfolio(portfolio: Array, log_wealth: Array) -> Array:
    """Universal portfolio: a mixture of strategies weighted by the wealth each would have earned.

    sum_k softmax(log_wealth)_k portfolio_k

    Args:
      portfolio: [..., D, K], shares of D assets that each of K strategies holds next.
      log_wealth: [..., K], log-wealth that each strategy has made from one unit so far.
    Returns: [..., D]. Its wealth is the strategies' mean, so its growth approaches the best one's.
    Gradients: none are stopped.
    Source: Cover, 1991, "Universal portfolios" (for a finite set of strategies).
    Example: `solvers.universal_portfolio(portfolio, log_wealth)`
    """
    return (portfolio * jax.nn.softmax(log_wealth)[..., None, :]).sum(-1)
