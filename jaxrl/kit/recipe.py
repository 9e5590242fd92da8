"""Recipes: an algorithm as its parts, its losses, and their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxrl.core.types import Batch, Key, TimeStep, Tree
from jaxrl.kit.net import Net
from jaxrl.kit.parts import Loss, Part
from jaxrl.kit.state import State


class Act(Protocol):
    """A function by which an agent acts."""

    def __call__(
        self, net: Net, timestep: TimeStep, memory: Tree, key: Key, greedy: bool, /
    ) -> tuple[Tree, Tree, dict[str, Tree]]:
        """Return actions [B], the new memory [B], and what the policy says about the actions.

        net: parts and hyperparameters.
        timestep, memory: of each environment, [B].
        key: random key.
        greedy: whether to take the best action instead of a sample; a Python bool.
        """
        ...


class Update(Protocol):
    """A function by which an agent learns from a batch."""

    def __call__(self, net: Net, batch: Batch, /) -> Net:
        """Return the net after an update.

        net: parts before it.
        batch: what the source has sampled.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """An algorithm as its parts, its losses, and their order.

    parts: by name.
    act: how the agent acts.
    losses: all losses, in the order in which they are descended unless `update` says otherwise.
    update: how the agent learns; by default `in_order(parts, losses)`.
    extra: what the agent keeps beside its parts, as `net.extra`; its value at the start.
    memory: n -> what the policy remembers at an episode's start, leading axis [n].
    needs: what the update reads of a batch beyond its transitions; see `Agent.needs`.
    num_shards: logical shards of the environments; set by the builder.
    hand_over: state -> state of the agent that continues from this one in a warm start.
    adopt: what is taken over from another agent in a warm start; see `Agent.adopt`.
    scores: metrics that the algorithm is judged by, besides the return; see `Algorithm.scores`.
    in_evaluation: hyperparameters that others take the place of in evaluations; see `Agent`.
    """

    parts: Mapping[str, Part]
    act: Act
    losses: Sequence[Loss]
    update: Update = None  # type: ignore[assignment]
    extra: Tree = ()
    memory: Callable[[int], Tree] = lambda n: ()
    needs: tuple[str, ...] = ()
    num_shards: int = 1
    hand_over: Callable[[State], Tree] = lambda state: state
    adopt: Callable[[State, Tree], Tree] = lambda state, other: other
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    in_evaluation: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.update is None:
            object.__setattr__(self, "update", in_order(self.parts, self.losses))


def in_order(parts: Mapping[str, Part], losses: Sequence[Loss]) -> Update:
    """Return an update that descends `losses` one after the other, then moves the target networks
    of `parts`, and touches no other."""
    targets = [name for name, part in parts.items() if part.target is not None]

    def update(net: Net, batch: Any) -> Net:
        for loss in losses:
            net = net.descend(loss, batch)
        return net.update_targets(*targets) if targets else net

    return update
