"""Deal or no deal: two players divide books, hats and balls, and each knows only its own values.

There are one to `largest` pieces of each of three kinds, `fewest` to `most` in all. All pieces are
worth 10 points to each player, by its own integer values. Every kind is worth something to someone,
and some kind to both (Lewis et al., 2017, "Deal or no deal? End-to-end learning for negotiation
dialogues", arXiv:1706.05125). All such scenarios are equally likely.

The players speak in turn, in coarse dialogue acts instead of sentences (He et al., 2018), as in the
experiments of Kwon et al. (2021, "Targeted Data Acquisition for Evolving Negotiation Agents",
arXiv:2106.07728): propose a division, insist on one's last proposal, agree, disagree, or end the
talk. After an end, or after `turns` acts, each of them names the pieces that it takes, without
seeing the other's choice, or says that there is no deal. If the two divide all the pieces, both are
paid what theirs are worth, in units of 10 points; else nothing.

Actions: with L = largest + 1, a L^2 + b L + c proposes to take a books, b hats and c balls, and
names these pieces after the talk; L^3 insists, and L^3 + 1 to L^3 + 3 agree, disagree and end.
After the talk, disagree says that there is no deal. Legal: the first act is a proposal; proposals
are possible and not one's last one, which is what insisting is for; one agrees to what was proposed
or insisted on just before.

Observation: float32 in [0, 1], of the mover, see `Seen`. It holds the whole talk so far.
`privileged["talking"]`: bool, whether the mover speaks instead of naming pieces.

Metrics, at the end: `agreement`, 1 for a deal; `joint_utility`, the sum of both payments; `pareto`,
1 for a deal that no division dominates, so the mean of `pareto` over that of `agreement` is the
share of Pareto-optimal deals.

The expert sees both players' values (`advise`). Scripted players who do not are in
`deal_or_no_deal_players`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import drawing
from jaxrl.envs.games.rules import PLAYERS, Rules, environment, one_hot

NAME = "deal_or_no_deal"
KINDS = 3
POINTS = 10
LARGEST = 4  # the most pieces of a kind that there can be
NOTHING = -1  # where nothing is said yet, and the turn at which an open talk ended
INSIST, AGREE, DISAGREE, END = range(4)  # acts beyond the proposals
ACTS = 4
PATIENCE = 3  # offers after which the expert proposes the Nash bargaining solution


@struct
class State:
    """Negotiation in progress.

    counts: int32 [3], pieces of each kind. values: int32 [2, 3], of a piece to each player.
    said: int32 [turns + 2], actions so far, then NOTHING. turn: int32, number of actions so far.
    closed: int32, number of acts in the talk, NOTHING while it goes on.
    """

    counts: Any
    values: Any
    said: Any
    turn: Any
    closed: Any


@struct
class Seen:
    """Knowledge of the mover, as it is laid out in an observation; piece counts are one-hot there.

    counts: int32 [3], pieces of each kind. values: int32 [3], of a piece to the mover.
    own, other: int32 [3], pieces that the mover would have by its own last proposal and by the
        other's; only where `has_own` and `has_other`, bool [].
    last: int32 [], the last act, INSIST to END, or ACTS for a proposal; NOTHING before the first.
    open: bool [], whether the last proposal or insistence is the other's. accepted: bool [],
        whether the one to whom it was made agreed or ended the talk, and nobody disagreed since.
    talking: bool []. turn: int32 [].
    history: int32 [turns], the acts so far, as `last`; pieces: int32 [turns, 3], what the mover
        would have by each proposal; only where there was one.
    """

    counts: Array
    values: Array
    own: Array
    has_own: Array
    other: Array
    has_other: Array
    last: Array
    open: Array
    accepted: Array
    talking: Array
    turn: Array
    history: Array
    pieces: Array


@functools.cache
def divisions(largest: int) -> np.ndarray:
    """Return the pieces that one player may take, int32 [S, 3], with up to `largest` of a kind."""
    return np.asarray(list(itertools.product(range(largest + 1), repeat=KINDS)), np.int32)


def take(largest: int, pieces: Array) -> Array:
    """Return the action that proposes to take `pieces` [..., 3]."""
    size = largest + 1
    return jnp.asarray((pieces[..., 0] * size + pieces[..., 1]) * size + pieces[..., 2], jnp.int32)


def is_dominated(mine: Array, theirs: Array, possible: Array) -> Array:
    """Return which divisions another one dominates, bool [S]: it gives nobody less, and somebody
    more.

    mine, theirs: points of each division, int32 [S]; up to POINTS where it is possible.
    possible: bool [S].
    """
    points = jnp.arange(POINTS + 2)
    # The most that the other gets by a division that gives the mover at least so many points.
    enough = possible & (mine >= points[:, None])
    most = jnp.where(enough, theirs, -1).max(-1)
    at = jnp.clip(mine, 0, POINTS)
    return (theirs < most[at]) | (theirs <= most[at + 1])


def is_pareto(counts: Array, values: Array, pieces: Array) -> Array:
    """Return whether no division dominates the one that gives player 0 `pieces` [3], bool [].

    counts: int32 [3]. values: int32 [2, 3].
    """
    table = jnp.asarray(divisions(LARGEST))
    mine, theirs = table @ values[0], (counts - table) @ values[1]
    possible = (table <= counts).all(-1)
    return ~is_dominated(mine, theirs, possible)[take(LARGEST, pieces)]


@functools.cache
def scenarios(fewest: int, most: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts, int32 [D, 3], and values, int32 [D, 2, 3], of all scenarios."""
    counts, values = [], []
    for pieces in itertools.product(range(1, largest + 1), repeat=KINDS):
        if not fewest <= sum(pieces) <= most:
            continue
        worth = [
            v
            for v in itertools.product(range(POINTS + 1), repeat=KINDS)
            if np.dot(v, pieces) == POINTS
        ]
        for pair in itertools.product(worth, repeat=PLAYERS):
            mine, theirs = np.asarray(pair) > 0
            if (mine | theirs).all() and (mine & theirs).any():
                counts.append(pieces)
                values.append(pair)
    return np.asarray(counts, np.int32), np.asarray(values, np.int32)


