"""Adaptive and Balanced FTRL: learn a zero-sum game from sampled games, by regularized leaders.

Fiegel et al. (2023), "Adapting to game trees in zero-sum imperfect information games"
(arXiv:2212.12567). Both players follow the regularized leader with a dilated entropy, and know of
each game only its own moves and its end. The loss of the last move is divided by the own part in
its probability plus a little (implicit exploration), which estimates the losses of all sequences.
In Balanced FTRL the weight of the entropy at an information set, and the exploration there, follow
the tree's structure; in Adaptive FTRL they follow how often the set has been visited, so nothing of
the tree needs to be known beforehand. The averages of plans approach an equilibrium.

Formulas follow the authors' code: the learning rate at set x is rate / P(x) and the exploration of
its action a is exploration / P(x, a), where P(x, a) is 1 plus the sum of 1 / (plan + exploration)
over the visits, and P(x) is 1 plus the mean over actions of the same sum. Balanced: both divided by
the reach under balanced transitions. Differs from that code: in P(x, a) it multiplies the plan,
which has the probability of a in it, by this probability once more; balanced transitions divide by
the action itself too, so that they do not sum to 1 (`exact.regret.balance`); and leaders follow
from the last game's path, where here they are computed anew from all sums. Losses are in [0, 1] and
come with the last move alone, as there.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, struct
from jaxrl.exact import games, regret, trees
from jaxrl.exact.regret import Tables
from jaxrl.exact.trees import Forest, Player
from jaxrl.kit import Direct, DirectBuilder, group, hyper, static


@group
class Config:
    """Settings of FTRL on a game's trees."""

    games: int = static(1000, low=1)
    """Number of games in one step; leaders change after each."""
    balance: str = static("adaptive", choices=("adaptive", "structure"))
    """Source of the entropy's weights: adaptive, the visits so far; or structure, the tree."""
    rate: float = hyper(100.0, above=0, log=True)
    """Learning rate (eta), before it is divided by visits or by balanced reach."""
    exploration: float = hyper(0.1, low=0)
    """Implicit exploration (gamma), before it is divided likewise."""


@struct
class State:
    """Sums over all games, for each player."""

    losses: Tables  # [S]: estimated losses of sequences
    visits: Tables  # [S]: of 1 / (plan + exploration)
    plans: Tables  # [S]


@functools.cache
def forest_of(env: Environment) -> Forest:
    """Return the trees of the game `env`."""
    assert env.rules is not None
    with jax.ensure_compile_time_eval():  # works while a program is being traced, too
        return trees.grow(games.enumerate_game(env.rules, env.params))


def rates(player: Player, balance: str, visits: Array) -> tuple[Array, Array]:
    """Return by what rate and exploration are divided: at sets, [I], and for sequences, [S].

    visits: [S], the sums so far.
    """
    if balance == "structure":
        reach = jnp.asarray(regret.balance(player)[1], visits.dtype)
        spread = jnp.broadcast_to(reach[:, None], player.legal.shape).ravel()
        return reach, jnp.append(1.0, spread).astype(visits.dtype)
    actions = player.legal.sum(1)
    return 1 + visits[1:].reshape(player.legal.shape).sum(1) / actions, 1 + visits


def leader(player: Player, balance: str, losses: Array, divisor: Array, rate: Array) -> Array:
    """Return the table [I, A] of the regularized leader; divisor: [I], as in `rates`."""
    prior = regret.balance(player)[0] if balance == "structure" else player.uniform
    return regret.leader(player, -losses, prior, divisor / rate)


def weights(player: Player, plan: Array, exploration: Array, history: Array) -> Array:
    """Return 1 / (plan + exploration) of the sequences of one history, [S], 0 elsewhere.

    plan, exploration: [S].
    """
    path = jnp.asarray(player.path)[history]
    over = 1 / (plan + exploration)
    return jnp.zeros_like(plan).at[path].set(jnp.append(over, 0.0)[path], mode="drop")


