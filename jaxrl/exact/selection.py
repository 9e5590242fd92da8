"""Exact values of rules in `selective_labels`, by enumeration of the candidates' types."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array
from jaxrl.envs.bandits import selective_labels

MANY = 1_000_000  # rounds that are enumerated at most


def type_rewards(params: selective_labels.Params) -> Array:
    """Return the expected reward of each type, [K], by the weights of `params`."""
    features = jnp.asarray(params.features)
    weights = jnp.asarray(params.weights)
    return selective_labels.pay(selective_labels.chance(weights, features, params), params)


def value(scores: Array, params: selective_labels.Params, candidates: int, quota: int) -> Array:
    """Return the expected reward of a round's choices by scores of the types, [K].

    All candidates are available (`presence` 1). The scores `type_rewards(params)` are the best.
    Raises `UserError` for more than a million combinations of types.
    """
    rewards = type_rewards(params)
    if len(rewards) ** candidates > MANY:
        raise UserError(
            f"{len(rewards)} types of {candidates} candidates have {len(rewards) ** candidates} "
            f"combinations; at most {MANY} are enumerated."
        )
    kinds = np.array(list(itertools.product(range(len(rewards)), repeat=candidates)))
    chosen = jax.lax.top_k(jnp.asarray(scores)[kinds], quota)[1]
    return rewards[jnp.take_along_axis(jnp.asarray(kinds), chosen, 1)].sum(1).mean()


def value_of_one(scores: Array, params: selective_labels.Params, candidates: int) -> Array:
    """Return the expected reward of a round's only choice by scores of the types, [K].

    That is `value` with a quota of 1, for any `presence` and number of candidates: the best of n
    candidates is of the r lowest types with the probability r / K (1 - presence + presence r /
    K)^(n - 1). Equal scores are broken by the order of the types.
    """
    rewards = type_rewards(params)
    lowest = jnp.arange(len(rewards) + 1) / len(rewards)
    absent = 1 - params.presence + params.presence * lowest
    chance = jnp.diff(lowest * absent ** (candidates - 1))
    return (rewards[jnp.argsort(scores)] * chance).sum()
