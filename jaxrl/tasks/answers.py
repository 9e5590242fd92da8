"""Past selves as opponents, drawn by a mixture that a meta-solver computes from their games."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Policy, Tasks, Transition, Tree, struct
from jaxrl.tasks.league import WON
from jaxrl.tasks.pool import fill, next_place, put


class Solve(Protocol):
    def __call__(self, payoff: Array, mask: Array, /) -> Array:
        """Return a mixture [K] over the members in the mask.

        payoff: float32 [K, K], antisymmetric: share of games that a row's member won against a
            column's, minus the share that it lost.
        mask: bool [K], the members that exist.
        """
        ...


@struct
class Answers:
    """State of a population of at most K past selves."""

    members: Tree
    """Parameters that the members play by, leading axis [K]."""
    payoff: Array
    """Games won minus games lost of each member (row) against each other, as shares of all:
    float32 [K, K]; 0 where two never met."""
    weights: Array
    """Mixture over the members that the agent answers: float32 [K]."""
    count: Array
    """Members that exist: int32."""
    windows: Array
    """Windows since the last snapshot: int32."""
    total: Array
    """Games that the agent has won minus those that it lost against each member since the last
    snapshot, the recent ones counting most: float32 [K]."""
    games: Array
    """Games against each member, counted alike: float32 [K]."""


def past_answers(
    params: Callable[[Tree], Tree],
    snapshot: Callable[[Tree], Tree],
    solve: Solve,
    size: int,
    *,
    shortest: int,
    longest: int,
    enough: float,
    exploration: float = 0.1,
    memory: float = 0.9,
) -> Tasks:
    """Play against a mixture of past selves until it is beaten; then the agent joins them.

    These are the iterations of policy space response oracles (Lanctot et al., 2017,
    arXiv:1711.00832) in one run that never starts anew: an answer goes on from the last one, and
    payoffs are those of the games that it was trained by. A snapshot is taken at the start, then
    whenever the agent has won the share `enough` of the games against the mixture, a draw counting
    as half a game, or after `longest` windows. When the population is full, it takes the place of
    the member with the least weight.

    params: the environment parameters of an episode against an opponent, from its snapshot.
    snapshot: the parameters that an opponent plays by, from the state of the policy.
    solve: the mixture, from the payoffs.
    size: largest number of members.
    shortest, longest: least and largest number of windows between two snapshots.
    exploration: share of opponents drawn uniformly, so that every payoff is estimated.
    memory: factor by which games count less with each window.

    The id of a task is the opponent's place. An episode against a member that is replaced goes on
    against its successor. Raises `UserError` for a size below 1 and for windows out of order.
    """
    if size < 1:
        raise UserError(f"The size of a population must be at least 1, got {size}.")
    if not 1 <= shortest <= longest:
        raise UserError(
            f"The shortest and longest number of windows must be in order from 1 up, got "
            f"{shortest} and {longest}."
        )
    places = jnp.arange(size)

    def init(key, policy, hyper):
        nothing = jnp.zeros(size, jnp.float32)
        one, zero = jnp.int32(1), jnp.int32(0)
        payoff = jnp.zeros((size, size), jnp.float32)
        members = fill(snapshot(policy.state), size)
        return Answers(members, payoff, nothing.at[0].set(1.0), one, zero, nothing, nothing)

    def sample(state: Answers, key, n):
        there = places < state.count
        weights = (1 - exploration) * state.weights + exploration * there / state.count
        return jax.random.categorical(key, jnp.log(weights), shape=(n,)).astype(jnp.int32)

    def update(state: Answers, policy: Policy, transitions: Transition) -> Answers:
        ended = transitions.done.astype(jnp.float32)
        who = jax.nn.one_hot(transitions.task, size) * ended[..., None]
        lead = 2 * transitions.next_timestep.metrics[WON] - 1  # type: ignore[index]
        total = memory * state.total + (who * lead[..., None]).sum((0, 1))
        games = memory * state.games + who.sum((0, 1))
        mean, windows = total / jnp.maximum(games, 1e-6), state.windows + 1
        beaten = (state.weights * mean).sum() >= 2 * enough - 1
        due = ((windows >= shortest) & beaten) | (windows >= longest)
        place = next_place(state.weights, state.count)
        count = jnp.minimum(state.count + 1, size)
        own = places == place
        row = jnp.where((places < state.count) & ~own, mean, 0.0)
        payoff = state.payoff.at[place].set(row).at[:, place].set(-row)
        weights = solve(payoff, places < count).astype(jnp.float32)
        pick = lambda new, old: jnp.where(due, new, old)
        # Write one row, since a select over the whole population would copy it.
        old = jax.tree.map(lambda x: x[place], state.members)
        new = jax.tree.map(pick, snapshot(policy.state), old)
        return Answers(
            put(state.members, place, new),
            pick(payoff, state.payoff),
            pick(weights, state.weights),
            pick(count, state.count),
            pick(0, windows),
            pick(0.0, total),
            pick(0.0, games),
        )

    return Tasks(
        f"past_answers({size})",
        init,
        sample,
        params=lambda state, task: params(jax.tree.map(lambda x: x[task], state.members)),
        update=update,
    )
