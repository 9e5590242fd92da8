"""Exact solutions of small games with hidden information: values, best responses, exploitability.

A game is enumerated once, on the host, into its complete histories. A player's behavior is then a
table of probabilities for each information set, the place where somebody decides. Everything else
here is a pure function of such tables, for `jit`, `vmap` and `grad`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import solvers
from jaxrl.core import precise, random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Policy, TimeStep, Tree
from jaxrl.envs.games.rules import PLAYERS, Rules


@dataclasses.dataclass(frozen=True, eq=False)
class Game:
    """A complete two-player game with perfect recall: I information sets and Z histories."""

    timesteps: TimeStep  # [I]: what the mover sees, for networks
    player: np.ndarray  # int [I]: the player who decides there
    legal: np.ndarray  # bool [I, A]: legal actions
    chance: np.ndarray  # [Z]: chance's part of the probability of each history
    payoff: np.ndarray  # [Z, 2]: payoff of each player
    places: np.ndarray  # int [Z, D]: the information sets of a history in order, then -1
    actions: np.ndarray  # int [Z, D]: the action chosen at each of them

    @property
    def uniform(self) -> np.ndarray:
        """The table [I, A] of players who choose uniformly among legal actions."""
        return self.legal / self.legal.sum(1, keepdims=True)


def enumerate_game(rules: Rules, params: Tree = ()) -> Game:
    """Enumerate all histories of the game. Raise `UserError` if there are more than 20,000."""
    deals = len(jax.tree.leaves(rules.deals)[0])
    look = jax.jit(
        lambda s: (rules.observe(s), rules.mover(s), rules.legal(s), rules.over(s),
                   rules.payoff(s, params))
    )  # fmt: skip
    play = jax.jit(rules.play)
    found: dict[tuple, int] = {}
    seen, ways = [], []

    def visit(state, way):
        observation, mover, legal, over, payoff = jax.device_get(look(state))
        if over:
            if len(ways) >= 20_000:
                raise UserError("The game has more than 20,000 histories, too many to enumerate.")
            ways.append((way, payoff))
            return
        place = found.setdefault((int(mover), observation.tobytes()), len(seen))
        if place == len(seen):
            seen.append((observation, mover, legal))
        for action in np.flatnonzero(legal):
            visit(play(state, jnp.int32(action)), [*way, (place, int(action))])

    for deal in range(deals):
        visit(jax.tree.map(lambda x, deal=deal: jnp.asarray(x)[deal], rules.deals), [])
    observation, player, legal = (np.stack(x) for x in zip(*seen, strict=True))
    longest = max(len(way) for way, _ in ways)
    steps = np.asarray([way + [(-1, 0)] * (longest - len(way)) for way, _ in ways])
    no = jnp.zeros(len(seen), bool)
    timesteps = TimeStep(
        jnp.asarray(observation), jnp.zeros((len(seen), PLAYERS)), no, no, no,
        legal_actions=jnp.asarray(legal), role=jnp.asarray(player, jnp.int32),
    )  # fmt: skip
    payoff = np.stack([payoff for _, payoff in ways])
    chance = np.full(len(ways), 1 / deals)
    return Game(timesteps, player, legal, chance, payoff, steps[..., 0], steps[..., 1])


def behavior(game: Game, policy: Policy, goal: Tree = None, draws: int = 0) -> Array:
    """The table [I, A] of a policy without memory.

    It contains the probabilities that the policy reports as `extras["logits"]`. Without these it
    contains the frequency of each action in `draws` samples. Raises `UserError` if there are no
    logits and `draws` is 0.
    """
    places = len(game.player)
    timesteps = dataclasses.replace(game.timesteps, goal=goal)
    act = lambda key: policy.act(policy.state, timesteps, policy.memory(places), key, False)
    _, _, extras = act(random.key(0))
    if "logits" in extras:
        return jax.nn.softmax(jnp.asarray(extras["logits"]))
    if not draws:
        raise UserError("The policy reports no logits; set draws to estimate it from samples.")
    chosen = jax.vmap(lambda key: act(key)[0])(jax.random.split(random.key(0), draws))
    return jnp.asarray(jax.nn.one_hot(chosen, game.legal.shape[1])).mean(0)


def reach(game: Game, table: Array) -> Array:
    """The part of each player in the probability of each history: [2, Z] from a table [I, A].

    For a mixture of tables, of which each player draws one before the game, it is the mixture of
    their reaches.
    """
    there = game.places >= 0
    taken = jnp.where(there, table[game.places, game.actions], 1.0)
    who = game.player[game.places]
    return jnp.stack([jnp.where(who == p, taken, 1.0).prod(-1) for p in range(PLAYERS)])


def value(game: Game, reaches: Array) -> Array:
    """Expected payoff of each player, [2], if player p plays with the reach `reaches[p]` [Z]."""
    return precise.matmul(game.chance * reaches.prod(0), game.payoff)


def best_response(game: Game, reaches: Array, player: int) -> tuple[Array, Array]:
    """The best response of `player` to the other player's part of `reaches` [2, Z].

    Returns its value, and its table [I, A], in which rows of the other player are 0.
    """
    weight = game.chance * reaches[1 - player] * game.payoff[:, player]
    mine = np.flatnonzero(game.player == player)
    own = (game.places >= 0) & (game.player[game.places] == player)
    # An information set after another one of the same player has more own moves before it.
    first = {i: np.argwhere(game.places == i)[0] for i in mine}
    before = {i: int(own[z, :d].sum()) for i, (z, d) in first.items()}
    table = jnp.zeros(game.legal.shape)
    later = jnp.ones(
        len(game.chance)
    )  # probability of own choices already decided, which come later
    for place in sorted(mine, key=before.__getitem__, reverse=True):
        at = game.places == place
        here, chosen = at.any(1), (game.actions * at).sum(1)
        gains = jax.ops.segment_sum(
            jnp.where(here, weight * later, 0.0), chosen, game.legal.shape[1]
        )
        best = jnp.argmax(jnp.where(game.legal[place], gains, -jnp.inf))
        table = table.at[place].set(jax.nn.one_hot(best, game.legal.shape[1]))
        later = jnp.where(here & (chosen != best), 0.0, later)
    return (weight * later).sum(), table


def exploitability(game: Game, reaches: Array) -> Array:
    """Gain of a player who switches to the best response, averaged over both players.

    It is half of NashConv, and 0 at an equilibrium of a zero-sum game.
    """
    best = jnp.stack([best_response(game, reaches, player)[0] for player in range(PLAYERS)])
    return (best - value(game, reaches)).mean()


SCORES = {"exploitability": "exploitability"}  # the scores in `exploitability_metrics`


def exploitability_metrics(env: Environment, reaches: Callable[[Game], Array]) -> dict[str, Array]:
    """The metric `exploitability` of players with the reaches `reaches(game)` [2, Z].

    There is no metric if `env` is not a game that can be enumerated (`Environment.rules` is None).
    """
    if env.rules is None:
        return {}
    with jax.ensure_compile_time_eval():  # works while a program is being traced, too
        game = _cached_game(env)
    return {"exploitability": exploitability(game, reaches(game))}


@functools.cache
def _cached_game(env: Environment) -> Game:
    return enumerate_game(env.rules, env.params)


def mixture(game: Game, tables: Array, weights: Array) -> Array:
    """The reaches [2, Z] of players who draw one of `tables` [K, I, A] with probabilities `weights`
    [K] before each game and play it throughout."""
    return precise.einsum("k,kpz->pz", weights, jax.vmap(lambda t: reach(game, t))(tables))


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
