"""Prices as texts, for a trader who says whether to buy, to hold or to sell."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.language.conversing import Grade, Reply, Utterance, conversing
from jaxrl.envs.markets import account

LETTERS = (*"-+cs", *"SHB", "$", ".")
FELL, ROSE, CASH, STOCK, SELL, HOLD, BUY, DAY, END = range(len(LETTERS))


@struct
class Params:
    """Prices and costs."""

    edge: float  # probability of a rise in good times, and of a fall in bad ones, above 1/2
    switch: float  # probability in a step that times change
    move: float  # log-return of a rise, and minus that of a fall
    cost: float  # cost of a trade, as a share of what is traded


@struct
class Memory:
    """Market and account."""

    good: Array  # bool: whether times are good
    moves: Array  # int32 [W]: the last moves, FELL or ROSE, the newest last
    holds: Array  # bool: whether the wealth is in the stock
    market: Array  # float32: log-return of the price since the beginning
    ledger: account.Ledger


@functools.cache
def price_text(window: int = 8, steps: int = 16) -> Environment:
    """Trade one stock for `steps` (T, 16) days, each told as a text of its own.

    A day is told in full: `$++-+--++c`, the last `window` (W, 8) moves of the price, from the
    oldest, `+` for a rise and `-` for a fall, and what the wealth is in, `c`ash or the `s`tock.
    Then one token is said, `B`uy, `H`old or `S`ell: all of the wealth is put into the stock, or
    stays, or is taken out of it; `B` is legal in cash alone and `S` in the stock. A new reader
    begins every day, who sees this day's text and nothing before (`tokens["restart"]`).
    Observation: the last token, 0 .. 8 (`-`, `+`, `c`, `s`, `S`, `H`, `B`, `$`, `.`). Action: the
    next one.

    The price rises or falls by the factor exp(`move`) (0.02). In good times it rises with the
    probability 1/2 + `edge` (0.3), in bad ones it falls with this probability; times change with
    the probability `switch` (0.1) in a step, and nothing shows them but the moves. Reward: the
    log-return of the wealth in a day, after the `cost` (0.002) of a trade. Metrics at the end:
    `market`, the log-return of the price, and `sharpe`, `turnover` and `drawdown` of
    `jaxrl.envs.markets.account`. The expert follows the trend: it holds the stock where two of the
    last three moves were rises.

    Made for Xiong et al., 2025, "FLAG-Trader: fusion LLM-agent with gradient-based reinforcement
    learning for financial trading", arXiv:2502.11433, where a language model reads prices, news and
    its account. Raises `UserError` unless 3 <= W <= 64 and 1 <= T <= 256.
    """
    if not 3 <= window <= 64 or not 1 <= steps <= 256:
        raise UserError(
            f"window is {window} and steps {steps}; there must be 3 to 64 moves, and 1 to 256 days."
        )

    def page(memory: Memory) -> Array:
        first = jnp.full((1,), DAY)
        holds = jnp.where(memory.holds, STOCK, CASH)[None]
        return jnp.concatenate([first, memory.moves, holds]).astype(jnp.int32)

    def advance(key: Key, good: Array, params: Params) -> tuple[Array, Array]:
        """Return the next move, and whether times are good after it."""
        move_key, switch_key = jax.random.split(key)
        chance = 0.5 + jnp.where(good, 1, -1) * params.edge
        rises = jax.random.bernoulli(move_key, chance)
        return jnp.where(rises, ROSE, FELL), good ^ jax.random.bernoulli(switch_key, params.switch)

    def begin(key: Key, params: Params) -> tuple[Array, Memory]:
        key, first = jax.random.split(key)

        def follow(good: Array, key: Key) -> tuple[Array, Array]:
            move, good = advance(key, good, params)
            return good, move

        good, moves = jax.lax.scan(
            follow, jax.random.bernoulli(first), jax.random.split(key, window)
        )
        zero = jnp.zeros(())
        memory = Memory(
            good, moves.astype(jnp.int32), jnp.zeros((), bool), zero, account.open_ledger()
        )
        return page(memory), memory

    def respond(key: Key, memory: Memory, said: Utterance, params: Params) -> Reply:
        word = said.tokens[0]
        holds = jnp.where(word == BUY, True, jnp.where(word == SELL, False, memory.holds))
        turnover = (holds ^ memory.holds).astype(jnp.float32)
        move, good = advance(key, memory.good, params)
        change = jnp.where(move == ROSE, params.move, -params.move)
        gain = jnp.where(holds, change, 0.0) + jnp.log1p(-params.cost * turnover)
        memory = Memory(
            good,
            jnp.append(memory.moves[1:], move).astype(jnp.int32),
            holds,
            memory.market + change,
            account.record(memory.ledger, gain, turnover),
        )
        metrics = account.metrics(memory.ledger) | {"market": memory.market}
        return Reply(
            page(memory),
            memory,
            Grade(gain, metrics=metrics),
            done=said.turn == steps - 1,
            count=window + 2,
            restart=True,
        )

    def legal(memory: Memory, turn: Array, place: Array) -> Array:
        word = jnp.arange(len(LETTERS))
        trades = jnp.where(memory.holds, word == SELL, word == BUY)
        return trades | (word == HOLD)

    def solve(memory: Memory, turn: Array, params: Params) -> Array:
        wanted = (memory.moves[-3:] == ROSE).sum() >= 2
        word = jnp.where(wanted, jnp.where(memory.holds, HOLD, BUY), HOLD)
        return jnp.where(~wanted & memory.holds, SELL, word)[None]

    return conversing(
        "price_text",
        LETTERS,
        (1,) * steps,
        begin=begin,
        respond=respond,
        solve=solve,
        legal=legal,
        params=Params(edge=0.3, switch=0.1, move=0.02, cost=0.002),
    )
