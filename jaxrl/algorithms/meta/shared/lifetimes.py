"""Whole training runs as values: learners that live for a number of updates and then begin anew."""

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
    """One learner: a run of the inner algorithm, and how many updates it is to have."""

    run: Run
    horizon: Array  # int32


def with_rule(run: Run, rule: Tree) -> Run:
    """`run` whose learner follows `rule` from now on."""
    agent = dataclasses.replace(run.state.agent, rule=rule)
    return dataclasses.replace(run, state=dataclasses.replace(run.state, agent=agent))


def begin(inner: Algorithm, rule: Tree, key: Key, hyper: Hyper, horizon: Array) -> Life:
    """A learner at its first update, told that it has `horizon` of them."""
    env_steps = (horizon * inner.env_steps).astype(jnp.float32)
    return Life(with_rule(start(inner, key, {**hyper, "lifetime": env_steps}), rule), horizon)


def live(
    inner: Algorithm, rule: Tree, life: Life, updates: int
) -> tuple[Life, dict[str, Any], m.Mean]:
    """`updates` updates by `rule`: the life, its metrics, and the mean return of the episodes that
    ended meanwhile if it is over now (of weight 0 if not). Differentiable in `rule`."""
    run, row = train(inner, with_rule(life.run, rule), updates)
    life = Life(run, life.horizon)
    returns = row["episode_return"]
    final = trees.where(over(life), returns, returns.empty())
    return life, row, final


def over(life: Life) -> Array:
    """Whether its last update was made."""
    return life.run.step >= life.horizon


def renew(inner: Algorithm, rule: Tree, life: Life, key: Key, hyper: Hyper) -> Life:
    """`life`, or where it is over another one with as many updates."""
    return trees.where(over(life), begin(inner, rule, key, hyper, life.horizon), life)
