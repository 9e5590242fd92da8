"""Prisoner's dilemmas on a network, whose governor decides what each player sees.

`players` play the prisoner's dilemma with each of their neighbors, again and again, on a graph that
is drawn with each episode: each pair are neighbors with probability `density`, and those next to
each other on a ring always. The agent is the governor. It changes neither payoffs nor who plays
whom; in each round it decides for each player whether it is shown what each neighbor did to it in
the last round, and whether it is shown how many of all its neighbors' last moves were cooperation.

Players have memory of their own last move alone, and a disposition, drawn with the episode: a
reciprocator repeats what the neighbor did, one that stays after a win cooperates if both did the
same, a grim one cooperates if both cooperated. That is what a player wants with a neighbor whose
last move it sees; otherwise it wants to cooperate with probability `prior`. Shown the share of
cooperation around it, it follows that with probability `conformity`, and cooperates with the
share's probability. Each move is turned around with probability `noise`. The first round is played
without information.

Action: 2 `players` choices of 0 or 1 (hide, show), for the last moves first, then for the shares.
Reward: the mean payoff of a player in a game, 3 where both cooperate, 1 where both defect, 5 and 0
otherwise. Observation, float32 [4 players + 1]: for each player the share of neighbors that
cooperated with it, the share it cooperated with, the mean of the latter over all rounds with
weights that halve in about three rounds, and the share of others that are neighbors; then the share
of rounds that are over. Dispositions are hidden. Time limit: `rounds`. Metric `cooperation`: the
share of moves of the last round; score: its mean over the episode, `mean_cooperation`.

Made for Chen et al., 2024, "Instigating cooperation among LLM agents using adaptive information
modulation", arXiv:2409.10372, whose idea this is: fixed interactions, a governor trained by an
actor-critic on the sum of rewards, and tiers of information, the last actions and rates of the
neighborhood among them. There the players are language models; these dispositions, the numbers and
the payoffs are a choice of ours, so its results say nothing of language models.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, MultiDiscrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, struct
from jaxrl.envs import drawing, timesteps
from jaxrl.envs.options import at_least
from jaxrl.envs.wrappers.time_limit import time_limit

# Cooperation after own and other's last move, 1 for cooperation: [disposition, own, other].
WANTS = np.array([[[0, 1], [0, 1]], [[1, 0], [0, 1]], [[0, 0], [0, 1]]], np.float32)
PAYOFF = np.array([[1.0, 5.0], [0.0, 3.0]], np.float32)  # [own, other]
FADE = 0.8  # of the mean over past rounds, in a round


@struct
class Params:
    """Parameters of the governed dilemma."""

    density: float = 0.3  # probability that a pair not next to each other are neighbors
    prior: float = 0.5  # probability of wanting to cooperate without information
    conformity: float = 0.3  # of following the share of cooperation that is shown
    noise: float = 0.03  # of a move that is turned around


@struct
class State:
    """State of the network of `N` players."""

    neighbors: Array  # bool [N, N]
    disposition: Array  # int32 [N]
    moves: Array  # float32 [N, N]: 1 where a row cooperated with a column, its neighbor
    habit: Array  # float32 [N]
    total: Array  # float32: sum of the shares of cooperation
    round: Array  # int32


def cooperation(state: State) -> Array:
    """Return the share of the last moves that were cooperation."""
    return (state.moves * state.neighbors).sum() / state.neighbors.sum()


def intentions(state: State, shows_last: Array, shows_share: Array, params: Params) -> Array:
    """Return the probability that a row cooperates with a column, [N, N], errors included.

    shows_last, shows_share: bool [N], what each player is shown.
    """
    own, other = state.moves.astype(jnp.int32), state.moves.T.astype(jnp.int32)
    memory = jnp.asarray(WANTS)[state.disposition[:, None], own, other]
    wants = jnp.where(shows_last[:, None], memory, params.prior)
    games = state.neighbors.sum(1)
    given = (state.moves * state.neighbors).sum(1)
    share = (state.neighbors @ given) / (state.neighbors @ games)
    follows = (1 - params.conformity) * wants + params.conformity * share[:, None]
    wants = jnp.where(shows_share[:, None], follows, wants)
    return wants * (1 - 2 * params.noise) + params.noise


@functools.cache
def governed_dilemma(players: int = 8, rounds: int = 50) -> Environment:
    """The dilemma of at least 3 `players`, limited to `rounds`. Raises `UserError` for fewer."""
    name = "governed_dilemma"
    at_least(name, "players", players, 3)
    at_least(name, "rounds", rounds, 1)
    ring = np.eye(players, k=1) + np.eye(players, k=1 - players)
    ring = (ring + ring.T).astype(bool)

    def play(key: Key, state: State, chance: Array) -> State:
        """Play a round with the given chances of cooperation."""
        moves = jax.random.bernoulli(key, chance).astype(jnp.float32) * state.neighbors
        given = moves.sum(1) / state.neighbors.sum(1)
        habit = jnp.where(state.round > 0, FADE * state.habit + (1 - FADE) * given, given)
        state = State(
            state.neighbors, state.disposition, moves, habit, state.total, state.round + 1
        )
        total = state.total + cooperation(state)
        return State(state.neighbors, state.disposition, moves, habit, total, state.round)

    def see(state: State) -> tuple[Array, dict]:
        games = state.neighbors.sum(1)
        mine = jnp.stack([
            (state.moves * state.neighbors).sum(0) / games,
            (state.moves * state.neighbors).sum(1) / games,
            state.habit,
            games / (players - 1),
        ])  # fmt: skip
        seen = jnp.append(mine.T.reshape(-1), jnp.minimum((state.round - 1) / rounds, 1.0))
        metrics = {
            "cooperation": cooperation(state),
            "mean_cooperation": state.total / state.round,
        }
        return seen.astype(jnp.float32), {"metrics": metrics}

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        graph_key, kind_key, move_key = jax.random.split(key, 3)
        upper = jnp.triu(jax.random.bernoulli(graph_key, params.density, (players, players)), 1)
        neighbors = jnp.asarray(ring) | upper | upper.T
        kind = jax.random.randint(kind_key, (players,), 0, len(WANTS))
        none, nothing = jnp.zeros(players), jnp.zeros(players, bool)
        blank = jnp.zeros((players, players))
        state = State(neighbors, kind, blank, none, jnp.zeros(()), jnp.zeros((), jnp.int32))
        state = play(move_key, state, intentions(state, nothing, nothing, params))
        seen, more = see(state)
        return state, timesteps.first(seen, **more)

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        shown = action.astype(bool)
        state = play(key, state, intentions(state, shown[:players], shown[players:], params))
        own, other = state.moves.astype(jnp.int32), state.moves.T.astype(jnp.int32)
        payoff = jnp.asarray(PAYOFF)[own, other] * state.neighbors
        seen, more = see(state)
        return state, timesteps.following(seen, payoff.sum() / state.neighbors.sum(), **more)

    env = Environment(
        name=name,
        reset=reset,
        step=step,
        params=Params(),
        observation_space=Box(0.0, 1.0, (4 * players + 1,)),
        action_space=MultiDiscrete((2,) * (2 * players)),
        scores={"cooperation": "mean_cooperation"},
        render=_draw,
    )
    return time_limit(env, rounds)


def _draw(state: State, params: Params) -> np.ndarray:
    """Draw the players on a circle, greener the more they cooperated, and games as lines: green
    where both cooperated, red where both defected, orange otherwise."""
    canvas = drawing.Canvas(320, 320, scale=1.0, origin=(160, 160))
    moves, neighbors = np.asarray(state.moves), np.asarray(state.neighbors)
    count = len(moves)
    angle = 2 * np.pi * np.arange(count) / count
    place = 125 * np.stack([np.sin(angle), np.cos(angle)], 1)
    colors = (drawing.RED, drawing.ORANGE, drawing.GREEN)
    for i in range(count):
        for j in range(i):
            if neighbors[i, j]:
                ends = [tuple(place[i]), tuple(place[j])]
                canvas.line(ends, colors[int(moves[i, j] + moves[j, i])], 3.0)
    for i, at in enumerate(place):
        share = (moves[i] * neighbors[i]).sum() / neighbors[i].sum()
        mixed = [
            int(share * g + (1 - share) * r) for g, r in zip(colors[2], colors[0], strict=True)
        ]
        canvas.circle(tuple(at), 16.0, drawing.INK)
        canvas.circle(tuple(at), 13.0, (int(mixed[0]), int(mixed[1]), int(mixed[2])))
    return canvas.frame()
