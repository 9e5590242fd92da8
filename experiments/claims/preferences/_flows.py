"""Problems of one prompt with answers on a line, for studies of how policies learn preferences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, Key
from jaxrl.exact.preference_flows import (
    Objective,
    PairLoss,
    Path,
    draw_pairs,
    expected_pairs,
    follow,
    measure_path,
    of_own_pairs,
    of_pairs,
    reward_model,
)

ANSWERS, PROBLEMS = 48, 32  # problems of a seed, over which everything is a mean
LINE = np.linspace(-1, 1, ANSWERS)  # float64, whenever this is imported
DIVERGENCES = np.array([0.25, 0.5, 1.0])
BETA, PAIRS, STEPS = 0.03, 100, 1000


class Problem(NamedTuple):
    """Answers to one prompt: reference, gold reward and scores of a reward model [A], shares of the
    pairs of a small dataset and of all pairs [A, A], and features [A, K] of policy and model."""

    reference: Array
    reward: Array
    proxy: Array
    pairs: Array
    held_out: Array
    features: Array


def bumps(count: int, width: float) -> Array:
    """Return features of answers, [A, count]: bumps on the line."""
    centers = np.linspace(-1, 1, count)
    return jnp.asarray(np.exp(-(((LINE[:, None] - centers) / width) ** 2) / 2))


def draw(key: Key) -> Problem:
    """Draw a problem with a smooth reward and few pairs by the reference."""
    reward_key, pair_key = jax.random.split(key)
    reference = jax.nn.log_softmax(jnp.asarray(-((LINE / 0.4) ** 2) / 2))
    reward = bumps(16, 0.15) @ jax.random.normal(reward_key, (16,))
    reward = reward - reward.mean()
    pairs, features = draw_pairs(pair_key, reference, reward, PAIRS), bumps(24, 0.08)
    proxy = reward_model(pairs, features)
    held_out = expected_pairs(reference, reward)
    return Problem(reference, reward, proxy, pairs, held_out, features)


def with_beta(loss: Callable[..., Array], beta: float = BETA) -> PairLoss:
    """Return a loss of two answers like `losses.dpo` with its beta."""
    return functools.partial(loss, beta=beta)


def path(x: Problem, objective: Objective) -> tuple[Array, Path]:
    """Return the log-probabilities [S, A] of a policy on its way, and what they reach."""
    policies = follow(objective, x.reference, x.features, STEPS)
    return policies, measure_path(policies, x.reference, x.reward, x.held_out)


def offline(x: Problem, loss: Callable[..., Array]) -> tuple[Array, Path]:
    """Return the path that learns from the dataset."""
    return path(x, of_pairs(with_beta(loss), x.pairs, x.reference))


def online(x: Problem, loss: Callable[..., Array]) -> tuple[Array, Path]:
    """Return the path that learns from its own pairs, which the reward model labels."""
    return path(x, of_own_pairs(with_beta(loss), x.proxy, x.reference))


def mean_over_problems(function: Callable[[Problem], dict], key: Key) -> dict:
    """Return means of a function of problems."""
    found = jax.vmap(lambda key: function(draw(key)))(jax.random.split(key, PROBLEMS))
    return jax.tree.map(lambda x: x.mean(0), found)


def excess(x: Array) -> Array:
    """Return by how much the largest of some numbers, which should be negative, is above 0."""
    return jnp.maximum(jnp.max(x), 0)


def blind_to_rejected(loss: Callable[..., Array]) -> Callable[..., Array]:
    """Return a loss without the gradient that pushes the rejected answer down."""

    def chosen_only(chosen, rejected, *references, beta):
        return loss(chosen, jax.lax.stop_gradient(rejected), *references, beta=beta)

    return chosen_only


def without_reference(loss: Callable[..., Array]) -> Callable[..., Array]:
    """Return a loss that pulls toward the uniform policy."""
    return lambda now, other, first, second, beta: loss(now, other, 0 * first, 0 * second, beta)
