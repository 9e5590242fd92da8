import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.losses.compiled import solvers
from tests.losses.contract import Case, contract

CASES = [
    *(
        Case(
            solvers.smoothed_auction,
            lambda rng, price=price: {
                "bid": rng.uniform(size=(4, 3)),
                "temperature": 0.2,
                "price": price,
            },
            gradient=("bid",),
            extremes=lambda rng: [
                {"bid": np.zeros((4, 3))},
                {"bid": np.array([[1e6, 0, 1]] * 4)},
                {"bid": np.ones((4, 1))},
            ],
            name=f"smoothed_auction_{price}",
        )
        for price in ("first", "second")
    ),
    Case(
        solvers.universal_portfolio,
        lambda rng: {"portfolio": rng.uniform(size=(2, 3)), "log_wealth": rng.normal(size=3)},
        gradient=("portfolio", "log_wealth"),
        extremes=lambda rng: [{"log_wealth": np.array([1e4, 0, -1e4])}],
    ),
]
test_contract = contract(CASES)


def test_a_cold_auction_is_the_real_one():
    bid = jnp.array([0.3, 0.9, 0.6])
    first = solvers.smoothed_auction(bid, 1e-3)
    second = solvers.smoothed_auction(bid, 1e-3, "second")
    np.testing.assert_allclose(first, [[0, 1, 0], [0, 0.9, 0]], atol=1e-6)
    np.testing.assert_allclose(second, [[0, 1, 0], [0, 0.6, 0]], atol=1e-6)
    with pytest.raises(ValueError, match="price must be"):
        solvers.smoothed_auction(bid, 1.0, "third")


def test_the_second_price_is_the_highest_of_the_others_even_where_it_is_negative():
    bid = jnp.array([[-0.3, -0.9, 0.6], [-0.3, -0.9, -0.6], [0.0, -1.0, -2.0]])
    allocation, payment = solvers.smoothed_auction(bid, 1.0, "second")
    price = [[0.6, 0.6, -0.3], [-0.6, -0.3, -0.3], [-1.0, 0.0, 0.0]]
    np.testing.assert_allclose(payment, allocation * jnp.array(price), rtol=1e-6)
    alone, nothing = solvers.smoothed_auction(jnp.array([-0.5]), 1.0, "second")
    assert alone == 1 and nothing == 0  # no other bids


def test_pathwise_gradients_of_a_smoothed_auction_find_the_equilibrium_bids():
    """First price, two bidders with uniform values and linear bids v * slope: bid half the value.

    Without smoothing the gradient only ever lowers the bids.
    """
    grid, others = ((jnp.arange(n) + 0.5) / n for n in (64, 63))  # no two values are equal
    mine, other = jnp.meshgrid(grid, others, indexing="ij")

    def gain(slope, rival, temperature):
        bids = jnp.stack([mine * slope, other * rival], -1)
        allocation, payment = solvers.smoothed_auction(bids, temperature)
        return (mine * allocation[..., 0] - payment[..., 0]).mean()

    gradient = jax.jit(jax.grad(gain))
    slope = jnp.array(0.8)
    for _ in range(200):
        slope = slope + 0.5 * gradient(slope, slope, 0.02)
    np.testing.assert_allclose(slope, 0.5, atol=0.03)
    assert gradient(slope, slope, 1e-6) < -0.1


def test_wealth_of_the_universal_portfolio_is_the_mean_of_its_strategies():
    """Cover's market: one asset is constant, the other alternately doubles and halves."""
    share = jnp.linspace(0, 1, 21)
    portfolio = jnp.stack([share, 1 - share])  # [asset, strategy]
    wealth, log_wealth = 1.0, jnp.zeros(21)
    for t in range(60):
        growth = jnp.array([1.0, 0.5 if t % 2 else 2.0])
        wealth = wealth * growth @ solvers.universal_portfolio(portfolio, log_wealth)
        log_wealth = log_wealth + jnp.log(growth @ portfolio)
    np.testing.assert_allclose(wealth, jnp.exp(log_wealth).mean(), rtol=1e-4)
    assert wealth > 5 and log_wealth[0] == log_wealth[-1] == 0  # neither asset alone gains anything