def _mover(state: State) -> Array:
    return jnp.asarray(state.turn % PLAYERS, jnp.int32)


def act_kinds(said: Array, largest: int) -> Array:
    """Return the kinds of actions: INSIST to END, ACTS for proposals, and NOTHING."""
    proposals = len(divisions(largest))
    kind = jnp.where(said >= proposals, said - proposals, ACTS)
    return jnp.where(said == NOTHING, NOTHING, kind)


def see(state: State, largest: int, player: Array | None = None) -> Seen:
    """Return what a player knows; by default the mover."""
    player = _mover(state) if player is None else player
    table, turns = jnp.asarray(divisions(largest)), len(state.said) - PLAYERS
    said, place = state.said[:turns], jnp.arange(turns)
    talked = place < jnp.where(state.closed == NOTHING, state.turn, state.closed)
    said = jnp.where(talked, said, NOTHING)
    kind = act_kinds(said, largest)
    mine = place % PLAYERS == player
    # An insistence stands for the last proposal of who insists.
    claim = table[jnp.clip(said, 0, len(table) - 1)]
    seen = jnp.where(mine[:, None], claim, state.counts - claim)
    latest = lambda mask: jnp.where(mask, place, NOTHING).max()
    own_place, other_place = latest((kind == ACTS) & mine), latest((kind == ACTS) & ~mine)
    offer = latest((kind == ACTS) | (kind == INSIST))
    answer = kind[jnp.minimum(offer + 1, turns - 1)]
    answered = (offer + 1 < turns) & ((answer == AGREE) | (answer == END))
    refused = ((kind == DISAGREE) & (place > offer)).any()
    return Seen(
        counts=jnp.asarray(state.counts),
        values=jnp.asarray(state.values)[player],
        own=seen[own_place],
        has_own=own_place != NOTHING,
        other=seen[other_place],
        has_other=other_place != NOTHING,
        last=jnp.where(state.turn > 0, kind[jnp.clip(state.turn - 1, 0, turns - 1)], NOTHING),
        open=(offer != NOTHING) & ~mine[offer],
        accepted=(offer != NOTHING) & answered & ~refused,
        talking=state.closed == NOTHING,
        turn=jnp.asarray(state.turn, jnp.int32),
        history=kind,
        pieces=jnp.where((kind == ACTS)[:, None], seen, 0),
    )


