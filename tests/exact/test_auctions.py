"""Auctions: closed forms against integrals, gains against enumeration, and learners who find the
equilibrium."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from jaxrl.core.errors import UserError
from jaxrl.envs.markets.sealed_auction import equilibrium_bid
from jaxrl.exact import auctions

CASES = [(2, 1.0, 0.0), (3, 1.0, 0.4), (2, 0.7, 0.25), (4, 2.0, 0.5)]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("bidders", "power", "reserve"), CASES)
def test_equilibrium_against_integrals(bidders, power, reserve):
    cdf = lambda x: x**power
    others = lambda x: cdf(x) ** (bidders - 1)
    values = np.linspace(reserve + 0.02, 1, 9)
    settings = {"power": power, "reserve": reserve}
    bids = equilibrium_bid(jnp.asarray(values), bidders, **settings, price="first")
    gains = auctions.equilibrium_gain(jnp.asarray(values), bidders, **settings)
    for value, bid, gain in zip(values, bids, gains, strict=True):
        area = integrate.quad(others, reserve, value)[0]
        assert float(gain) == pytest.approx(area, abs=1e-7)
        assert float(bid) == pytest.approx(value - area / others(value), abs=1e-6)
    # Revenue: bids of the winner, whose value has the density of the highest of all.
    density = lambda x: bidders * power * x ** (power * bidders - 1)
    paid = lambda x: float(equilibrium_bid(jnp.asarray(x), bidders, **settings, price="first"))
    expected = integrate.quad(lambda x: paid(x) * density(x), reserve, 1)[0]
    found = auctions.equilibrium_revenue(bidders, **settings)
    assert float(found) == pytest.approx(expected, abs=1e-6)
    low = jnp.asarray([reserve / 2])
    np.testing.assert_allclose(equilibrium_bid(low, bidders, **settings, price="first"), low)
    assert not auctions.equilibrium_gain(low, bidders, **settings).any()


def test_known_special_cases():
    bid = equilibrium_bid(jnp.asarray(0.6), 3, power=1.0, reserve=0.0, price="first")
    assert float(bid) == pytest.approx(0.4)  # v (N - 1) / N
    assert float(auctions.equilibrium_revenue(2, power=1.0, reserve=0.0)) == pytest.approx(1 / 3)
    assert float(auctions.equilibrium_revenue(2, power=1.0, reserve=0.5)) == pytest.approx(5 / 12)
    assert float(auctions.best_reserve(1.0)) == pytest.approx(0.5)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.5])
def test_no_reserve_has_more_revenue_than_the_best(power):
    best = auctions.best_reserve(power)
    grid = jnp.linspace(0, 0.999, 400)
    for bidders in (2, 5):
        revenue = lambda r, n=bidders: auctions.equilibrium_revenue(n, power=power, reserve=r)
        assert float(revenue(best)) >= float(revenue(grid).max()) - 1e-12
        assert float(revenue(best)) > float(revenue(best + 0.1))


@pytest.mark.parametrize(
    ("price", "bidders", "reserve"),
    [("first", 2, 0.0), ("first", 4, 0.3), ("second", 2, 0.0), ("second", 3, 0.3)],
)
def test_gains_against_all_bids_of_rivals(price, bidders, reserve):
    rng = np.random.default_rng(0)
    bid = np.array([0.0, 0.2, 0.3, 0.7])
    chances, value = rng.dirichlet(np.ones(4)), np.array([0.1, 0.65, 1.0])
    expected = np.zeros((3, 4))
    for i, own in enumerate(bid):
        for rivals in itertools.product(range(4), repeat=bidders - 1):
            theirs, weight = bid[list(rivals)], chances[list(rivals)].prod()
            if own < max(theirs.max(), reserve):
                continue
            pay = own if price == "first" else max(theirs.max(), reserve)
            share = 1 / (1 + (theirs == own).sum())
            expected[:, i] += weight * share * (value - pay)
    found = auctions.expected_gains(
        *map(jnp.asarray, (value, bid, chances)), bidders, reserve=reserve, price=price
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("bidders", "power", "reserve"), CASES)
@pytest.mark.parametrize("price", ["first", "second"])
def test_the_equilibrium_is_a_best_response_to_itself(bidders, power, reserve, price):
    settings = {"power": power, "reserve": reserve, "price": price}
    fine = auctions.value_quantiles(20_000, power)
    bids = np.asarray(equilibrium_bid(fine, bidders, **settings))
    grid = np.linspace(0, 1, 1001)
    chances = np.bincount(np.rint(bids * 1000).astype(int), minlength=1001) / len(bids)
    value = np.linspace(reserve + 0.05, 1, 12)
    gains = np.asarray(
        auctions.expected_gains(
            *map(jnp.asarray, (value, grid, chances)), bidders, reserve=reserve, price=price
        )
    )
    own = np.asarray(equilibrium_bid(jnp.asarray(value), bidders, **settings))
    at_own = np.array([np.interp(b, grid, row) for b, row in zip(own, gains, strict=True)])
    np.testing.assert_allclose(gains.max(-1), at_own, atol=2e-3)
    area = auctions.equilibrium_gain(jnp.asarray(value), bidders, power=power, reserve=reserve)
    np.testing.assert_allclose(at_own, area, atol=4e-3)
    # Bids far away gain less.
    for shift in (-0.2, 0.2):
        moved = np.clip(own + shift, 0, 1)
        there = np.array([np.interp(b, grid, row) for b, row in zip(moved, gains, strict=True)])
        assert (there[-6:] < at_own[-6:] + 2e-3).all() and there.sum() < at_own.sum() - 0.02


@pytest.mark.parametrize(("bidders", "power"), [(2, 1.0), (3, 1.0), (2, 2.0)])
def test_independent_learners_find_the_bids_of_the_equilibrium(bidders, power):
    value = auctions.value_quantiles(60, power)
    weight, bid = jnp.full(60, 1 / 60), jnp.linspace(0, 1, 61)
    learn = jax.jit(auctions.fictitious_bidders, static_argnums=3, static_argnames=("rounds",))
    strategy, gap = learn(value, weight, bid, bidders, rounds=3000)
    expected = equilibrium_bid(value, bidders, power=power, reserve=0.0, price="first")
    found = strategy @ bid
    assert float(gap) < 2e-3
    top = slice(20, None)  # low values hardly ever win, so their bids matter little
    assert float(jnp.abs(found - expected)[top].mean()) < 0.02
    assert float(jnp.abs(found - value)[top].mean()) > 0.1  # where they began


def test_an_unknown_price_is_refused():
    with pytest.raises(UserError, match="third"):
        auctions.expected_gains(*[jnp.ones(2)] * 3, 2, price="third")
