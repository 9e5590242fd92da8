"""A pool of opponents whose members and weights are set from outside, such as by a meta-solver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array, Policy, Tasks, Transition, Tree, struct
from jaxrl.tasks.population import OUTCOME

MEMORY = 0.9  # factor by which games count less with each window


@struct
class Opponents:
    """State of a pool of K members. Playing changes only `total` and `games`."""

    members: Tree
    """Parameters that the members play by, leading axis [K]."""
    weights: Array
    """Probability of each member as an episode's opponent: float32 [K]."""
    risk: Array
    """Weight of the variance of payoffs over opponents, against their mean: float32."""
    total: Array
    """Sum of the outcomes of games against each member, the recent ones counting most:
    float32 [K]."""
    games: Array
    """Number of these games, counted alike: float32 [K]."""


@struct
class Meeting:
    """Id of a task: an opponent, and the worth of the game against it."""

    opponent: Array
    """Place of the opponent in the pool: int32."""
    worth: Array
    """Factor of the game's rewards: float32."""


def opponents(members: Tree, weights: Array, risk: Array | float) -> Opponents:
    """Return a pool against which no games have been played."""
    nothing = jnp.zeros(weights.shape, jnp.float32)
    return Opponents(members, weights, jnp.asarray(risk, jnp.float32), nothing, nothing)


def fill(snapshot: Tree, size: int) -> Tree:
    """Return `size` members that all play by `snapshot`."""
    return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], size, 0), snapshot)


def put(members: Tree, place: Array | int, snapshot: Tree) -> Tree:
    """Return the members with `snapshot` at `place`; the others stay as they are."""
    return jax.tree.map(lambda x, new: x.at[place].set(new), members, snapshot)


def next_place(weights: Array, count: Array) -> Array:
    """Return the place of the next member: the first that is free, else that of the least share."""
    return jnp.where(count < weights.size, count, jnp.argmin(weights)).astype(jnp.int32)


def worth(pool: Opponents) -> Array:
    """Return the factor [K] of a game's rewards against each member.

    1 - 2 risk (r_j - r), r_j the mean outcome against member j and r that of the mixture. A policy
    gradient of rewards with these factors is the gradient of the mean outcome minus `risk` times
    its variance over the opponents. All are 1 without risk, and so is that of a member before the
    first game against it.
    """
    mean = pool.total / jnp.maximum(pool.games, 1e-6)
    known = pool.games > 0
    share = jnp.where(known, pool.weights, 0.0)
    average = (share * mean).sum() / jnp.maximum(share.sum(), 1e-6)
    return 1 - 2 * pool.risk * jnp.where(known, mean - average, 0.0)


def pool(params: Callable[[Tree, Array], Tree], first: Callable[[Policy], Opponents]) -> Tasks:
    """Play each episode against a member of a pool, drawn by the pool's weights.

    params: the environment parameters of an episode, from the opponent's parameters and the factor
        of its rewards.
    first: the pool at the start, from the policy that plays.

    Nothing here replaces members or weights: `dataclasses.replace` the state. An episode in
    progress against a member that is replaced would go on against its successor, so the source must
    be started anew (`core.learn.start_source`). The id of a task is a `Meeting`.
    """

    def sample(state: Opponents, key, n):
        drawn = jax.random.categorical(key, jnp.log(state.weights), shape=(n,)).astype(jnp.int32)
        return Meeting(drawn, worth(state)[drawn])

    def update(state: Opponents, policy: Policy, transitions: Transition) -> Opponents:
        meeting: Any = transitions.task
        metrics: Any = transitions.next_timestep.metrics
        ended = transitions.done.astype(jnp.float32)
        size = state.weights.size
        who = meeting.opponent.reshape(-1)
        add = lambda x: jax.ops.segment_sum(x.reshape(-1), who, size)
        return dataclasses.replace(
            state,
            total=MEMORY * state.total + add(ended * metrics[OUTCOME]),
            games=MEMORY * state.games + add(ended),
        )

    return Tasks(
        "pool",
        lambda key, policy, hyper: first(policy),
        sample,
        params=lambda state, task: params(
            jax.tree.map(lambda x: x[task.opponent], state.members), task.worth
        ),
        update=update,
    )