def write_observation(seen: Seen, largest: int) -> Array:
    """Lay out what the mover knows, float32 [F]."""
    turns, size = len(seen.history), largest + 1
    spread = lambda pieces, there: jax.nn.one_hot(pieces, size).reshape(-1) * there
    flags = (seen.has_own, seen.has_other, seen.open, seen.accepted, seen.talking)
    return jnp.concatenate(
        [
            jax.nn.one_hot(seen.counts - 1, largest).reshape(-1),
            seen.values / POINTS,
            spread(seen.own, seen.has_own),
            spread(seen.other, seen.has_other),
            jnp.stack(flags).astype(jnp.float32),
            one_hot(seen.last, ACTS + 1),
            one_hot(seen.turn, turns + PLAYERS),
            jax.nn.one_hot(seen.history, ACTS + 1).reshape(-1),
            seen.pieces.reshape(-1) / largest,
        ]
    ).astype(jnp.float32)


def read_observation(observation: Array, largest: int, turns: int) -> Seen:
    """Undo `write_observation`."""
    size = largest + 1
    sizes = (
        KINDS * largest, KINDS, KINDS * size, KINDS * size, 5, ACTS + 1, turns + PLAYERS,
        turns * (ACTS + 1), turns * KINDS,
    )  # fmt: skip
    places = np.cumsum(sizes)[:-1]
    counts, values, own, other, flags, last, turn, history, pieces = jnp.split(observation, places)
    whole = lambda x: jnp.round(x).astype(jnp.int32)
    pick = lambda x, shape: x.reshape(shape).argmax(-1).astype(jnp.int32)
    or_nothing = lambda hot: jnp.where(hot.any(-1), hot.argmax(-1), NOTHING).astype(jnp.int32)
    has_own, has_other, offered, accepted, talking = flags > 0.5
    return Seen(
        counts=pick(counts, (KINDS, largest)) + 1,
        values=whole(values * POINTS),
        own=pick(own, (KINDS, size)),
        has_own=has_own,
        other=pick(other, (KINDS, size)),
        has_other=has_other,
        last=or_nothing(last),
        open=offered,
        accepted=accepted,
        talking=talking,
        turn=turn.argmax().astype(jnp.int32),
        history=or_nothing(history.reshape(turns, -1)),
        pieces=whole(pieces.reshape(turns, KINDS) * largest),
    )


def legal_actions(seen: Seen, largest: int) -> Array:
    """Return the legal actions of the mover, bool [S + 4]."""
    table = jnp.asarray(divisions(largest))
    possible = (table <= seen.counts).all(-1)
    again = seen.has_own & (table == seen.own).all(-1)
    offered = seen.open & ((seen.last == ACTS) | (seen.last == INSIST))
    begun = seen.turn > 0
    talk = jnp.concatenate([possible & ~again, jnp.stack([seen.has_own, offered, begun, begun])])
    name = jnp.concatenate([possible, jnp.arange(ACTS) == DISAGREE])
    return jnp.where(seen.talking, talk, name)


def _play(state: State, action: Array, turns: int, largest: int) -> State:
    end = len(divisions(largest)) + END
    closes = (state.closed == NOTHING) & ((action == end) | (state.turn + 1 >= turns))
    here = jnp.arange(turns + PLAYERS) == state.turn
    return State(
        state.counts,
        state.values,
        jnp.where(here, action, state.said).astype(jnp.int32),
        state.turn + 1,
        jnp.where(closes, state.turn + 1, state.closed).astype(jnp.int32),
    )


def _over(state: State) -> Array:
    return (state.closed != NOTHING) & (state.turn >= state.closed + PLAYERS)


