"""B-STaR (Zeng et al., 2024, "B-STaR: monitoring and balancing exploration and exploitation in
self-taught reasoners", arXiv:2412.17256): rounds of self-training that choose, each for itself, the
temperature of their answers and the return above which answers are learned. They are those with the
best balance score in trials on a few prompts: many distinct right answers among those that would be
learned (exploration), and few wrong ones (exploitation).

An answer is right where the environment's `success` says so; its return may be another measure. In
the published code a reward model rates the answers, and the dataset's own solution is one of
them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared import answers
from jaxrl.algorithms.tokens.shared.answers import returns_of, token_scores
from jaxrl.algorithms.tokens.shared.rounds import Rounds, distinct_of, first_above, on_rounds
from jaxrl.algorithms.tokens.shared.settings import SMALL_GROUPS, SMALL_SUMS
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Batch, Environment, Source
from jaxrl.kit import AlgorithmBuilder, Recipe, group, static
from jaxrl.sources import best_of_trials
from jaxrl.sources.trials import Score

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)


@group
class Trials:
    """Trials on a few prompts before each round."""

    count: int = static(32, low=1, high=MANY)
    """Number of prompts that are tried at each temperature."""
    temperatures: tuple[float, ...] = static(TEMPERATURES, above=0, least_length=1)
    """Temperatures to choose from. 0.5 to 1.2 in steps of 0.05: the published code."""
    thresholds: tuple[float, ...] = static((0.0,), least_length=1)
    """Returns above which answers are learned, to choose from."""
    enough: float = static(8.0, above=0)
    """Number of distinct right answers to a prompt that are enough (n*)."""


@group
class Config(Rounds):
    """Settings of B-STaR: rounds that choose temperature and threshold (arXiv:2412.17256)."""

    most: int = static(10, low=0)
    """Largest number of answers to a prompt that are learned; 0 for all."""
    trials: Trials = Trials()


def success_of(batch: Batch, size: int) -> Array:
    """Return which answers were right at their end, bool [P, G]."""
    t = batch.transitions
    ended = t.done if batch.mask is None else t.done & batch.mask
    success = (t.next_timestep.metrics or {})["success"]
    return (jnp.where(ended, success, 0).sum(0) > 0).reshape(-1, size)


def balance(size: int, most: int, trials: Trials) -> Score:
    """Return a function that computes the best mean balance score of groups of `size` answers over
    the thresholds, and that `threshold`."""

    def score(batch: Batch) -> tuple[Array, dict[str, Array]]:
        returns = returns_of(batch).reshape(-1, size)
        returns = jnp.where(distinct_of(batch, size), returns, -jnp.inf)
        right = success_of(batch, size)

        def at(threshold: Array) -> Array:
            kept = first_above(returns, threshold, most)
            count = lambda x: x.sum(-1).astype(jnp.float32)
            return losses.balance_score(count(kept & right), count(kept), trials.enough).mean()

        thresholds = jnp.float32(trials.thresholds)
        scores = jax.vmap(at)(thresholds)
        best = jnp.argmax(scores)
        return scores[best], {"threshold": thresholds[best]}

    return score


def recipe(env: Environment, config: Config) -> Recipe:
    def keep(net: Any, returns: Array, batch: Batch) -> Array:
        threshold = batch.transitions.extras["threshold"][0, 0]
        distinct = distinct_of(batch, config.groups.answers)
        return first_above(jnp.where(distinct, returns, -jnp.inf), threshold, config.most)

    return on_rounds(env, config, keep)


def source(env: Environment, config: Config) -> Source:
    """Return a source of groups of answers at the temperature of the best trial."""
    groups, trials = config.groups, config.trials
    trial = dataclasses.replace(groups, prompts=trials.count).source(env)
    score = balance(groups.answers, config.most, trials)
    name, values = "sampling.temperature", trials.temperatures
    return best_of_trials(groups.source(env), trial, name, values=values, score=score)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` as `answers.check`, and if `env` does not say which answers are right."""
    answers.check(env, config, name)
    if not token_scores(env):
        raise UserError(f"{name} needs to know which answers are right; '{env.name}' does not say.")


b_star = AlgorithmBuilder("b_star", Config, recipe, source, check=check)

TINY = SMALL_GROUPS | SMALL_SUMS | {"trials.count": 4, "thresholds": (0.0, 0.5)}
TINY |= {"temperatures": (0.7, 1.0)}
