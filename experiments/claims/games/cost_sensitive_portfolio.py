"""Cost-sensitive portfolios on trees of prices, beside dynamic programming over what is held."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.algorithms.games import cost_sensitive_portfolio as portfolio
from jaxrl.core.types import Array, Key, TimeStep, Transition
from jaxrl.kit import Minibatch

STEPS, GRID = 5, 801  # of an episode, and shares of dynamic programming
PATHS = 2**STEPS
COINS = np.array([[(path >> (STEPS - 1 - t)) & 1 for path in range(PATHS)] for t in range(STEPS)])
# Number of the history before each step, in a table of all of them.
NODE = np.array([[(1 << t) - 1 + (path >> (STEPS - t)) for path in range(PATHS)]
                 for t in range(STEPS)])  # fmt: skip
ITERATIONS, RATE = 4000, 0.03
RISKS, COSTS = (0.0, 0.5, 2.0), (0.0, 0.005, 0.02)


def draw(key: Key) -> tuple[Array, Array]:
    """Draw a market: log-returns of the stock [STEPS, PATHS], of which a part persists, and the
    cost of trades."""
    drift, volatility, momentum, cost = jax.random.uniform(key, (4,), float)
    drift, volatility = 0.04 * drift - 0.02, 0.3 + 0.2 * volatility
    momentum, cost = 0.1 + 0.1 * momentum, 0.01 + 0.02 * cost

    def follow(last: Array, coin: Array) -> tuple[Array, Array]:
        new = drift + momentum * (last - drift) + volatility * (2 * coin - 1)
        return new, new

    return jax.lax.scan(follow, jnp.full(PATHS, drift), jnp.asarray(COINS, float))[1], cost


def best_reward(returns: Array, cost: Array, aversion: Array) -> Array:
    """Return the largest expected log-growth of a step less `aversion` times its turnover, by
    dynamic programming.

    The states are the price's history and the share of the stock that is held, on a grid, between
    whose points values are linear.
    """
    share = jnp.linspace(0.0, 1.0, GRID, dtype=float)
    turnover = jnp.abs(share[:, None] - share)  # [held, chosen]
    trade = jnp.log1p(-cost * turnover) - aversion * turnover
    value = jnp.zeros((PATHS, GRID))
    for t in reversed(range(STEPS)):
        every = 1 << (STEPS - 1 - t)  # paths that a node after the step has
        relative = jnp.exp(returns[t, ::every])[:, None]  # [2^(t+1), 1]
        growth = 1 - share + share * relative
        after = jax.vmap(lambda held, v: jnp.interp(held, share, v))(
            share * relative / growth, value
        )
        chosen = (jnp.log(growth) + after).reshape(-1, 2, GRID).mean(1)
        value = (trade + chosen[:, None]).max(-1)
    return value[0, 0] / STEPS


def market(returns: Array, cost: Array, cash: Array | float) -> Minibatch:
    """Return all paths as recorded episodes whose account begins with this share of cash."""
    shape, no = (STEPS, PATHS), jnp.zeros((STEPS, PATHS), bool)
    zero = jnp.zeros(shape)
    held = jnp.stack([cash + zero, 1 - cash + zero], -1)
    seen = {"held": held, "cost": jnp.broadcast_to(cost, (*shape, 1))}
    before = TimeStep(seen, zero, no, no, no)
    after = TimeStep({"returns": returns[..., None, None]}, zero, no, no, no)
    x: Any = Transition(before, held, after, (), {})
    return Minibatch(x, jnp.ones(shape, bool))


def climb(x: Minibatch, risk: Array, cost: Array) -> Array:
    """Return the shares [STEPS, PATHS, 2] that projected Adam on the loss learns, one for each
    history of the price, from half of the wealth."""
    hyper = SimpleNamespace(risk_aversion=risk, cost_aversion=cost)

    def loss(table: Array) -> Array:
        net: Any = SimpleNamespace(policy=lambda timestep: shares(table), hyper=hyper)
        output: Any = portfolio.portfolio_loss(net, x)
        return output.value.mean()

    def step(carry: tuple[Array, ...], t: Array) -> tuple[tuple[Array, ...], None]:
        table, mean, square = carry
        slope = jax.grad(loss)(table)
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
        scaled = (mean / (1 - 0.9**t)) / (jnp.sqrt(square / (1 - 0.99**t)) + 1e-8)
        rate = RATE * jnp.exp(-8 * t / ITERATIONS)
        return (jnp.clip(table - rate * scaled, 0.0, 1.0), mean, square), None

    begin = jnp.full(PATHS - 1, 0.5, float)
    zero = jnp.zeros_like(begin)
    steps = jnp.arange(1.0, ITERATIONS + 1)
    return shares(jax.lax.scan(step, (begin, zero, zero), steps)[0][0])


def shares(table: Array) -> Array:
    """Return the shares of cash and of the stock, [STEPS, PATHS, 2], of a table of histories."""
    stock = table[NODE]
    return jnp.stack([1 - stock, stock], -1)


def account(x: Minibatch, weights: Array) -> tuple[Array, Array, Array]:
    """Return the mean growth of a step, its variance within episodes, and its turnover."""
    log_return, held = portfolio.follow_account(x.x, weights)
    turnover = jnp.abs(weights - held)[..., 1:].sum(-1)
    return log_return.mean(), log_return.var(0).mean(), turnover.mean()


@jax.jit
def measure(key: Key, seen: Array | float, begins: Array | float) -> Mapping[str, Any]:
    """Return the errors of what the loss learns.

    seen: share of the cost that the loss knows. begins: share of cash that it believes to have at
    first.
    """
    returns, cost = draw(key)
    x, learned_from = market(returns, cost, 1.0), market(returns, seen * cost, begins)

    def learn(risk: Array, aversion: Array) -> tuple[Array, Array, Array]:
        return account(x, climb(learned_from, risk, aversion))

    risks, costs = jnp.asarray(RISKS, float), jnp.asarray(COSTS, float)
    growth, variance, turnover = jax.vmap(learn)(
        jnp.append(risks, jnp.zeros(3)), jnp.append(jnp.zeros(3), costs)
    )
    best = jax.vmap(lambda aversion: best_reward(returns, cost, aversion))(costs)
    reached = growth[3:] - costs * turnover[3:]
    bound = jnp.append(risks * variance[0], costs * turnover[0])
    rise = lambda x: jnp.maximum(jnp.diff(x), 0).max()
    return {
        "reward beside the best": jnp.abs(reached - best).max(),
        "growth lost beyond the bound": jnp.maximum(best[0] - growth - bound, 0).max(),
        "variance that rises with its weight": rise(variance[:3]),
        "turnover that rises with its weight": rise(turnover[3:]),
    }


def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of the loss."""
    return measure(key, 1.0, 1.0)


