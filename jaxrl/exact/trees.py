"""Games as a tree of information sets for each player: plans, best responses, gaps.

A sequence is an action at an information set together with the own actions that led there. A plan
[S] is the player's own part in the probability of each sequence, in which expected payoffs are
linear; a table [I, A] is the behavior at each information set. Sequence 0 is the empty one, and
action a at set i of a player is sequence 1 + i A + a. Everything goes level by level, where a level
is the number of own decisions before, so that no bound on the number of histories is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Policy
from jaxrl.exact.games import Game

WASTE = 8  # padded entries per history up to which sums over histories are gathered


@dataclasses.dataclass(frozen=True, eq=False)
class Player:
    """The I information sets of one player, level after level, and its S sequences."""

    places: np.ndarray  # int [I]: the information sets' numbers in the game
    legal: np.ndarray  # bool [I, A]
    parent: np.ndarray  # int [I]: the sequence that leads to each
    levels: tuple[tuple[int, int], ...]  # first set of each level, and the first beyond it
    children: tuple[np.ndarray, ...]
    # int [n, A, C] for each level but the last: the sets that follow an action, by their number in
    # the next level; that level's size where there are fewer
    last: np.ndarray  # int [Z]: the last sequence of each history
    path: np.ndarray  # int [Z, levels]: the sequences of each history; S where there are fewer
    ends: np.ndarray | None  # int [S, K]: histories that end in a sequence, then Z; None: too many

    @property
    def sequences(self) -> int:
        """Number of sequences S."""
        return 1 + self.legal.size

    @property
    def uniform(self) -> np.ndarray:
        """The table [I, A] that chooses uniformly among legal actions."""
        return self.legal / self.legal.sum(1, keepdims=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Forest:
    """A game as one tree for each of its N players."""

    game: Game
    players: tuple[Player, ...]

    @property
    def uniform(self) -> tuple[Array, ...]:
        """The tables of players who choose uniformly among legal actions."""
        return tuple(jnp.asarray(player.uniform, float) for player in self.players)


def grow(game: Game) -> Forest:
    """Return the trees of all players.

    Raises `UserError` for a game in which a player forgets what it did before.
    """
    return Forest(game, tuple(_grow(game, player) for player in range(game.num_players)))


def _grow(game: Game, player: int) -> Player:
    count, actions = len(game.chance), game.legal.shape[1]
    own = (game.places >= 0) & (game.player[game.places] == player)
    # Level by level: the place and action of each history's n-th own decision, -1 for none.
    nth = np.where(own, own.cumsum(1) - 1, -1)
    found, begin, levels, children = [], 0, [], []
    before = np.zeros(count, int)  # the last sequence of each history so far
    path, parents = [], []
    for level in range(int(nth.max(initial=-1)) + 1):
        at = nth == level
        here = at.any(1)
        place, action = (game.places * at).sum(1), (game.actions * at).sum(1)
        members, first, index = np.unique(place[here], return_index=True, return_inverse=True)
        parent = before[here][first]
        if (before[here] != parent[index]).any():
            raise UserError(
                f"Player {player} forgets what it did: an information set follows different own "
                "actions. Its observation must contain them."
            )
        if level:
            children.append(_followers(parent, levels[-1], actions))
        found.append(members)
        parents.append(parent)
        levels.append((begin, begin + len(members)))
        before = before.copy()
        before[here] = 1 + (begin + index) * actions + action[here]
        path.append(np.where(here, before, -1))
        begin += len(members)
    places = np.concatenate([*found, np.zeros(0, int)]).astype(int)
    legal = game.legal[places]
    sequences = 1 + legal.size
    steps = np.stack(path, 1) if path else np.zeros((count, 0), int)
    return Player(
        places.astype(np.int32),
        legal,
        np.concatenate([*parents, np.zeros(0, int)]).astype(np.int32),
        tuple(levels),
        tuple(children),
        before.astype(np.int32),
        np.where(steps < 0, sequences, steps).astype(np.int32),
        _ends(before, sequences),
    )


def _followers(parent: np.ndarray, level: tuple[int, int], actions: int) -> np.ndarray:
    """Return the sets that follow each action of a level, int [n, A, C], from their parents."""
    begin, end = level
    rows = parent - 1 - begin * actions
    return _groups(rows, (end - begin) * actions).reshape(end - begin, actions, -1)


def _groups(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the indices i of each row with rows[i] = row, int32 [count, K], then len(rows)."""
    sizes = np.bincount(rows, minlength=count)
    order = np.argsort(rows, kind="stable")
    column = np.arange(len(rows)) - np.repeat(sizes.cumsum() - sizes, sizes)
    groups = np.full((count, max(sizes.max(initial=0), 1)), len(rows), np.int32)
    groups[rows[order], column] = order
    return groups


def _ends(last: np.ndarray, sequences: int) -> np.ndarray | None:
    widest = np.bincount(last, minlength=sequences).max()
    return _groups(last, sequences) if sequences * widest <= WASTE * len(last) else None


def split(forest: Forest, table: Array) -> tuple[Array, ...]:
    """Return the players' tables of a table [I, A] of the whole game."""
    return tuple(jnp.asarray(table, float)[player.places] for player in forest.players)


