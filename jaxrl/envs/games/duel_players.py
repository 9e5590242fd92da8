"""Scripted players of `duel`, and the duel against one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxrl.core.errors import unknown
from jaxrl.core.types import Array, Environment, Policy
from jaxrl.envs.games import duel as d
from jaxrl.envs.games.opponents import against
from jaxrl.envs.policies import random_policy

OTHER = 3 + d.KINDS  # first number of the other fighter in an observation


def _distance(seen: Array) -> Array:
    return jnp.round(seen[..., -2] * (d.WIDTH - 1))


def _other(seen: Array, *kinds: int) -> Array:
    """Return whether the other fighter is in the middle of one of `kinds`."""
    return seen[..., OTHER + 3 + jnp.asarray(kinds)].any(-1)


def brawler(seen: Array) -> Array:
    """Advance, and jab whenever it reaches."""
    return jnp.where(_distance(seen) <= d.REACH[d.JAB], d.JAB, d.ADVANCE)


def wrestler(seen: Array) -> Array:
    """Advance, and throw whenever it reaches."""
    return jnp.where(_distance(seen) <= d.REACH[d.THROW], d.THROW, d.ADVANCE)


def keeper(seen: Array) -> Array:
    """Block, and strike while the other recovers from an action or is stunned."""
    open_to_strike = _other(seen, d.JAB, d.HEAVY, d.THROW, d.STUN)
    near = _distance(seen) <= d.REACH[d.JAB]
    winding_up = _other(seen, d.HEAVY) & (seen[..., OTHER + 2] * d.LONGEST > 2.5)
    return jnp.where(open_to_strike & near & ~winding_up, d.JAB, d.BLOCK)


def sniper(seen: Array) -> Array:
    """Use the heavy strike at its full reach, and keep that distance."""
    distance, reach = _distance(seen), d.REACH[d.HEAVY]
    near = jnp.where(distance < reach, d.RETREAT, d.HEAVY)
    cornered = seen[..., 1] == 0
    near = jnp.where((distance < reach) & cornered, d.JAB, near)
    return jnp.where(distance > reach, d.ADVANCE, near)


SCRIPTS: dict[str, Callable[[Array], Array]] = {
    "brawler": brawler,
    "wrestler": wrestler,
    "keeper": keeper,
    "sniper": sniper,
}
RANDOM = "random"


@functools.cache
def player(name: str) -> Policy:
    """Return the scripted player `name`, one of `SCRIPTS` or random, who plays either side."""
    if name == RANDOM:
        return random_policy(d.duel())
    if name not in SCRIPTS:
        raise unknown("player", name, (*SCRIPTS, RANDOM))
    script = SCRIPTS[name]

    def act(state: Any, timestep: Any, memory: Any, key: Any, greedy: bool) -> Any:
        action = script(timestep.observation).astype(jnp.int32)
        return jnp.where(timestep.legal_actions[..., 1], action, d.STAY), memory, {}

    return Policy(act, lambda n: ())


@functools.cache
def duel_against(opponent: str = "brawler", frames: int = 40) -> Environment:
    """The duel for one agent against a scripted player.

    opponent: brawler, wrestler, keeper, sniper or random. frames: as in `duel`.
    """
    return against(d.duel(frames), player(opponent))
