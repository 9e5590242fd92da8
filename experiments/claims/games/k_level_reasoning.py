"""Reasoning one level deeper than the rivals, in the game of guessing a share of the average."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.evidence.declare import Exact, Mutation, Paper
from jaxrl.core.types import Array, Key
from jaxrl.exact import level_k

PLAYERS, MOST, ROUNDS = 5, 4, 6
Reason = Callable[..., Array]  # like `level_k.reason`


def measure(key: Key, reason: Reason) -> Mapping[str, Any]:
    """Return the errors of players who reason one level deeper than their rivals."""
    share_key, guess_key = jax.random.split(key)
    share = jax.random.uniform(share_key, (), float, 0.5, 0.9)
    history = jax.random.uniform(guess_key, (1, PLAYERS), float, 20, 80)
    respond = level_k.guess_response(share, PLAYERS)
    lost, predicted, optimal, growth = [], [], [], []
    for level in range(MOST):
        levels = jnp.asarray([level + 1] + [level] * (PLAYERS - 1))
        guesses = level_k.contest(history, share, levels, MOST, ROUNDS)
        lost.append(1 - level_k.winners(guesses, share)[:, 0].mean())
        # Before each round a player reasons for its rivals, by what has been seen.
        seen = jnp.concatenate([history, guesses[:-1]])
        errors = jnp.stack([
            jnp.abs(
                jax.vmap(lambda last, deep=deep: reason(
                    level_k.repeat_average, respond, last[None], deep
                ))(seen) - guesses[:, 1]
            ).mean()
            for deep in range(level + 1)
        ])  # fmt: skip
        predicted.append(errors[level])
        growth.append(jnp.maximum(errors[1:] - errors[:-1], 0).sum() if level else errors[0])
        # The response is the guess that hits the share of the average, its own guess included.
        average = (guesses[:, 0] + (PLAYERS - 1) * guesses[:, 1]) / PLAYERS
        optimal.append(jnp.abs(guesses[:, 0] - share * average).max())
    return {
        "rounds that the deeper player does not win": jnp.stack(lost).max(),
        "prediction at the rivals' level": jnp.stack(predicted).max(),
        "growth of prediction errors toward the rivals' level": jnp.stack(growth).max(),
        "distance of the response from the share of the average": jnp.stack(optimal).max(),
    }


@jax.jit
def errors(key: Key) -> Mapping[str, Any]:
    """Return the errors of level-k reasoning."""
    return measure(key, level_k.reason)


def too_shallow(reason: Reason) -> Reason:
    """Reason one level less deep than asked for."""
    return lambda rule, respond, history, level: reason(rule, respond, history, max(level - 1, 0))


CLAIM = Exact(
    paper=Paper(
        "K-Level Reasoning with Large Language Models",
        "Zhang et al.",
        2024,
        "2402.01521",
        "Reasoning recursively from the rivals' perspective predicts their moves better and makes "
        "a language model's decisions more strategic, in guessing games and auctions.",
    ),
    claim="Where rivals guess a share of the average at one level, a player who reasons one level "
    "deeper predicts them exactly, responds exactly and wins each round; predictions improve with "
    "each level up to that of the rivals.",
    left_out="Language models, whose place a given rule and response take, rivals of mixed levels, "
    "and the survival auction.",
    parts=("jaxrl/exact/level_k.py",),
    errors=errors,
    planted={
        "one level too few": jax.jit(lambda key: measure(key, too_shallow(level_k.reason))),
    },
    tolerance=1e-9,
    effect=1e-2,
    seeds=20,
    minutes=3.0,
    mutations=(Mutation("one level too few", "jaxrl.exact.level_k:reason", too_shallow),),
)