def forget_holdings(move: Any) -> Any:
    """Stop the gradient of what is held after a step."""

    def wrong(weights: Array, relatives: Array) -> tuple[Array, Array]:
        growth, held = move(weights, relatives)
        return growth, jax.lax.stop_gradient(held)

    return wrong


CLAIM = Exact(
    paper=Paper(
        "Cost-Sensitive Portfolio Selection via Deep Reinforcement Learning",
        "Zhang et al.",
        2020,
        "2003.03051",
        "A network of two streams that climbs log-returns less penalties for variance and turnover "
        "comes near the optimal growth rate, and earns more at lower costs in recorded markets.",
    ),
    claim="On trees of prices, climbing the reward through the account reaches its best value "
    "under costs, and loses no more growth than the bound.",
    left_out="The network of two streams (here shares are a table of histories), recorded prices, "
    "several stocks, comparisons with other methods, and the theorem's own constants: the bound "
    "here is each weight times the variance or the turnover of the policy without penalties.",
    parts=(
        "jaxrl/algorithms/games/cost_sensitive_portfolio.py",
        "jaxrl/losses/distributions/risk.py",
        "jaxrl/envs/markets/account.py",
    ),
    errors=errors,
    planted={
        "costs are not seen": lambda key: measure(key, 0.0, 1.0),
        "half of the costs is seen": lambda key: measure(key, 0.5, 1.0),
        "the account is believed to begin in the stock": lambda key: measure(key, 1.0, 0.0),
    },
    tolerance=1e-6,
    effect=2e-5,
    seeds=10,
    minutes=3.0,
    mutations=(
        Mutation(
            "no gradient through what is held",
            "jaxrl.envs.markets.account:move_prices",
            forget_holdings,
        ),
        Mutation(
            "trades are compared with the shares of the step before",
            "jaxrl.losses:cost_sensitive_reward",
            lambda reward: (
                lambda r, weights, held, *more: reward(
                    r, weights, jnp.concatenate([held[:1], weights[:-1]]), *more
                )
            ),
        ),
    ),
    notes="The log-return of the one stock is a drift, a part of the last one and a coin; all 32 "
    "paths of 5 steps are enumerated, so nothing is sampled. The best reward without a penalty for "
    "variance is found by dynamic programming over histories and 801 shares that are held. Weights "
    "of the variance are 0, 0.5 and 2, of the turnover 0, 0.005 and 0.02; of two weights the "
    "larger must not end with more of what it penalizes.",
)