def estimate(player: Player, over: Array, loss: Array, history: Array) -> Array:
    """Return estimated losses of all sequences, [S], from one history with the loss at its end.

    over: [S], as `weights` returns it. The expectation is the loss of each sequence against the
    others' plans, times plan / (plan + exploration).
    """
    last = jnp.asarray(player.last)[history]
    return jnp.zeros_like(over).at[last].set(over[last] * loss)


def build(env: Environment, config: Config) -> Direct:
    """Build FTRL in `env`; the resulting policy plays by the average of all plans.

    One step is `games` games. Its environment steps are counted as if all had full length.
    """
    forest = forest_of(env)
    players, game = forest.players, forest.game
    low, high = game.payoff.min(), game.payoff.max()
    losses = jnp.asarray((high - game.payoff) / (high - low), float)
    chance = jnp.asarray(game.chance, float)

    def init(key, hyper):
        zero = tuple(jnp.zeros(player.sequences) for player in players)
        return State(zero, zero, zero)

    def play(state: State, key, hyper):
        divisors, explorations, plans = [], [], []
        for p, player in enumerate(players):
            divisor, divisor_here = rates(player, config.balance, state.visits[p])
            table = leader(player, config.balance, state.losses[p], divisor, hyper.rate)
            divisors.append(divisor)
            explorations.append(hyper.exploration / divisor_here)
            plans.append(trees.plan(player, table))
        chances = chance
        for player, plan in zip(players, plans, strict=True):
            chances = chances * plan[player.last]
        history = jax.random.categorical(key, jnp.log(chances))
        over = [
            weights(player, plans[p], explorations[p], history) for p, player in enumerate(players)
        ]
        found = [
            estimate(player, over[p], losses[history, p], history)
            for p, player in enumerate(players)
        ]
        add = lambda sums, new: tuple(x + y for x, y in zip(sums, new, strict=True))
        return State(add(state.losses, found), add(state.visits, over), add(state.plans, plans))

    def step(state, key, hyper):
        keys = jax.random.split(key, config.games)
        state, _ = jax.lax.scan(lambda state, key: (play(state, key, hyper), None), state, keys)
        return state, {"exploitability": m.mean(gap(state))}

    def average(state: State) -> Tables:
        return tuple(trees.behavior(*pair) for pair in zip(players, state.plans, strict=True))

    def gap(state: State) -> Array:
        plans = [trees.plan(*pair) for pair in zip(players, average(state), strict=True)]
        return trees.gains(forest, plans).mean()

    return Direct(
        init,
        step,
        policy=lambda state: trees.policy(game, trees.join(forest, average(state))),
        env_steps=config.games * (env.max_steps or 0),
        scores=games.SCORES,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment that is not a small zero-sum game for two, and for one
    in which players must remember more than they observe, since policies here have no memory."""
    if env.rules is None:
        raise UserError(
            f"{name} cannot act in '{env.name}', which is no game that can be enumerated; it needs "
            "one, for example kuhn_poker."
        )
    game = forest_of(env).game
    payoff = game.payoff
    if payoff.shape[1] != 2 or abs(payoff.sum(1)).max() > 1e-6:
        raise UserError(
            f"'{env.name}' is not a zero-sum game for two players; {name} needs one, for example "
            "kuhn_poker."
        )
    seen = np.asarray(game.timesteps.observation).reshape(len(game.player), -1)
    seen = np.column_stack([game.player, seen])
    if len(np.unique(seen, axis=0)) < len(seen):
        raise UserError(
            f"Players of '{env.name}' must remember more than they observe, and {name} plays by "
            "what is observed alone; it needs another game, for example kuhn_poker."
        )


adaptive_ftrl = DirectBuilder(
    "adaptive_ftrl",
    Config,
    build,
    check,
    describe=lambda env, config: f"adaptive_ftrl({config.balance}) on {env.name}",
)

TINY = {"env": "kuhn_poker", "games": 4}
