"""Kuhn poker, with exact measures along a run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evidence import measure
from experiments.evidence.declare import Trial
from jaxrl.core.train import start, train
from jaxrl.core.types import Algorithm, Array, Environment, Key, struct
from jaxrl.envs.games import kuhn_poker
from jaxrl.envs.games.rules import Rules, environment
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


def along(
    trial: Trial,
    keys: Key,
    hyper: Mapping[str, Any],
    look: Callable[[games.Game, Algorithm, Any], Any],
    rules: Rules = kuhn_poker.RULES,
) -> tuple[games.Game, Any, dict[str, Array]]:
    """Return the game, the results of `look` along each run, and the environment steps.

    look: called with (game, algorithm, state) at the beginning of a run and at each point of its
    environment; results have leading axes [runs, points + 1].
    """
    env, algorithm = measure.build(trial)
    points, steps = (1, 1) if trial.tiny else measure.schedule(trial, algorithm)
    game = _game(env, rules)
    found = _along(game, algorithm, look, keys, dict(hyper), steps, points)
    return game, found, {"env_steps": jnp.full(len(keys), points * steps * algorithm.env_steps)}


@functools.cache
def _game(env: Environment, rules: Rules) -> games.Game:
    return games.enumerate_game(rules, env.params)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 5, 6))
def _along(game, algorithm, look, keys, hyper, steps, points):
    def one(key, hyper):
        def part(run, number):
            learn = lambda run: train(algorithm, run, steps)[0]
            run = jax.lax.cond(number > 0, learn, lambda run: run, run)
            return run, look(game, algorithm, run.state)

        return jax.lax.scan(part, start(algorithm, key, hyper), jnp.arange(points + 1))[1]

    return jax.vmap(one)(keys, hyper)
