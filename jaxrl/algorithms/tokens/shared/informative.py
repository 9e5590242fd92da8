"""Updates that wait until enough groups of answers have a signal."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl import losses
from jaxrl.algorithms.tokens.shared.answers import returns_of
from jaxrl.core import trees
from jaxrl.core.types import Environment, Source
from jaxrl.kit import Recipe
from jaxrl.sources import kept_groups


def wait_for_informative(recipe: Recipe, answers: int) -> Recipe:
    """Return a recipe whose update changes nothing until a share `net.hyper.informative` of the
    groups, of `answers` each, contains different rewards, and keeps the groups that do."""

    def update(net, batch):
        returns = returns_of(batch)
        share = losses.informative_groups(returns.reshape(-1, answers)).mean()
        enough = share >= net.hyper.informative
        new = recipe.update(net, batch)
        new = new.replace(parts=trees.where(enough, new.parts, net.parts))
        return new.report(informative=share).feed(keep=~enough)

    return dataclasses.replace(recipe, update=update)


def informative_source(env: Environment, config: Any) -> Source:
    """Return a source that keeps groups with a signal while the update waits for more."""
    groups = config.groups
    fresh = groups.source(env)
    return kept_groups(fresh, groups.answers, losses.informative_groups, groups.num_shards)
