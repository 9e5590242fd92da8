"""Scripted teams of `soccer`, and soccer against one of them."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Environment, Policy
from jaxrl.envs.particles import soccer as s
from jaxrl.envs.particles.mechanics import nearest_push
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers.one_team import one_team

# The push of a player by its observation [..., D] and the number of players of a team.
SCRIPTS = {
    "idle": lambda view, players: jnp.zeros((*view.shape[:-1], 2)),
    "chasers": lambda view, players: s.play(view),
    "keepers": lambda view, players: s.guard(view),
    "team": s.team,
}
RANDOM = "random"


@functools.cache
def soccer_team(name: str, players: int = 2, actions: str = "continuous") -> Policy:
    """Return the scripted team `name`: idle; chasers, who all go for the ball; keepers, who all
    guard their goal; team, of whom the nearest to the ball plays; or random. It acts for the agents
    whose observations it sees, of either team."""
    if name == RANDOM:
        env = s.soccer(players, actions)
        return random_policy(one_team(env, soccer_team("idle", players, actions)))
    if name not in SCRIPTS:
        raise unknown("team", name, (*SCRIPTS, RANDOM))
    script = SCRIPTS[name]

    def act(state: Any, timestep: Any, memory: Any, key: Any, greedy: bool) -> Any:
        push = {n: script(view, players) for n, view in timestep.observation.items()}
        as_action = nearest_push if actions == "discrete" else lambda push: push
        return {n: as_action(x) for n, x in push.items()}, memory, {}

    return Policy(act, lambda n: ())


@functools.cache
def soccer_against(
    opponent: str = "team", players: int = 2, actions: str = "continuous"
) -> Environment:
    """Soccer for the left team, whose players share a reward, against a scripted team.

    opponent: idle, chasers, keepers, team or random. players, actions: as in `soccer`.
    """
    return one_team(s.soccer(players, actions), soccer_team(opponent, players, actions))
