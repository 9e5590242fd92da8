"""Kuhn poker, with exact measures along a run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.envs.games import kuhn_poker
from jaxrl.envs.games.rules import environment
from jaxrl.exact import games

EVENLY, MOST = 11 / 24, 17 / 12  # exploitability of choosing evenly, and of the worst policy
LOW, HIGH = 1 - MOST / EVENLY, 1.0  # range of `closeness`


@struct
class Fee:
    fee: Any  # that the second player pays the first for each game


RULES = dataclasses.replace(
    kuhn_poker.RULES,
    payoff=lambda state, params: (
        kuhn_poker.RULES.payoff(state, ()) + params.fee * jnp.asarray([1.0, -1.0])
    ),
)


@functools.cache
def kuhn_with_fee() -> Environment:
    """Kuhn poker in which the second player pays the first a fee for each game.

    The fee changes the returns of the roles, and nothing about how to play or how exploitable a
    policy is.
    """
    return environment("kuhn_with_fee", RULES, Fee(np.float32(0)))


def closeness(game: games.Game, reaches: Array) -> Array:
    """Return how close the reaches [2, Z] of both players are to an equilibrium.

    1 there, and 0 if they can be exploited for as much as a policy that chooses evenly.
    """
    return 1 - games.exploitability(game, reaches) / EVENLY


@functools.cache
def kuhn(env: Environment) -> games.Game:
    """Return all courses of Kuhn poker, with the fee of `env` if it has one."""
    with jax.ensure_compile_time_eval():
        rules = RULES if isinstance(env.params, Fee) else kuhn_poker.RULES
        return games.enumerate_game(rules, env.params)


def whole_key(key: Key, phases: int, moments: int) -> tuple[list[Key], Key]:
    """Give a run its key as it is; looks are exact and draw nothing."""
    return [key], jax.random.split(key, moments)
