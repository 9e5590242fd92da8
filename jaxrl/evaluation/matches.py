"""Games between members of populations: payoffs of all pairs, ratings, and mixtures of members."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy, Tree, struct
from jaxrl.envs.games.rules import PLAYERS
from jaxrl.envs.wrappers.lifting import shapes
from jaxrl.evaluation.evaluate import evaluate

SCALE = 400.0  # points for which the odds of winning are 10 to 1
UNDRAWN = -1  # a side that has not drawn its member


@struct
class Results:
    """Mean results of each row's member against each column's, all float32 [A, B]."""

    row: Array
    """Return of the row's member."""
    column: Array
    """Return of the column's member."""
    won: Array
    """Share of games that the row's member won, where a draw counts as half a game."""


@struct
class Sides:
    """Memory of those who play a mixture: who plays, and what it remembers."""

    member: Array  # int32 [n, 2]: the member that plays each side
    memory: Tree  # [n, 2]


@struct
class Seated:
    """Members of a population, and who plays the sides of each game."""

    members: Tree  # leading axis [K]
    seats: Array  # int32 [n, 2]: the member that plays each side


@struct
class Mixture:
    """Members of a population, and the probability of each."""

    members: Tree  # leading axis [K]
    weights: Array  # float32 [K]


def cross_play(
    env: Environment, policy: Policy, rows: Tree, columns: Tree, *, key: Key, games: int
) -> Results:
    """Play `games` games of each member in `rows` against each in `columns`, half on each side.

    env: a game for two players who move in turn.
    policy: how a member plays; its state is one member. Each side has a memory of its own.
    rows, columns: members, with leading axes [A] and [B].
    games: games of each pair, an even number.

    Raises `UserError` for another environment or an odd number of games.
    """
    _check(env, "cross_play")
    count = lambda tree: len(jax.tree.leaves(tree)[0])
    members = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), rows, columns)
    memory, act = two_memories(policy.memory), _play_seats(policy.act)
    seated = lambda seats: Policy(act, memory, Seated(members, seats))
    # In the members, columns come after the rows.
    return _play_pairs(env, seated, count(rows), count(columns), count(rows), key, games)


def tournament(env: Environment, players: Mapping[str, Policy], *, key: Key, games: int) -> Results:
    """Play `games` games of each player against each, itself included, half on each side.

    env: a game for two players who move in turn.
    players: by name, in the order of the rows and columns. They may be of different kinds, such as
        trained and scripted ones; each must be able to play both sides.
    games: games of each pair, an even number.

    Raises `UserError` where `cross_play` does.
    """
    _check(env, "tournament")
    policies = tuple(players.values())
    act = _play_any(tuple(policy.act for policy in policies))
    memories = _all_memories(tuple(policy.memory for policy in policies))
    states = tuple(policy.state for policy in policies)
    seated = lambda seats: Policy(act, memories, Seated(states, seats))
    return _play_pairs(env, seated, len(policies), len(policies), 0, key, games)


def ratings(results: Results, games: int) -> Array:
    """Return the `elo` [K] of the players of a tournament."""
    played = games * (1 - jnp.eye(len(results.won)))
    return elo(results.won * played, played)


def _play_pairs(
    env: Environment,
    seated: Callable[[Array], Policy],
    rows: int,
    columns: int,
    first_column: int,
    key: Key,
    games: int,
) -> Results:
    """Play `games` games of each of so many rows against each column, half on each side.

    seated: the policy that plays the seats [n, 2], each a row or a column's number.
    first_column: number of the first column.
    """
    if games < 2 or games % 2:
        raise UserError(
            f"Half of the games are played on each side, so games must be even and at least 2; "
            f"it is {games}."
        )
    shape = (rows, columns, games)
    row, column, game = (x.reshape(-1) for x in jnp.indices(shape, jnp.int32))
    seats = jnp.stack([row, first_column + column], 1)
    swapped = game % 2 == 1
    seats = jnp.where(swapped[:, None], seats[:, ::-1], seats)
    returns = evaluate(env, seated(seats), key, seats.shape[0], False).returns
    returns = jnp.where(swapped[:, None], returns[:, ::-1], returns)
    won = (jnp.sign(returns[:, 0] - returns[:, 1]) + 1) / 2
    mean = lambda x: x.reshape(shape).mean(-1)
    return Results(mean(returns[:, 0]), mean(returns[:, 1]), mean(won))


def mixture(env: Environment, policy: Policy, members: Tree, weights: Array) -> Policy:
    """Return the policy that plays a member drawn by `weights` [K].

    Each side of each game draws its own member before its first move and keeps it to the end.
    policy: how a member plays; its state is one member.

    Raises `UserError` for an environment that is no game for two.
    """
    _check(env, "mixture")
    return Policy(_play_drawn(policy.act), undrawn(policy.memory), Mixture(members, weights))


@functools.cache
def undrawn(memory: Callable[[int], Tree]) -> Callable[[int], Sides]:
    """Return the memory of players who are yet to be drawn; `memory` is that of one of them."""
    blank = two_memories(memory)
    return lambda n: Sides(jnp.full((n, PLAYERS), UNDRAWN, jnp.int32), blank(n))


def draw(sides: Sides, weights: Array, role: Array, key: Key) -> tuple[Sides, Array]:
    """Draw the members of the sides that have none, by `weights` [K]. Return the sides, and the
    member [n] that plays the side `role` [n]."""
    drawn = jax.random.categorical(key, jnp.log(weights), shape=sides.member.shape)
    member = jnp.where(sides.member == UNDRAWN, drawn.astype(jnp.int32), sides.member)
    place = jnp.take_along_axis(member, role[:, None], 1)[:, 0]
    return dataclasses.replace(sides, member=member), place


