"""Scripted players of `team_battle`, and battles against one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Array, Environment, Policy
from jaxrl.envs.games import team_battle as b
from jaxrl.envs.games.opponents import against
from jaxrl.envs.policies import random_policy

FEATURES = 2 + b.ELEMENTS + len(b.BUILDS) + b.ELEMENTS + 1  # of a monster in an observation
RANDOM = "random"


def expected_damage(seen: Array) -> Array:
    """Return the damage [..., 5, 2] of each strike (actions 0 to 4) to the other side's left and
    right monster, if they stay, from observations [..., 118]."""
    monsters = seen[..., : 2 * b.TEAM * FEATURES].reshape(*seen.shape[:-1], 2, b.TEAM, FEATURES)
    right = seen[..., 2 * b.TEAM * FEATURES + 1, None]
    own = jnp.where(right > 0, monsters[..., 0, 1, :], monsters[..., 0, 0, :])
    others = monsters[..., 1, : b.RESERVE, :]
    ends = [2, 2 + b.ELEMENTS, 2 + b.ELEMENTS + len(b.BUILDS)]
    _, element, build, rest = jnp.split(own, ends, -1)
    second = rest[..., : b.ELEMENTS]
    attack = (build * b.ATTACK).sum(-1)[..., None]
    theirs = others[..., 2 : 2 + b.ELEMENTS]
    effect = lambda x: (x[..., None, :, None] * b.EFFECT * theirs[..., None, :]).sum((-1, -2))
    stands = others[..., 1]
    by_own = attack * effect(element) * stands
    by_second = attack * effect(second) * stands * b.POWER_SECOND
    spread = jnp.where(stands.all(-1), b.POWER_BOTH, b.POWER_OWN)[..., None]
    left = jnp.asarray([1.0, 0.0])
    return jnp.stack(
        [
            b.POWER_OWN * by_own * left,
            b.POWER_OWN * by_own * left[::-1],
            by_second * left,
            by_second * left[::-1],
            spread * by_own,
        ],
        -2,
    )


def strongest(seen: Array, legal: Array) -> Array:
    """Use the own element, whatever the opponents', on the left one if it stands."""
    del seen
    return jnp.argmax(legal[..., : b.OWN + 2], -1)


def knowing(seen: Array, legal: Array) -> Array:
    """Strike where the damage is largest, counted no higher than the health that is left."""
    monsters = seen[..., : 2 * b.TEAM * FEATURES].reshape(*seen.shape[:-1], 2, b.TEAM, FEATURES)
    others = monsters[..., 1, : b.RESERVE, :]
    builds = others[..., 2 + b.ELEMENTS : 2 + b.ELEMENTS + len(b.BUILDS)]
    health = others[..., 0] * (builds * b.HEALTH).sum(-1)
    done = jnp.minimum(expected_damage(seen), health[..., None, :]).sum(-1)
    return jnp.argmax(jnp.where(legal[..., : b.BOTH + 1], done, -1.0), -1)


SCRIPTS: dict[str, Callable[[Array, Array], Array]] = {"strongest": strongest, "knowing": knowing}


@functools.cache
def player(name: str) -> Policy:
    """Return the scripted player `name`, one of `SCRIPTS` or random, who plays either side. At
    first the others draw who waits, and for a fallen monster they guard."""
    if name == RANDOM:
        return random_policy(b.team_battle())
    if name not in SCRIPTS:
        raise unknown("player", name, (*SCRIPTS, RANDOM))
    script = SCRIPTS[name]

    def act(state: Any, timestep: Any, memory: Any, key: Any, greedy: bool) -> Any:
        seen, legal = timestep.observation, timestep.legal_actions
        first = seen[..., 2 * b.TEAM * FEATURES] > 0
        drawn = jax.random.randint(key, first.shape, 0, b.TEAM)
        action = jnp.where(first, drawn, script(seen, legal))
        action = jnp.where(legal[..., : b.BOTH + 1].any(-1), action, b.GUARD)
        return action.astype(jnp.int32), memory, {}

    return Policy(act, lambda n: ())


@functools.cache
def team_battle_against(
    opponent: str = "strongest",
    teams: int = 64,
    unseen: bool = False,
    order: int = 0,
    turns: int = 12,
) -> Environment:
    """Battles for one agent against a scripted player.

    opponent: strongest, knowing or random. teams, unseen, order, turns: as in `team_battle`.
    """
    return against(b.team_battle(teams, unseen, order, turns), player(opponent))