def shares(state: State, largest: int) -> tuple[Array, Array]:
    """Return the pieces that each player named, int32 [2, 3], and whether they are a deal, bool [];
    meaningless before the end."""
    table = jnp.asarray(divisions(largest))
    named = state.said[jnp.clip(state.closed + jnp.arange(PLAYERS), 0, len(state.said) - 1)]
    # The first to name pieces is the one whose turn it is when the talk is over.
    by_player = jnp.where(state.closed % PLAYERS == 0, named, named[::-1])
    pieces = table[jnp.clip(by_player, 0, len(table) - 1)]
    agreed = ((by_player >= 0) & (by_player < len(table))).all()
    return pieces, agreed & (pieces.sum(0) == state.counts).all()


def _payoff(state: State, largest: int) -> Array:
    pieces, deal = shares(state, largest)
    return jnp.where(deal, (pieces * state.values).sum(-1) / POINTS, 0.0).astype(jnp.float32)


def measures(state: State, largest: int) -> dict[str, Array]:
    """Return the metrics of a negotiation that is over, float32 []."""
    pieces, deal = shares(state, largest)
    best = deal & is_pareto(state.counts, state.values, pieces[0])
    return {
        "agreement": deal.astype(jnp.float32),
        "joint_utility": _payoff(state, largest).sum(),
        "pareto": best.astype(jnp.float32),
    }


def advise(state: State, largest: int) -> Array:
    """Return the action of an expert who sees both players' values, int32 [].

    It proposes Pareto-optimal divisions only. The first is its best one that gives the other at
    least half of what the Nash bargaining solution gives it; over `PATIENCE` offers it concedes to
    that solution, the division with the largest product of utilities. It agrees to what is at least
    as good as its own next proposal, and near the end to anything that is worth something; but if a
    division dominates an offer that it would accept, it proposes such a one, as long as there is
    time. It ends the talk when the other has agreed. After the talk it takes its part of the last
    offer.
    """
    player, turns = _mover(state), len(state.said) - PLAYERS
    seen, table = see(state, largest), jnp.asarray(divisions(largest))
    possible = (table <= state.counts).all(-1)
    mine = table @ jnp.asarray(state.values)[player]
    theirs = (state.counts - table) @ jnp.asarray(state.values)[1 - player]
    best = possible & ~is_dominated(mine, theirs, possible)
    # Among equals the one that is better for the mover, or for the other: both keys are integers.
    first = lambda mask, key, tie: jnp.where(mask, key * (POINTS + 1) + tie, -1).argmax()
    nash = first(best, mine * theirs, mine)
    fair = best & (mine >= mine[nash]) & (2 * theirs >= theirs[nash])
    top = jnp.where(fair, mine, 0).max()
    kinds = seen.history
    by_me = jnp.arange(turns) % PLAYERS == player
    offers = (((kinds == ACTS) | (kinds == INSIST)) & by_me).sum()
    patience = jnp.minimum(offers, PATIENCE)
    target = top - (top - mine[nash]) * patience // PATIENCE
    proposal = first(fair & (mine >= target), theirs, mine)

    offer, given = seen.other @ seen.values, (state.counts - seen.other) @ state.values[1 - player]
    late = seen.turn >= turns - 2
    offered = seen.open & ((seen.last == ACTS) | (seen.last == INSIST))
    acceptable = offered & ((offer >= mine[proposal]) | (late & (offer > 0)))
    better = best & (mine >= offer) & (theirs >= given) & ((mine > offer) | (theirs > given))
    improve = acceptable & better.any() & (seen.turn < turns - 4)
    proposal = jnp.where(improve, first(better, mine, theirs), proposal)
    again = seen.has_own & (table[proposal] == seen.own).all()
    say = len(table)
    talk = jnp.where(again, say + INSIST, proposal)
    talk = jnp.where(acceptable & ~improve, say + AGREE, talk)
    talk = jnp.where(seen.accepted & (seen.last == AGREE), say + END, talk)
    part = jnp.where(seen.open, seen.other, seen.own)
    named = jnp.where(seen.has_own | seen.has_other, take(largest, part), say + DISAGREE)
    return jnp.where(seen.talking, talk, named).astype(jnp.int32)


