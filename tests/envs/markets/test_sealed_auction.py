"""Sealed-bid auctions: who wins and pays, and what the equilibrium earns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.envs import check_environment, make
from jaxrl.envs.markets.sealed_auction import State
from jaxrl.exact import auctions


def settle(env, value, bid, reserve=0.0, keys=1):
    """Return the time steps [keys] after bids."""
    params = dataclasses.replace(env.params, reserve=reserve)
    state = State(jnp.asarray(value), jnp.full(len(value), -1.0))
    action = {name: jnp.asarray(x) for name, x in zip(env.agents, bid, strict=True)}
    step = jax.jit(jax.vmap(lambda key: env.step(key, state, action, params)[1]))
    return step(jax.random.split(random.key(0), keys))


@pytest.mark.parametrize(
    ("price", "bid", "reserve", "reward", "revenue", "efficient"),
    [
        ("first", (0.2, 0.5, 0.4), 0.0, (0, 0.3, 0), 0.5, 0),
        ("second", (0.2, 0.5, 0.4), 0.0, (0, 0.4, 0), 0.4, 0),
        ("second", (0.2, 0.5, 0.4), 0.45, (0, 0.35, 0), 0.45, 0),
        ("first", (0.6, 0.5, 0.4), 0.55, (0.3, 0, 0), 0.6, 1),
        ("first", (0.2, 0.5, 0.4), 0.55, (0, 0, 0), 0.0, 0),
        ("second", (0.2, 1.5, 0.4), 0.0, (0, 0.4, 0), 0.4, 0),
    ],
)
def test_who_wins_and_pays(price, bid, reserve, reward, revenue, efficient):
    env = make("sealed_auction", bidders=3, price=price)
    t = settle(env, [0.9, 0.8, 0.1], [[x] for x in bid], reserve)
    np.testing.assert_allclose(t.reward[0], reward, atol=1e-6)
    assert float(t.metrics["revenue"][0]) == pytest.approx(revenue)
    assert float(t.metrics["efficient"][0]) == efficient
    assert bool(t.terminated[0])


def test_equal_bids_win_alike_and_each_sees_its_own_value():
    env = make("sealed_auction", bidders=3, actions="discrete", levels=11)
    t = settle(env, [0.9, 0.8, 0.7], [5, 2, 5], keys=4000)
    won = np.asarray(t.reward) != 0
    assert (won.sum(1) == 1).all() and not won[:, 1].any()
    assert won[:, 0].mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(
        np.asarray(t.reward).max(1), np.where(won[:, 0], 0.4, 0.2), atol=1e-6
    )
    for i, name in enumerate(env.agents):
        np.testing.assert_allclose(t.observation[name][0], [[0.9, 0.8, 0.7][i]])
    np.testing.assert_allclose(t.privileged["state"][0], [0.9, 0.8, 0.7])


@pytest.mark.parametrize("price", ["first", "second"])
@pytest.mark.parametrize(("bidders", "power", "reserve"), [(2, 1.0, 0.0), (3, 2.0, 0.6)])
def test_what_the_equilibrium_earns(price, bidders, power, reserve):
    env = make("sealed_auction", bidders=bidders, price=price, power=power, reserve=reserve)

    def play(key):
        state, _ = env.reset(key, env.params)
        return env.step(key, state, env.expert(state, env.params), env.params)[1]

    t = jax.jit(jax.vmap(play))(jax.random.split(random.key(1), 40_000))
    value = np.asarray(t.privileged["state"])
    assert (value**power).mean() == pytest.approx(0.5, abs=0.01)
    revenue = auctions.equilibrium_revenue(bidders, power=power, reserve=reserve)
    error = 4 * float(np.asarray(t.metrics["revenue"]).std()) / 200
    assert float(t.metrics["revenue"].mean()) == pytest.approx(float(revenue), abs=error)
    gains = auctions.equilibrium_gain(t.privileged["state"], bidders, power=power, reserve=reserve)
    assert float(t.reward.mean()) == pytest.approx(float(gains.mean()), abs=0.004)
    sold = (value.max(1) >= reserve).mean()
    assert float(t.metrics["efficient"].mean()) == pytest.approx(sold, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{}, {"bidders": 3, "price": "second", "actions": "discrete", "levels": 5}],
)
def test_the_rules_of_all_environments(settings):
    check_environment(make("sealed_auction", **settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bidders": 1}, "bidders"), ({"price": "third"}, "price"), ({"levels": 1}, "levels")],
)
def test_other_auctions_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make("sealed_auction", **settings)
