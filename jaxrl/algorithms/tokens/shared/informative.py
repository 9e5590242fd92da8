"""Updates that wait until enough groups of answers have a signal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import returns_of
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Source
from jaxrl.kit import Recipe
from jaxrl.sources import kept_groups

# Which groups have a signal, bool [P], by the returns [P, G] of their answers.
Informative = Callable[[Array], Array]


def wait_for_informative(
    recipe: Recipe, answers: int, informative: Informative | None = None
) -> Recipe:
    """Return a recipe whose update changes nothing until a share `net.hyper.informative` of the
    groups, of `answers` each, is informative, and keeps the groups that are.

    informative: None for groups with different rewards.
    """

    def update(net, batch):
        choose = informative or losses.informative_groups
        known = choose(returns_of(batch).reshape(-1, answers))
        # Counted, since a mean of ones can be below 1: 41 times the float32 1 / 41 is.
        enough = known.sum() >= net.hyper.informative * known.size
        new = recipe.update(net, batch)
        new = new.replace(parts=trees.where(enough, new.parts, net.parts))
        return new.report(informative=known.mean()).feed(keep=~enough)

    return dataclasses.replace(recipe, update=update)


def informative_source(
    env: Environment, config: Any, informative: Informative | None = None
) -> Source:
    """Return a source that keeps informative groups while the update waits for more.

    informative: as in `wait_for_informative`.

    Raises `UserError` if the update would wait forever, for groups of one answer.
    """
    groups = config.groups
    if groups.answers < 2 and config.informative > 0:
        raise UserError(
            f"groups.answers is {groups.answers}, and such groups have no signal that the update "
            "waits for; choose at least 2, or set informative to 0."
        )
    fresh, choose = groups.source(env), informative or losses.informative_groups
    return kept_groups(fresh, groups.answers, choose, groups.num_shards)


def right_and_wrong(returns: Array) -> Array:
    """Return which groups have right answers, with returns above 0, and wrong ones: bool [P] from
    returns [P, G]."""
    return losses.informative_groups((returns > 0).astype(jnp.float32))