@functools.cache
def deal_or_no_deal(
    turns: int = 10, fewest: int = 5, most: int = 7, largest: int = 4
) -> Environment:
    """Build the negotiation.

    turns: the most acts of a talk. fewest, most: pieces in all. largest: the most pieces of a kind,
        up to 4.

    Raises `UserError` for fewer than 2 turns, and for pieces of which there is no scenario.
    """
    if turns < PLAYERS:
        raise UserError(f"deal_or_no_deal needs at least 2 turns, got {turns}.")
    if not 1 <= largest <= LARGEST:
        raise UserError(
            f"deal_or_no_deal has 1 to {LARGEST} pieces of a kind, got largest={largest}."
        )
    counts, values = scenarios(fewest, most, largest)
    if not len(counts):
        raise UserError(
            f"deal_or_no_deal has no scenario of {fewest} to {most} pieces of {KINDS} kinds with 1 "
            f"to {largest} pieces each."
        )
    number = len(counts)
    rules = Rules(
        deals=State(
            counts,
            values,
            np.full((number, turns + PLAYERS), NOTHING, np.int32),
            np.zeros(number, np.int32),
            np.full(number, NOTHING, np.int32),
        ),
        play=lambda state, action: _play(state, action, turns, largest),
        mover=_mover,
        legal=lambda state: legal_actions(see(state, largest), largest),
        observe=lambda state: write_observation(see(state, largest), largest),
        over=_over,
        payoff=lambda state, params: _payoff(state, largest),
        num_actions=len(divisions(largest)) + ACTS,
        max_moves=turns + PLAYERS,
    )
    game = environment(
        NAME,
        rules,
        render=lambda state: _render(state, largest),
        expert=lambda state: advise(state, largest),
    )

    def add_channels(result: tuple[Any, TimeStep]) -> tuple[Any, TimeStep]:
        """Add the metrics, and whether the mover speaks."""
        state, timestep = result
        over = timestep.done & ~state.forfeited
        found = {n: jnp.where(over, x, 0.0) for n, x in measures(state.game, largest).items()}
        privileged = {"talking": jnp.asarray(state.game.closed == NOTHING)}
        return state, dataclasses.replace(timestep, metrics=found, privileged=privileged)

    def step(key: Key, state: Any, action: Array, params: Tree) -> tuple[Any, TimeStep]:
        return add_channels(game.step(key, state, action, params))

    return dataclasses.replace(
        game, reset=lambda key, params: add_channels(game.reset(key, params)), step=step
    )


def sizes(env: Environment) -> tuple[int, int]:
    """Return `turns` and `largest` of a `deal_or_no_deal`. Raises `UserError` for another
    environment."""
    if env.name != NAME or not isinstance(env.action_space, Discrete) or env.max_steps is None:
        raise UserError(f"'{env.name}' is another game than {NAME}.")
    return env.max_steps - PLAYERS, round((env.action_space.n - ACTS) ** (1 / KINDS)) - 1


def _render(state: State, largest: int) -> np.ndarray:
    """Draw the pieces, a row for each kind, in the colors of those who would have them by the last
    proposal."""
    canvas = drawing.Canvas(160, 140, scale=1.0, origin=(0, 140))
    seen = jax.tree.map(np.asarray, see(state, largest, jnp.int32(0)))
    pieces = seen.other if seen.open else seen.own
    there = seen.has_other if seen.open else seen.has_own
    for kind, number in enumerate(seen.counts):
        for piece in range(int(number)):
            x, y = 12.0 + 36.0 * piece, 110.0 - 42.0 * kind
            color = drawing.GREEN if piece < pieces[kind] else drawing.ORANGE
            color = color if there else drawing.SHADE
            canvas.polygon([(x, y - 12), (x + 28, y - 12), (x + 28, y + 12), (x, y + 12)], color)
    return canvas.frame()
