"""Demonstrations: experience that a fixed policy plays instead of the agent."""

from __future__ import annotations

import dataclasses

from jaxrl.core.types import Policy, Source


def played_by(source: Source, policy: Policy) -> Source:
    """Let `policy` act in `source`, whatever agent learns from it: an expert to clone.

    The memory and the extras of a batch are those of `policy`, and so is the metric
    `episode_return`.
    """
    return dataclasses.replace(
        source,
        name=f"{source.name} played by another",
        init=lambda key, hyper, agent: source.init(key, hyper, policy),
        collect=lambda state, agent, key: source.collect(state, policy, key),
    )