@functools.cache
def two_memories(memory: Callable[[int], Tree]) -> Callable[[int], Tree]:
    """Return the memory [n, 2] of two players, one for each side, from that of one [n]."""
    split = lambda x: x.reshape(-1, PLAYERS, *x.shape[1:])
    return lambda n: jax.tree.map(split, memory(PLAYERS * n))


def memory_of(memory: Tree, role: Array) -> Tree:
    """Return the memory [n] of the side `role` [n] from those of both sides [n, 2]."""
    return jax.tree.map(lambda x: x[jnp.arange(len(role)), role], memory)


def with_memory_of(memory: Tree, role: Array, new: Tree) -> Tree:
    """Return the memories [n, 2] with `new` [n] for the side `role` [n]."""
    return jax.tree.map(lambda x, y: x.at[jnp.arange(len(role)), role].set(y), memory, new)


@functools.cache
def remembering_sides(act: Any) -> Any:
    """Return `act` of a policy that plays both sides of a game, with memories [n, 2]."""

    def play(state, timestep, memory, key, greedy):
        own = memory_of(memory, timestep.role)
        action, own, extras = act(state, timestep, own, key, greedy)
        return action, with_memory_of(memory, timestep.role, own), extras

    return play


def both_sides(policy: Policy) -> Policy:
    """Return the policy that plays both sides of a game as `policy`, with a memory for each."""
    if not jax.tree.leaves(jax.eval_shape(lambda: policy.memory(1))):
        return policy
    return Policy(remembering_sides(policy.act), two_memories(policy.memory), policy.state)


def elo(won: Array, games: Array, prior: float = 0.5, iterations: int = 50) -> Array:
    """Return the ratings [K] with which the results are likeliest, 0 on average.

    The odds that i wins against j are 10^((rating_i - rating_j) / 400), so that this is the
    Bradley-Terry model. Ratings do not tell apart who beats whom in a circle.

    won: [K, K], games that row i won against j, where a draw counts as half a game.
    games: [K, K], games of each pair.
    prior: games that each pair is taken to have drawn besides, so that no rating is infinite.
    iterations: steps of Newton's method.
    Source: Elo, 1978, "The rating of chessplayers, past and present"; Bradley and Terry, 1952,
    "Rank analysis of incomplete block designs".
    """
    size = len(games)
    others = 1 - jnp.eye(size)
    games = (games + prior) * others
    won = (won + prior / 2) * others

    def step(rating, _):
        chance = jax.nn.sigmoid(rating[:, None] - rating)
        slope = (won - games * chance).sum(1)
        weight = games * chance * (1 - chance)
        # The likelihood is flat along a common shift, which the added constant pins.
        curvature = jnp.diag(weight.sum(1)) - weight + weight.mean() + 1e-6
        change = jnp.linalg.solve(curvature, slope)
        return rating + jnp.clip(change, -1, 1), None

    rating, _ = jax.lax.scan(step, jnp.zeros(size), None, iterations)
    return SCALE / jnp.log(10.0) * (rating - rating.mean())


def _check(env: Environment, name: str) -> None:
    channels = shapes(env)
    if channels.role is None or channels.reward.shape != (PLAYERS,):
        raise UserError(f"'{env.name}' is not a game for two players; {name} needs one.")


def _play(
    act: Any, members: Tree, places: Array, timestep: Any, memory: Tree, key: Key, greedy: bool
) -> tuple[Any, Tree]:
    """Return the actions of each game's member, by its place [n] in `members`, and the memories
    [n, 2] after it."""

    def one(place, timestep, own, key):
        member = jax.tree.map(lambda x: x[place], members)
        timestep, own = jax.tree.map(lambda x: x[None], (timestep, own))
        action, own, _ = act(member, timestep, own, key, greedy)
        return jax.tree.map(lambda x: x[0], (action, own))

    own = memory_of(memory, timestep.role)
    keys = jax.random.split(key, len(places))
    action, own = jax.vmap(one)(places, timestep, own, keys)
    return action, with_memory_of(memory, timestep.role, own)


@functools.cache
def _play_seats(act: Any) -> Any:
    def play(state: Seated, timestep, memory, key, greedy):
        place = jnp.take_along_axis(state.seats, timestep.role[:, None], 1)[:, 0]
        return *_play(act, state.members, place, timestep, memory, key, greedy), {}

    return play


@functools.cache
def _play_any(acts: tuple[Any, ...]) -> Any:
    def play(state: Seated, timestep, memory, key, greedy):
        place = jnp.take_along_axis(state.seats, timestep.role[:, None], 1)[:, 0]
        chosen, after = jnp.zeros(place.shape, jnp.int32), []
        for i, act in enumerate(acts):  # each in all games, of which its own count
            own_key = jax.random.fold_in(key, i)
            action, new, _ = act(state.members[i], timestep, memory[i], own_key, greedy)
            chosen = jnp.where(place == i, action, chosen)
            after.append(trees.where(place == i, new, memory[i]))
        return chosen, tuple(after), {}

    return play


@functools.cache
def _all_memories(memories: tuple[Callable[[int], Tree], ...]) -> Callable[[int], Tree]:
    return lambda n: tuple(memory(n) for memory in memories)


@functools.cache
def _play_drawn(act: Any) -> Any:
    def play(state: Mixture, timestep, memory: Sides, key, greedy):
        draw_key, key = jax.random.split(key)
        memory, place = draw(memory, state.weights, timestep.role, draw_key)
        action, inner = _play(act, state.members, place, timestep, memory.memory, key, greedy)
        return action, dataclasses.replace(memory, memory=inner), {}

    return play