def join(forest: Forest, tables: Sequence[Array]) -> Array:
    """Return the table [I, A] of the whole game of the players' tables."""
    whole = jnp.zeros(forest.game.legal.shape)
    for player, table in zip(forest.players, tables, strict=True):
        whole = whole.at[player.places].set(table)
    return whole


def plan(player: Player, table: Array) -> Array:
    """Return the plan [S] of a table [I, A]: the own part in the probability of each sequence."""
    actions = player.legal.shape[1]
    parts = [jnp.ones(1, table.dtype)]
    for level, (begin, end) in enumerate(player.levels):
        first = 1 + player.levels[level - 1][0] * actions if level else 0
        reached = parts[-1][player.parent[begin:end] - first]
        parts.append((reached[:, None] * table[begin:end]).ravel())
    return jnp.concatenate(parts)


def behavior(player: Player, plans: Array) -> Array:
    """Return the table [I, A] that plays by a plan [S], or by a weighted sum of plans.

    It is uniform where no plan goes.
    """
    mass = plans[1:].reshape(player.legal.shape)
    total = mass.sum(1, keepdims=True)
    uniform = jnp.asarray(player.uniform, plans.dtype)
    return jnp.where(total > 0, mass / jnp.where(total > 0, total, 1), uniform)


def gradient(forest: Forest, plans: Sequence[Array], player: int) -> Array:
    """Return the payoff [S] of each sequence of `player` against the others' plans.

    It is the gradient of the expected payoff for the player's own plan.
    """
    game, mine = forest.game, forest.players[player]
    weight = jnp.asarray(game.chance * game.payoff[:, player], plans[0].dtype)
    for p, other in enumerate(forest.players):
        if p != player:
            weight = weight * plans[p][other.last]
    if mine.ends is None:
        return jax.ops.segment_sum(weight, mine.last, mine.sequences)
    return jnp.append(weight, 0)[mine.ends].sum(-1)


Respond = Callable[[slice, Array], tuple[Array, Array]]


def walk_back(player: Player, payoff: Array, respond: Respond) -> tuple[Array, Array]:
    """Decide at all information sets, from the last level to the first.

    payoff: [S], of each sequence. respond: (sets of a level, payoff of their actions [n, A] with
    the values of what follows) -> (anything [n, A], value of each set [n]).

    Returns what `respond` returned for all sets, [I, A], and the value of the game.
    """
    actions = player.legal.shape[1]
    tables, value = [], jnp.zeros(0, payoff.dtype)
    for level in reversed(range(len(player.levels))):
        begin, end = player.levels[level]
        here = payoff[1 + begin * actions : 1 + end * actions].reshape(end - begin, actions)
        if level < len(player.children):
            here = here + jnp.append(value, 0)[player.children[level]].sum(-1)
        table, value = respond(slice(begin, end), here)
        tables.append(table)
    none = jnp.zeros((0, actions), payoff.dtype)
    return jnp.concatenate([none, *tables[::-1]]), value.sum() + payoff[0]


def best_response(player: Player, payoff: Array) -> tuple[Array, Array]:
    """Return the best response to a gradient [S]: its table [I, A] and its value."""

    def respond(sets, values):
        legal = jnp.where(player.legal[sets], values, -jnp.inf)
        choice = jax.nn.one_hot(legal.argmax(1), legal.shape[1], dtype=payoff.dtype)
        return choice, legal.max(1)

    return walk_back(player, payoff, respond)


def values(forest: Forest, plans: Sequence[Array]) -> Array:
    """Return the expected payoff of each player, [N]."""
    gradients = (gradient(forest, plans, p) for p in range(len(plans)))
    return jnp.stack([(g * x).sum() for g, x in zip(gradients, plans, strict=True)])


def gains(forest: Forest, plans: Sequence[Array]) -> Array:
    """Return what each player gains by its best response, [N]; 0 at a Nash equilibrium."""

    def gain(p, player):
        payoff = gradient(forest, plans, p)
        return best_response(player, payoff)[1] - (payoff * plans[p]).sum()

    return jnp.stack([gain(p, player) for p, player in enumerate(forest.players)])


def nash_conv(forest: Forest, tables: Sequence[Array]) -> Array:
    """Return the sum of what all players gain by their best responses to `tables`.

    Source: Lanctot et al., 2017, "A unified game-theoretic approach to multiagent reinforcement
    learning".
    """
    plans = [plan(p, table) for p, table in zip(forest.players, tables, strict=True)]
    return gains(forest, plans).sum()


def policy(game: Game, table: Array) -> Policy:
    """Return the policy that plays by a table [I, A] of the whole game.

    It knows an information set by what its mover observes; elsewhere it plays as at the first.
    """
    observations, movers = jnp.asarray(game.timesteps.observation), jnp.asarray(game.player)

    def act(table, timestep, memory, key, greedy):
        same = (timestep.observation[:, None] == observations).all(-1)
        place = (same & (timestep.role[:, None] == movers)).argmax(1)
        logits = jnp.log(table[place])
        action = table[place].argmax(1) if greedy else jax.random.categorical(key, logits)
        return action.astype(jnp.int32), memory, {"logits": logits}

    return Policy(act, lambda n: (), table)
