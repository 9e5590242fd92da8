"""Whole training runs as values: learners that are replaced after a number of updates."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.train import Run, start, train
from jaxrl.core.types import Algorithm, Array, Hyper, Key, Tree, struct


@struct
class Life:
    """One learner: a run of the inner algorithm, and its total number of updates."""

    run: Run
    horizon: Array  # int32


def with_rule(run: Run, rule: Tree) -> Run:
    """Replace the rule of a run's learner."""
    agent = dataclasses.replace(run.state.agent, rule=rule)
    return dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))


def begin(inner: Algorithm, rule: Tree, key: Key, hyper: Hyper, horizon: Array) -> Life:
    """Return a learner before its first of `horizon` updates, which its rule knows."""
    env_steps = (horizon * inner.env_steps).astype(jnp.float32)
    return Life(with_rule(start(inner, key, {**hyper, "lifetime": env_steps}), rule), horizon)


def live(
    inner: Algorithm, rule: Tree, life: Life, updates: int
) -> tuple[Life, dict[str, Any], m.Mean]:
    """Make `updates` updates by `rule`. Differentiable in `rule`.

    Returns the life, its metrics, and the mean return of the episodes that ended during these
    updates if the life is over now (a mean of weight 0 if not).
    """
    run, row = train(inner, with_rule(life.run, rule), updates)
    life = Life(run, life.horizon)
    returns = row["episode_return"]
    final = trees.where(is_over(life), returns, returns.empty())
    return life, row, final


def is_over(life: Life) -> Array:
    """Return whether a life has made its last update."""
    return life.run.step >= life.horizon


def renew(inner: Algorithm, rule: Tree, life: Life, key: Key, hyper: Hyper) -> Life:
    """Return `life`, or a new one with as many updates where it is over."""
    return trees.where(is_over(life), begin(inner, rule, key, hyper, life.horizon), life)
