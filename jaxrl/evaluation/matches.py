"""Games between members of populations: payoffs of all pairs, ratings, and mixtures of members."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

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
    policy: how a member plays; its state is one member, and it has no memory.
    rows, columns: members, with leading axes [A] and [B].
    games: games of each pair, an even number.

    Raises `UserError` for another environment, a policy with memory or an odd number of games.
    """
    _check(env, policy, "cross_play")
    if games < 2 or games % 2:
        raise UserError(
            f"cross_play plays half of the games on each side, so games must be even and at least "
            f"2; it is {games}."
        )
    count = lambda tree: len(jax.tree.leaves(tree)[0])
    shape = (count(rows), count(columns), games)
    row, column, game = (x.reshape(-1) for x in jnp.indices(shape, jnp.int32))
    seats = jnp.stack([row, shape[0] + column], 1)  # columns come after the rows
    swapped = game % 2 == 1
    seats = jnp.where(swapped[:, None], seats[:, ::-1], seats)
    members = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), rows, columns)
    seated = Policy(_play_seats(policy.act), policy.memory, Seated(members, seats))
    returns = evaluate(env, seated, key, seats.shape[0], False).returns
    returns = jnp.where(swapped[:, None], returns[:, ::-1], returns)
    won = (jnp.sign(returns[:, 0] - returns[:, 1]) + 1) / 2
    mean = lambda x: x.reshape(shape).mean(-1)
    return Results(mean(returns[:, 0]), mean(returns[:, 1]), mean(won))


def mixture(env: Environment, policy: Policy, members: Tree, weights: Array) -> Policy:
    """Return the policy that plays a member drawn by `weights` [K].

    Each side of each game draws its own member before its first move and keeps it to the end.
    policy: how a member plays; its state is one member, and it has no memory.

    Raises `UserError` where `cross_play` does.
    """
    _check(env, policy, "mixture")
    nobody = lambda n: jnp.full((n, PLAYERS), UNDRAWN, jnp.int32)
    return Policy(_play_drawn(policy.act), nobody, Mixture(members, weights))


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


def _check(env: Environment, policy: Policy, name: str) -> None:
    channels = shapes(env)
    if channels.role is None or channels.reward.shape != (PLAYERS,):
        raise UserError(f"'{env.name}' is not a game for two players; {name} needs one.")
    if jax.tree.leaves(jax.eval_shape(lambda: policy.memory(1))):
        raise UserError(f"{name} needs a policy without memory, since members take turns.")


def _play(act: Any, members: Tree, places: Array, timestep: Any, key: Key, greedy: bool) -> Any:
    """Return the actions of each game's member, by its place [n] in `members`."""

    def one(place, timestep, key):
        member = jax.tree.map(lambda x: x[place], members)
        alone = jax.tree.map(lambda x: x[None], timestep)
        action = act(member, alone, (), key, greedy)[0]
        return jax.tree.map(lambda x: x[0], action)

    return jax.vmap(one)(places, timestep, jax.random.split(key, len(places)))


@functools.cache
def _play_seats(act: Any) -> Any:
    def play(state: Seated, timestep, memory, key, greedy):
        place = jnp.take_along_axis(state.seats, timestep.role[:, None], 1)[:, 0]
        return _play(act, state.members, place, timestep, key, greedy), memory, {}

    return play


@functools.cache
def _play_drawn(act: Any) -> Any:
    def play(state: Mixture, timestep, memory, key, greedy):
        draw_key, key = jax.random.split(key)
        drawn = jax.random.categorical(draw_key, jnp.log(state.weights), shape=memory.shape)
        memory = jnp.where(memory == UNDRAWN, drawn.astype(jnp.int32), memory)
        place = jnp.take_along_axis(memory, timestep.role[:, None], 1)[:, 0]
        return _play(act, state.members, place, timestep, key, greedy), memory, {}

    return play
