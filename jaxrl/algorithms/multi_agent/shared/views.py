"""Views of a time step: the part of it that each network of several agents sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Tree
from jaxrl.networks.heads import check_action_space

View = Callable[[TimeStep], TimeStep]  # selects the part of a time step that a network sees


def own_view(timestep: TimeStep, agent: str) -> TimeStep:
    """Return the time step as an agent sees it: its own observation and legal actions."""
    legal = (timestep.legal_actions or {}).get(agent)
    return _replace_observation(timestep, timestep.observation[agent], legal)


def state_view(timestep: TimeStep) -> TimeStep:
    """Return the time step with the environment's state as its observation."""
    return _replace_observation(timestep, timestep.privileged["state"], None)


def stack(by_agent: Mapping[str, Any], names: tuple[str, ...], ndim: int) -> Any:
    """Stack the leaves [..., *shape] of several agents to [..., K, *shape]; `ndim` axes come
    before."""
    return jax.tree.map(lambda *x: jnp.stack(x, ndim), *(by_agent[name] for name in names))


def team_view(timestep: TimeStep, names: tuple[str, ...]) -> TimeStep:
    """Return the time step as each of several agents sees it: observation and legal actions
    [..., K, *shape]."""
    look = lambda x: stack(x, names, timestep.first.ndim)
    legal = timestep.legal_actions
    changes = {"observation": look(timestep.observation), "legal_actions": legal and look(legal)}
    return dataclasses.replace(timestep, **changes, privileged=None)


def _replace_observation(timestep: TimeStep, observation: Tree, legal: Array | None) -> TimeStep:
    changes = {"observation": observation, "legal_actions": legal, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def check_agents(env: Environment, name: str) -> None:
    """Raise `UserError` unless actions are those of several agents, each with an observation."""
    spaces = env.action_space, env.observation_space
    if not all(isinstance(space, dict) for space in spaces) or set(spaces[0]) - set(spaces[1]):
        raise UserError(
            f"{name} needs agents that act at the same time: the actions and observations of "
            f"'{env.name}' must be dicts with an entry per agent, like those of speaker_listener."
        )
    for agent, space in env.action_space.items():
        check_action_space(space, f"{name}'s agent '{agent}'")


def check_state(env: Environment, reader: str, instead: str) -> None:
    """Raise `UserError` for an environment that does not expose its state.

    reader: what sees the state. instead: what needs none.
    """
    if "state" not in (example_timestep(env, agents=True).privileged or {}):
        raise UserError(
            f"{reader} sees the state of the environment, privileged['state'], which '{env.name}' "
            f"does not expose; {instead} needs none."
        )
