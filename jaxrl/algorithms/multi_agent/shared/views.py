"""Views of a time step: the part of it that each network of several agents sees."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, TimeStep, Tree
from jaxrl.envs.wrappers.one_team import group_by_team
from jaxrl.kit.agents import agent_names
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


def team_view(timestep: TimeStep, names: tuple[str, ...], numbered: bool = False) -> TimeStep:
    """Return the time step as each of several agents sees it: observation and legal actions
    [..., K, *shape].

    numbered: whether the goal [..., K, K] says by a one-hot which agent it is, beside the goal that
        is there.
    """
    ndim = timestep.first.ndim
    look = lambda x: stack(x, names, ndim)
    legal, goal, batch = timestep.legal_actions, timestep.goal, timestep.first.shape
    several = lambda g: jnp.broadcast_to(
        jnp.expand_dims(g, ndim), (*batch, len(names), *g.shape[ndim:])
    )
    goal = jax.tree.map(several, goal)
    if numbered:
        number = jnp.broadcast_to(jnp.eye(len(names)), (*batch, len(names), len(names)))
        goal = number if goal is None else (goal, number)
    return dataclasses.replace(
        timestep,
        observation=look(timestep.observation),
        legal_actions=look(legal) if names[0] in (legal or {}) else None,
        goal=goal,
        privileged=None,
    )


def _replace_observation(timestep: TimeStep, observation: Tree, legal: Array | None) -> TimeStep:
    changes = {"observation": observation, "legal_actions": legal, "privileged": None}
    return dataclasses.replace(timestep, **changes)


def teams_of(env: Environment) -> dict[str, tuple[str, ...]]:
    """Return the agents of each team, in the order of their rewards: those whose names are alike up
    to the last underscore."""
    return group_by_team(agent_names(env))


def players(env: Environment, share_weights: bool) -> dict[str, tuple[str, ...]]:
    """Return the agents of each network, by its name: each agent, or with `share_weights` each
    team."""
    return teams_of(env) if share_weights else {name: (name,) for name in agent_names(env)}


def view_of(agents: tuple[str, ...]) -> View:
    """Return the view of agents that share a network, or of one alone."""
    return functools.partial(team_view, names=agents, numbered=len(agents) > 1)


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


def check_alike(env: Environment, names: tuple[str, ...], name: str) -> None:
    """Raise `UserError` unless the agents `names` have the same spaces, so that they can share the
    weights of a network."""
    for spaces in (env.observation_space, env.action_space):
        if any(spaces[n] != spaces[names[0]] for n in names):  # type: ignore[index]
            raise UserError(
                f"{name} gives the agents {', '.join(names)} of '{env.name}' one network, but "
                "their spaces differ."
            )


def check_state(env: Environment, reader: str, instead: str) -> None:
    """Raise `UserError` for an environment that does not expose its state.

    reader: what sees the state. instead: what needs none.
    """
    if "state" not in (example_timestep(env, agents=True).privileged or {}):
        raise UserError(
            f"{reader} sees the state of the environment, privileged['state'], which '{env.name}' "
            f"does not expose; {instead} needs none."
        )
