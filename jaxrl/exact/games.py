"""Exact solutions of small games with hidden information: values, best responses, exploitability.

A game is enumerated once, on the host, into its complete histories. A player's behavior is then a
table of probabilities for each information set, the place where somebody decides. Everything else
here is a pure function of such tables, for `jit`, `vmap` and `grad`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import solvers
from jaxrl.core import precise, random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Policy, TimeStep, Tree
from jaxrl.envs.games.rules import Rules

BLOCK = 1024  # states that `enumerate_game` looks at together


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """A complete game of N players with perfect recall: I information sets and Z histories.

    Histories that all players see alike, and that pay alike, are one.
    """

    timesteps: TimeStep  # [I]: what the mover sees, for networks
    player: np.ndarray  # int [I]: the player who decides there
    legal: np.ndarray  # bool [I, A]: legal actions
    chance: np.ndarray  # [Z]: chance's part of the probability of each history
    payoff: np.ndarray  # [Z, N]: payoff of each player
    places: np.ndarray  # int [Z, D]: the information sets of a history in order, then -1
    actions: np.ndarray  # int [Z, D]: the action chosen at each of them

    @property
    def num_players(self) -> int:
        """Number of players N."""
        return self.payoff.shape[1]

    @property
    def uniform(self) -> np.ndarray:
        """The table [I, A] of players who choose uniformly among legal actions."""
        return self.legal / self.legal.sum(1, keepdims=True)

    @functools.cached_property
    def previous(self) -> np.ndarray:
        """The information set at which the same player decided before, int [I]; -1 at the first
        decision."""
        before = np.full(len(self.player), -1)
        for history in self.places:
            last = [-1] * self.num_players
            for place in history[history >= 0].tolist():
                player = int(self.player[place])
                before[place], last[player] = last[player], place
        return before


def enumerate_game(rules: Rules, params: Tree = ()) -> Game:
    """Enumerate all histories of the game, move by move, all states of a move side by side.

    Raises `UserError` where an information set has different legal actions in different states.
    """
    remember = rules.remember or rules.observe
    look = jax.jit(jax.vmap(
        lambda s: (rules.observe(s), remember(s), rules.mover(s), rules.legal(s), rules.over(s),
                   rules.payoff(s, params))
    ))  # fmt: skip
    play = jax.jit(jax.vmap(rules.play))
    deals = len(jax.tree.leaves(rules.deals)[0])
    number: dict[tuple[int, bytes], int] = {}
    seen: list[tuple[np.ndarray, int, np.ndarray]] = []
    counts: dict[tuple, int] = {}  # of the deals that lead to each (places, actions, payoff)

    def place_of(mover: int, memory: np.ndarray, observation: np.ndarray, legal: np.ndarray) -> int:
        place = number.setdefault((mover, memory.tobytes()), len(seen))
        if place == len(seen):
            seen.append((observation, mover, legal))
        elif (seen[place][2] != legal).any():
            raise UserError(
                f"Player {mover} observes the same in two states with different legal actions; "
                "observe must tell them apart."
            )
        return place

    states = jax.tree.map(np.asarray, rules.deals)
    ways = [((), ())] * deals
    while ways:
        observation, memory, mover, legal, over, payoff = _map_rows(look, states)
        parents, chosen, longer = [], [], []
        for i, (places, actions) in enumerate(ways):
            if over[i]:
                end = places, actions, tuple(payoff[i].tolist())
                counts[end] = counts.get(end, 0) + 1
                continue
            place = place_of(int(mover[i]), memory[i], observation[i], legal[i])
            for action in np.flatnonzero(legal[i]):
                parents.append(i)
                chosen.append(action)
                longer.append(((*places, place), (*actions, int(action))))
        ways = longer
        if ways:
            states = jax.tree.map(lambda x, rows=parents: x[np.asarray(rows)], states)
            states = _map_rows(play, states, np.asarray(chosen, np.int32))
    observation, player, legal = (np.stack(x) for x in zip(*seen, strict=True))
    no = jnp.zeros(len(seen), bool)
    timesteps = TimeStep(
        jnp.asarray(observation), jnp.zeros((len(seen), rules.num_players)), no, no, no,
        legal_actions=jnp.asarray(legal), role=jnp.asarray(player, jnp.int32),
    )  # fmt: skip
    longest = max(len(places) for places, _, _ in counts)
    fill = lambda row, empty: (*row, *[empty] * (longest - len(row)))
    return Game(
        timesteps,
        player,
        legal,
        chance=np.asarray(list(counts.values())) / deals,
        payoff=np.asarray([payoff for _, _, payoff in counts]),
        places=np.asarray([fill(places, -1) for places, _, _ in counts]),
        actions=np.asarray([fill(actions, 0) for _, actions, _ in counts]),
    )


def _map_rows(function: Callable, *rows: Tree) -> Any:
    """Return `function` of all rows, computed in blocks of one size, for which it is compiled."""
    count = len(jax.tree.leaves(rows)[0])
    blocks = []
    for start in range(0, count, BLOCK):
        chosen = np.minimum(np.arange(start, start + BLOCK), count - 1)
        block = jax.tree.map(lambda x, chosen=chosen: x[chosen], rows)
        blocks.append(jax.device_get(function(*block)))
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *blocks)


def unroll(game: Game, decide: Callable[[Tree], tuple[Array, Tree]], blank: Tree) -> Array:
    """Return the table [I, A] of players who remember what they saw.

    decide(memory [I]) -> the probabilities [I, A] at all information sets, after each player's
        memory there, and the memory [I] after them.
    blank: memory [I] before a player's first decision, without leaves for players without memory.
    """
    table, after = decide(blank)
    if not jax.tree.leaves(blank):
        return table
    # The table is right at the first decisions, then also at the second ones, and so on.
    begins = jnp.asarray(game.previous < 0)
    choose = lambda old, new: jnp.where(begins.reshape(-1, *[1] * (new.ndim - 1)), new, old)
    for _ in range(_most_decisions(game) - 1):
        before = jax.tree.map(lambda x, first: choose(x[game.previous], first), after, blank)
        table, after = decide(before)
    return table


def _most_decisions(game: Game) -> int:
    """Return the largest number of decisions of one player in a history."""
    who = np.where(game.places >= 0, game.player[game.places], -1)
    return max(int((who == p).sum(1).max()) for p in range(game.num_players))


def behavior(game: Game, policy: Policy, goal: Tree = None, draws: int = 0) -> Array:
    """The table [I, A] of a policy.

    It contains the probabilities that the policy reports as `extras["logits"]`. Without these it
    contains the frequency of each action in `draws` samples, of a policy without memory. Raises
    `UserError` if there are no logits and `draws` is 0.
    """
    places = len(game.player)
    timesteps = dataclasses.replace(game.timesteps, goal=goal)
    blank = policy.memory(places)
    act = lambda key, memory: policy.act(policy.state, timesteps, memory, key, False)
    shapes = jax.eval_shape(lambda: act(random.key(0), blank)[2])
    if "logits" in shapes:

        def decide(memory: Tree) -> tuple[Array, Tree]:
            _, memory, extras = act(random.key(0), memory)
            return jax.nn.softmax(jnp.asarray(extras["logits"])), memory

        return unroll(game, decide, blank)
    if not draws:
        raise UserError("The policy reports no logits; set draws to estimate it from samples.")
    chosen = jax.vmap(lambda key: act(key, blank)[0])(jax.random.split(random.key(0), draws))
    return jnp.asarray(jax.nn.one_hot(chosen, game.legal.shape[1])).mean(0)


def reach(game: Game, table: Array) -> Array:
    """The part of each player in the probability of each history: [N, Z] from a table [I, A].

    For a mixture of tables, of which each player draws one before the game, it is the mixture of
    their reaches.
    """
    there = game.places >= 0
    taken = jnp.where(there, table[game.places, game.actions], 1.0)
    who = game.player[game.places]
    players = range(game.num_players)
    return jnp.stack([jnp.where(who == p, taken, 1.0).prod(-1) for p in players])


def value(game: Game, reaches: Array) -> Array:
    """Expected payoff of each player, [N], if player p plays with the reach `reaches[p]` [Z]."""
    return precise.matmul(game.chance * reaches.prod(0), game.payoff)


def best_response(game: Game, reaches: Array, player: int) -> tuple[Array, Array]:
    """The best response of `player` to the other players' parts of `reaches` [N, Z].

    Returns its value, and its table [I, A], in which rows of the other players are 0.
    """
    others = reaches[np.flatnonzero(np.arange(game.num_players) != player)].prod(0)
    weight = game.chance * others * game.payoff[:, player]
    shape, count = game.legal.shape, len(game.chance)
    # Each history has at most one n-th decision of the player; later decisions come first.
    own = (game.places >= 0) & (game.player[game.places] == player)
    nth = np.where(own, own.cumsum(1) - 1, -1)
    table = jnp.zeros(shape)
    later = jnp.ones(count)  # probability of own choices already decided, which come later
    for n in reversed(range(nth.max() + 1)):
        at = nth == n
        here, place, chosen = at.any(1), (game.places * at).sum(1), (game.actions * at).sum(1)
        gains = jnp.zeros(shape).at[place, chosen].add(jnp.where(here, weight * later, 0.0))
        choice = jnp.argmax(jnp.where(game.legal, gains, -jnp.inf), 1)
        mine = np.zeros(shape[0], bool)
        mine[place[here]] = True
        response = jax.nn.one_hot(choice, shape[1], dtype=table.dtype)
        table = jnp.where(mine[:, None], response, table)
        later = jnp.where(here & (chosen != choice[place]), 0.0, later)
    return (weight * later).sum(), table


def exploitability(game: Game, reaches: Array) -> Array:
    """Gain of a player who switches to the best response, averaged over the players.

    It is NashConv divided by the number of players, and 0 at an equilibrium.
    """
    players = range(game.num_players)
    best = jnp.stack([best_response(game, reaches, player)[0] for player in players])
    return (best - value(game, reaches)).mean()


SCORES = {"exploitability": "exploitability"}  # the scores in `exploitability_metrics`


def exploitability_metrics(env: Environment, reaches: Callable[[Game], Array]) -> dict[str, Array]:
    """The metric `exploitability` of players with the reaches `reaches(game)` [N, Z].

    There is no metric if `env` is not a game that can be enumerated (`Environment.rules` is None).
    """
    if env.rules is None:
        return {}
    with jax.ensure_compile_time_eval():  # works while a program is being traced, too
        game = cached_game(env)
    return {"exploitability": exploitability(game, reaches(game))}


@functools.cache
def cached_game(env: Environment) -> Game:
    """Return the enumerated game of an environment with `rules`, once for each environment."""
    return enumerate_game(env.rules, env.params)


def mixture(game: Game, tables: Array, weights: Array) -> Array:
    """The reaches [N, Z] of players who draw one of `tables` [K, I, A] with probabilities `weights`
    [K] before each game and play it throughout."""
    return precise.einsum("k,kpz->pz", weights, jax.vmap(lambda t: reach(game, t))(tables))


def bayes_value(game: Game, tables: Array, prior: Array) -> Array:
    """The value of a Bayes-optimal player against an opponent of unknown type, over both sides of
    a game for two players.

    The opponent draws one of `tables` [K, I, A] by `prior` [K] before the game, and the player
    knows the prior alone. A best response to the mixture infers the type from what it sees, since
    the mixture's reach of a history is the prior times the likelihood, summed over the types.
    """
    reaches = mixture(game, tables, prior)
    return (best_response(game, reaches, 0)[0] + best_response(game, reaches, 1)[0]) / 2


def mean_value(game: Game, table: Array, opponents: Array) -> Array:
    """The mean payoff over both sides of a game for two of a player with `table` [I, A] against
    players whose reaches are `opponents` [2, Z]."""
    own = reach(game, table)
    first = value(game, jnp.stack([own[0], opponents[1]]))[0]
    second = value(game, jnp.stack([opponents[0], own[1]]))[1]
    return (first + second) / 2


def matrix_nash(payoff: Array, mask: Array | None = None, iterations: int = 1000) -> Array:
    """The row player's strategy [A] in an equilibrium of the zero-sum game `payoff` [A, B].

    The players use regret matching+ in turn, and strategies are averaged with linear weights
    (CFR+). The gap falls at least as fast as 1 / sqrt(iterations), in practice about as 1 /
    iterations.

    mask: bool [A], the strategies that both players may use; only for symmetric games (A = B).
    Source: Tammelin et al., 2015, "Solving heads-up limit Texas hold'em".
    """
    rows, columns = payoff.shape
    masks = (jnp.ones(rows, bool), jnp.ones(columns, bool)) if mask is None else (mask, mask)

    def step(carry, t):
        regret, other_regret, total = carry
        policy = solvers.regret_matching(regret, masks[0])
        gain = -precise.matmul(policy, payoff)
        other = solvers.regret_matching(other_regret, masks[1])
        other_regret = solvers.regret_matching_plus(
            other_regret, gain - precise.matmul(gain, other)
        )
        gain = precise.matmul(payoff, solvers.regret_matching(other_regret, masks[1]))
        regret = solvers.regret_matching_plus(regret, gain - precise.matmul(gain, policy))
        return (regret, other_regret, total + t * policy), None

    zero = jnp.zeros(rows), jnp.zeros(columns), jnp.zeros(rows)
    times = jnp.arange(1, iterations + 1, dtype=jnp.float32)
    (_, _, total), _ = jax.lax.scan(step, zero, times)
    return total / total.sum()
