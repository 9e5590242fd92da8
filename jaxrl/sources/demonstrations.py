"""Demonstrations: experience that another policy plays instead of the agent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxrl.core.errors import UserError
from jaxrl.core.types import Policy, Source


def played_by(source: Source, policy: Policy) -> Source:
    """Let `policy` act in `source`, whatever agent learns from it: an expert to clone.

    The memory and the extras of a batch are those of `policy`, and so is the metric
    `episode_return`.

    Raises `UserError` for a source of an environment on the host, where the agent plays.
    """
    return played_through(source, lambda agent: policy)


def played_through(source: Source, change: Callable[[Policy], Policy]) -> Source:
    """Let `change(policy)` act in `source`, where `policy` is the agent's: the agent with noise.

    The memory and the extras of a batch are those of the changed policy. Raises `UserError` for a
    source of an environment on the host, where the agent plays.
    """
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, by the agent that learns from it.")
    return dataclasses.replace(
        source,
        name=f"{source.name} played by another",
        init=lambda key, hyper, agent: source.init(key, hyper, change(agent)),
        collect=lambda state, agent, key: source.collect(state, change(agent), key),
    )
