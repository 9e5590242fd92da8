"""Scores of policies: thousands of them in one call of the common evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared.policies import Policies
from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.evaluation.evaluate import Episodes, evaluate
from jaxrl.networks.heads import check_action_space


@struct
class Scores:
    """Scores of P policies in E episodes each."""

    fitness: Array  # [P]: mean undiscounted return of the policy's episodes; -inf for a failed one
    descriptors: Array  # [P, K]: mean over its episodes
    episodes: Episodes  # [P, E]


def score(
    env: Environment,
    policies: Policies,
    vectors: Array,
    key: Key,
    episodes: int = 1,
    describe: Callable[[TimeStep], Array] | None = None,
    chunk: int = 0,
) -> Scores:
    """Play `episodes` (E) complete episodes with each of `vectors` [P, D].

    A policy whose weights, return or descriptor is not finite has failed: it is the worst of its
    population and enters no archive. The others are not affected, since an environment that breaks
    under one strange policy says nothing about them.

    describe: last time step of an episode -> [..., K]; see `descriptors`.
    chunk: number of policies that play at once, to limit memory; 0 for all.

    Raises `UserError` for a chunk that does not divide P, and for an env without a time limit.
    """
    population = vectors.shape[0]
    chunk = chunk or population

    def play(vectors: Array, key: Key) -> Episodes:
        played = evaluate(env, policies.policy(vectors), key, chunk * episodes)
        return jax.tree.map(lambda x: x.reshape(chunk, episodes, *x.shape[1:]), played)

    if chunk == population:
        played = play(vectors, key)
    elif population % chunk:
        raise UserError(f"chunk={chunk} does not divide a population of {population}.")
    else:
        parts = vectors.reshape(-1, chunk, vectors.shape[1])
        keys = jax.random.split(key, len(parts))
        played = jax.lax.map(lambda part: play(*part), (parts, keys))
        played = jax.tree.map(lambda x: x.reshape(population, *x.shape[2:]), played)
    if describe is None or played.last is None:
        described = jnp.zeros((population, 0))
    else:
        described = describe(played.last).mean(1)
    returns = played.returns.mean(1)
    sound = jnp.isfinite(returns) & jnp.isfinite(vectors).all(1) & jnp.isfinite(described).all(1)
    return Scores(jnp.where(sound, returns, -jnp.inf), described, played)


def check_env(env: Environment, algorithm: str) -> None:
    """Raise `UserError` for an environment in which policies cannot be evolved: one without a
    policy head for its actions, or without a time limit. `algorithm` is named in the message."""
    check_action_space(env.action_space, algorithm)
    if env.max_steps is None:
        raise UserError(f"{algorithm} needs complete episodes; '{env.name}' has no time limit.")


SCORES = {"best_return": "best return"}  # of a population that searches for one policy


def statistics(scores: Scores) -> dict[str, Any]:
    """Return metrics over all episodes of a population: `episode_return`, `episode_length`,
    `episodes`, the steps played until their ends (`env_steps`), the best policy's mean return
    (`best_return`, -inf if all failed), the share of policies that `failed`, and the environment's
    metrics at the end of an episode. Means are over finite numbers."""
    played = scores.episodes
    mean = lambda values: m.mean(values, jnp.isfinite(values))
    return {
        "episode_return": mean(played.returns),
        "episode_length": m.mean(played.lengths),
        "episodes": m.Sum(jnp.float32(played.lengths.size)),
        "env_steps": m.Sum(played.lengths.sum(dtype=jnp.float32)),
        "best_return": m.Maximum(scores.fitness.max()),
        "failed": m.mean(~jnp.isfinite(scores.fitness)),
    } | {name: mean(value) for name, value in played.metrics.items()}
