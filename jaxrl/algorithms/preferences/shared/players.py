"""Policies of the past and rivals, as the agent's own state acts by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl.core.hyper import replace_hyper
from jaxrl.core.types import Tree
from jaxrl.kit.parts import with_shared


def played_as(part: str) -> Callable[[Tree], Tree]:
    """Return a function from an agent's state to the state by which it acts as another `part`."""

    def player(state: Any) -> Any:
        own = dataclasses.replace(state.parts["actor_critic"], params=state.parts[part].params)
        return dataclasses.replace(state, parts={**state.parts, "actor_critic": own})

    return player


def played_at(factor: float) -> Callable[[Tree], Tree]:
    """Return a function from an agent's state to the state by which it samples at its temperature,
    the hyperparameter `sampling.temperature`, times `factor`."""

    def player(state: Any) -> Any:
        name = "sampling.temperature"
        return replace_hyper(state, {name: factor * state.hyper[name]})

    return player


def played_as_target(state: Any) -> Any:
    """Return the state by which an agent acts as the target network of its policy."""
    own = state.parts["actor_critic"]
    params = with_shared(own.target, own.params)
    own = dataclasses.replace(own, params=params)
    return dataclasses.replace(state, parts={**state.parts, "actor_critic": own})
