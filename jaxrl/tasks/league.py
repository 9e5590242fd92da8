"""A league: opponents drawn from a pool of past selves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Array, Policy, Tasks, Transition, Tree, struct

MATCHING = ("uniform", "hard", "even")

WON = "won"  # metric of the environment: 1 for a game that was won, 0 for one that was lost


@struct
class Pool:
    """State of a league."""

    opponents: Tree
    """Snapshots of past selves, leading axis [K]."""
    taken: Array
    """Snapshots so far; from K on, each replaces the oldest: int32."""
    windows: Array
    """Windows so far: int32."""
    won: Array
    """Games won against each opponent, the recent ones counting most: float32 [K]."""
    games: Array
    """Games against each opponent, counted alike: float32 [K]."""
    power: Array
    """Exponent of hard matching: float32."""


def past_selves(
    params: Callable[[Tree], Tree],
    snapshot: Callable[[Tree], Tree],
    size: int,
    every: int,
    matching: str = "uniform",
    power: float = 2.0,
    memory: float = 0.9,
) -> Tasks:
    """Play each episode against one of the last `size` snapshots of the agent itself.

    params: the environment parameters of an episode against an opponent, from its snapshot.
    snapshot: the parameters that an opponent plays by, from the state of the policy.
    size: number of snapshots in the pool.
    every: windows between snapshots; the first one is taken at the start. A snapshot may be
        replaced by a newer one in the middle of a game against it, `size * every` windows after it
        was taken.
    matching: how opponents are drawn, where p is the share of games that the agent won against one
        (1/2 before the first game): `uniform`; `hard`, proportional to (1 - p)^`power`; or `even`,
        proportional to p (1 - p). The latter two are prioritized fictitious self-play (Vinyals et
        al., 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning").
    power: exponent of `hard`.
    memory: factor by which games count less with each window.

    The id of a task is the opponent's place in the pool. Raises `UserError` for sizes below 1 and
    an unknown matching.
    """
    if matching not in MATCHING:
        raise unknown("matching", matching, MATCHING)
    for name, number in (("size", size), ("every", every)):
        if number < 1:
            raise UserError(f"A league's {name} must be at least 1, got {number}.")

    def init(key, policy, hyper):
        first = snapshot(policy.state)
        opponents = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], size, 0), first)
        nothing = jnp.zeros(size, jnp.float32)
        return Pool(opponents, jnp.int32(1), jnp.int32(0), nothing, nothing, jnp.float32(power))

    def sample(state, key, n):
        there = jnp.arange(size) < state.taken
        p = (state.won + 0.5) / (state.games + 1.0)  # 1/2 before the first game
        weight = {"uniform": jnp.ones(size), "hard": (1 - p) ** state.power, "even": p * (1 - p)}
        logits = jnp.where(there, jnp.log(weight[matching] + 1e-6), -jnp.inf)
        return jax.random.categorical(key, logits, shape=(n,)).astype(jnp.int32)

    def update(state: Pool, policy: Policy, transitions: Transition) -> Pool:
        ended = transitions.done.astype(jnp.float32)
        who = jax.nn.one_hot(transitions.task, size) * ended[..., None]
        metrics: Any = transitions.next_timestep.metrics
        won = memory * state.won + (who * metrics[WON][..., None]).sum((0, 1))
        games = memory * state.games + who.sum((0, 1))
        windows = state.windows + 1
        place, due = state.taken % size, windows % every == 0
        # Write one row, since a select over the whole pool would copy it.
        put = lambda pool, x: pool.at[place].set(jnp.where(due, x, pool[place]))
        fresh = due & (jnp.arange(size) == place)
        return Pool(
            jax.tree.map(put, state.opponents, snapshot(policy.state)),
            state.taken + due,
            windows,
            jnp.where(fresh, 0.0, won),
            jnp.where(fresh, 0.0, games),
            state.power,
        )

    return Tasks(
        f"past_selves({size})",
        init,
        sample,
        params=lambda state, task: params(jax.tree.map(lambda x: x[task], state.opponents)),
        update=update,
    )
