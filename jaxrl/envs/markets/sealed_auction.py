"""A sealed-bid auction of one item, whose bidders know their own values alone.

`bidders` (N, 2) draw values from [0, 1], independently, of which a value up to v has the
probability v^power. All bid at the same time. The highest bid wins, if it is at least `reserve`; of
equal ones a drawn one does. The winner pays its own bid (`price` "first"), or the highest of the
others' and `reserve` ("second"). One step, and the episode ends.

Observation: a bidder's own value, float32 [1]; all values are in privileged `state`, [N]. Actions:
bids from 0 to 1, float32 [1], or with `actions` "discrete" one of `levels` (21) equally far apart.
Rewards: value less price for the winner, 0 for others. Metrics: `revenue`, what the seller is paid,
and `efficient`, whether the item went to the highest value. The expert bids as in the symmetric
equilibrium (`equilibrium_bid`), rounded where bids are discrete; `exact.auctions` has gains,
revenues and best responses.

Source: Krishna, 2009, "Auction theory", chapter 2.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least, one_of

PRICES = ("first", "second")
ACTIONS = ("continuous", "discrete")


@struct
class Params:
    """Parameters of the auction."""

    power: float = 1.0  # of the distribution of values, positive
    reserve: float = 0.0  # lowest bid that can win, from 0 to below 1


@struct
class State:
    value: Array  # float32 [N]
    bid: Array  # float32 [N]; -1 before the bids


def equilibrium_bid(
    value: Array, bidders: int, *, power: Array | float, reserve: Array | float, price: str
) -> Array:
    """Return the bid in the symmetric equilibrium, [...]; below the reserve the value itself, which
    loses.

    First price: v - (v^(k+1) - reserve^(k+1)) / ((k+1) v^k), k = power (bidders - 1). Second price:
    the value v, whatever others do. Source: Krishna, 2009, propositions 2.1 and 2.2, and section
    2.5 with a reserve, for values with the distribution v^power.
    """
    if price == "second":
        return value
    k = power * (bidders - 1)
    positive = jnp.maximum(value, 1e-6)
    ratio = jnp.asarray(reserve) / positive
    shaded = value * (1 - (1 - ratio ** (k + 1)) / (k + 1))
    return jnp.where(value >= reserve, shaded, value)


@functools.cache
def sealed_auction(
    bidders: int = 2, price: str = "first", actions: str = "continuous", levels: int = 21
) -> Environment:
    """An auction with at least two `bidders`. `price`: "first" or "second". `actions`: "continuous"
    or "discrete", which has at least two `levels`."""
    name = "sealed_auction"
    at_least(name, "bidders", bidders, 2)
    at_least(name, "levels", levels, 2)
    one_of(name, "price", price, PRICES)
    one_of(name, "actions", actions, ACTIONS)
    discrete = actions == "discrete"
    names = tuple(f"bidder_{i}" for i in range(bidders))

    def channels(state: State, sold: Array, pay: Array, best: Array) -> tuple[dict, dict]:
        seen = {bidder: state.value[i : i + 1] for i, bidder in enumerate(names)}
        metrics = {
            "revenue": jnp.where(sold, pay, 0.0),
            "efficient": (sold & best).astype(jnp.float32),
        }
        return seen, {"privileged": {"state": state.value}, "metrics": metrics}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        value = jax.random.uniform(key, (bidders,)) ** (1 / params.power)
        state = State(value, jnp.full(bidders, -1.0))
        no = jnp.zeros((), bool)
        seen, more = channels(state, no, jnp.zeros(()), no)
        return state, timesteps.first(seen, jnp.zeros(bidders), **more)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        if discrete:
            bid = jnp.stack([action[bidder] for bidder in names]) / (levels - 1)
        else:
            bid = jnp.clip(jnp.stack([action[bidder][0] for bidder in names]), 0.0, 1.0)
        bid = bid.astype(jnp.float32)
        highest = bid == bid.max()
        winner = jax.random.categorical(key, jnp.where(highest, 0.0, -jnp.inf))
        wins = jnp.arange(bidders) == winner
        sold = bid[winner] >= params.reserve
        pay = bid[winner]
        if price == "second":
            pay = jnp.maximum(jnp.where(wins, -jnp.inf, bid).max(), params.reserve)
        reward = jnp.where(wins & sold, state.value - pay, 0.0)
        state = State(state.value, bid)
        seen, more = channels(state, sold, pay, winner == state.value.argmax())
        return state, timesteps.following(seen, reward, jnp.ones((), bool), **more)

    def expert(state: State, params: Params) -> dict[str, Array]:
        bid = equilibrium_bid(
            state.value, bidders, power=params.power, reserve=params.reserve, price=price
        )
        if discrete:
            bid = jnp.round(bid * (levels - 1)).astype(jnp.int32)
        return {bidder: bid[i] if discrete else bid[i : i + 1] for i, bidder in enumerate(names)}

    unit = Box(0.0, 1.0, (1,))
    return Environment(
        name=name,
        reset=jax.jit(reset, inline=True),
        step=jax.jit(step, inline=True),
        params=Params(),
        observation_space=dict.fromkeys(names, unit),
        action_space=dict.fromkeys(names, Discrete(levels) if discrete else unit),
        max_steps=1,
        scores={"revenue": "revenue", "efficient": "efficient"},
        render=_draw,
        expert=jax.jit(expert, inline=True),
        agents=names,
    )


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw the values, the bids within them, and the reserve as a line."""
    canvas = drawing.Canvas(320, 240, scale=1.0, origin=(20, 220))
    width = 280 / len(state.value)
    rows = zip(np.asarray(state.value), np.asarray(state.bid), strict=True)

    def bar(left: float, wide: float, low: float, high: float, color: tuple) -> None:
        corners = [(left, low), (left + wide, low), (left + wide, high), (left, high)]
        canvas.polygon(corners, color)

    for i, (value, bid) in enumerate(rows):
        bar(width * i + 4, width - 8, 0.0, 200 * float(value) + 1, drawing.SHADE)
        bar(width * i + 12, width - 24, 0.0, 200 * max(float(bid), 0.0) + 1, drawing.BLUE)
    low = 200 * float(params.reserve)
    bar(0.0, 280.0, low, low + 2, drawing.ORANGE)
    return canvas.frame()
