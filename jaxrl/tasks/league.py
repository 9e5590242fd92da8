"""Whom to play next: a pool of past selves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Array, Policy, Tasks, Transition, Tree, struct

MATCHING = ("uniform", "hard", "even")

WON = "won"  # the environment's metric: 1 for a game won, 0 for one lost


@struct
class Pool:
    opponents: Tree  # [K] states of past selves
    taken: Array  # int32: snapshots so far; from K on the oldest is replaced
    windows: Array  # int32
    won: Array  # float32 [K]: of the recent games against each, decayed
    games: Array  # float32 [K]
    power: Array  # float32


def past_selves(
    params: Callable[[Tree], Tree],
    snapshot: Callable[[Tree], Tree],
    size: int,
    every: int,
    matching: str = "uniform",
    power: float = 2.0,
    memory: float = 0.9,
) -> Tasks:
    """A league: each episode is against one of the last `size` snapshots of the agent itself.

    params(opponent) -> the environment parameters of an episode against that snapshot
    snapshot(state of the policy) -> what the opponent plays by; taken at the start and then every
        `every` windows. A snapshot that an episode is being played against may be replaced by a
        newer one in mid-game, `size * every` windows after it was taken.
    matching: uniform; or by the share p of games that the agent won against each of them (1/2
        where there were none): hard, by (1 - p)^`power`, or even, by p (1 - p) (prioritized
        fictitious self-play: Vinyals et al., 2019, "Grandmaster level in StarCraft II using
        multi-agent reinforcement learning").
    memory: how much games count one window later.

    An id is the opponent's place in the pool. Raises `UserError` for sizes below 1 and a matching
    that does not exist.
    """
    if matching not in MATCHING:
        raise unknown("matching", matching, MATCHING)
    for name, number in (("size", size), ("every", every)):
        if number < 1:
            raise UserError(f"A league's {name} must be at least 1, got {number}.")

    def init(key, policy):
        first = snapshot(policy.state)
        opponents = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], size, 0), first)
        nothing = jnp.zeros(size, jnp.float32)
        return Pool(opponents, jnp.int32(1), jnp.int32(0), nothing, nothing, jnp.float32(power))

    def sample(state, key, n):
        there = jnp.arange(size) < state.taken
        p = (state.won + 0.5) / (state.games + 1.0)  # a half until something is known
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
        # Written as a row: a select over the whole pool would copy it.
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
