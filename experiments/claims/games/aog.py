"""Accelerated optimistic gradient in random monotone games: the last iterate's rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl import losses, solvers
from jaxrl.core.types import Array, Key
from jaxrl.exact.races import cyclic, polymatrix, race

ACTIONS, RATE, STEPS = 3, 0.05, 10_000
Move = Callable[..., Array]  # like `solvers.aog`


def growth(key: Key, payoff: Array, move: Move, half_step: bool = True) -> Array:
    """Return by how much t times NashConv still grows: its maximum over the last nine tenths of the
    steps, relative to that of the first tenth, above 1.5."""
    players = len(payoff)
    begin = jax.random.dirichlet(key, jnp.ones(ACTIONS, float), (players,), float)
    gradient = lambda policy: -losses.deviation_payoff(payoff, policy)

    def step(game, iterate, t):
        policy, half = iterate
        half = move(policy, begin, gradient(half), t, RATE) if half_step else policy
        return move(policy, begin, gradient(half), t, RATE), half

    policies, _ = race(step, payoff, (begin, begin), STEPS)
    gaps = jax.vmap(lambda policy: solvers.nash_conv(payoff, policy))(policies)
    scaled = gaps * jnp.arange(1, STEPS + 1)
    tenth = STEPS // 10
    return jnp.maximum(scaled[tenth:].max() / scaled[:tenth].max() - 1.5, 0)


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of AOG."""
    game_key, other_key, begin_key = jax.random.split(key, 3)
    return {
        "growth in games like rock, paper, scissors": growth(
            begin_key, cyclic(game_key), solvers.aog
        ),
        "growth in games of three": growth(
            begin_key, polymatrix(other_key, 3, ACTIONS), solvers.aog
        ),
    }


def without_anchor(aog: Move) -> Move:
    """Take the step without the pull to the start."""
    return lambda policy, anchor, *rest: aog(policy, policy, *rest)


def constant_anchor(aog: Move) -> Move:
    """Pull to the start as strongly in every step."""
    return lambda policy, anchor, gradient, step, rate: aog(policy, anchor, gradient, 99, rate)


def errors_of(move: Move, half_step: bool = True) -> Callable[[Key], Mapping[str, Any]]:
    """Return the errors of a wrong step."""

    @jax.jit
    def wrong(key):
        game_key, _, begin_key = jax.random.split(key, 3)
        found = growth(begin_key, cyclic(game_key), move, half_step)
        return {"growth in games like rock, paper, scissors": found}

    return wrong


CLAIM = Exact(
    paper=Paper(
        "Doubly Optimal No-Regret Learning in Monotone Games",
        "Cai and Zheng",
        2023,
        "2301.13120",
        "The accelerated optimistic gradient has optimal regret, and its last iterate approaches "
        "the equilibria of smooth monotone games at the optimal rate 1 / T.",
    ),
    claim="In random games like rock, paper, scissors, and zero-sum games of three players in "
    "pairs, the gap of AOG's last iterate falls as 1 / T at least.",
    left_out="Regret, dynamic regret, and monotone games whose gradients are not linear.",
    parts=("jaxrl/solvers/dynamics.py", "jaxrl/exact/races.py"),
    errors=errors,
    planted={
        "gradient descent without half steps": errors_of(without_anchor(solvers.aog), False),
        "an anchor that does not fade": errors_of(constant_anchor(solvers.aog)),
    },
    tolerance=1e-6,
    effect=0.1,
    seeds=10,
    minutes=2.0,
    mutations=(Mutation("an anchor that does not fade", "jaxrl.solvers:aog", constant_anchor),),
    notes="A factor of 1.5 is allowed, since the gap oscillates.",
)
