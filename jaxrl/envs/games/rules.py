"""Rules of turn-based games as pure functions, and the environment that plays by them.

`exact.games` enumerates the whole game from the same rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs import timesteps

PLAYERS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Rules:
    """Rules of a game. Its state is a pytree of arrays; chance moves once, before the first player.

    deals: all initial states, equally likely, leading axis [D]
    play(state, action) -> the state after a legal move
    mover(state) -> int32, below `num_players`: whose turn it is
    legal(state) -> bool [A]: legal moves; once the game is over, any mask with a legal move
    observe(state) -> float32 [F] in [0, 1]: what the mover knows. (`exact.games` takes it for all
        that the mover remembers: whatever it saw and did earlier must follow from it, if it
        matters, or else from `remember`.)
    over(state) -> bool
    payoff(state, params) -> float32 [N]: reward of each player at the end
    remember(state) -> array that tells apart all that the mover may have seen and done so far; None
        where `observe` does. It is for `exact.games` alone, so that a player who should use more
        than the observation needs a policy with memory.
    """

    deals: Tree
    play: Callable[[Tree, Array], Tree]
    mover: Callable[[Tree], Array]
    legal: Callable[[Tree], Array]
    observe: Callable[[Tree], Array]
    over: Callable[[Tree], Array]
    payoff: Callable[[Tree, Tree], Array]
    num_actions: int
    max_moves: int
    num_players: int = PLAYERS
    remember: Callable[[Tree], Array] | None = None


@struct
class Playing:
    """Game in progress."""

    game: Tree
    forfeited: Array  # bool: the last move was illegal


def environment(
    name: str,
    rules: Rules,
    params: Tree = (),
    render: Callable[[Any], np.ndarray] | None = None,
    small: bool = False,
    expert: Callable[[Any], Array] | None = None,
) -> Environment:
    """Build the `Environment` of a game; `render(game state)` draws it. An illegal move ends the
    game: the player who made it gets -1 and the others share 1. `small`: whether `exact.games` can
    enumerate the game, so that runs in it report their exploitability. `expert(game state)`: the
    move of a scripted player, who knows what the mover observes."""
    players = rules.num_players

    def channels(game: Tree) -> dict[str, Array]:
        return {"role": rules.mover(game), "legal_actions": rules.legal(game)}

    def reset(key: Key, params: Tree) -> tuple[Playing, TimeStep]:
        number = len(jax.tree.leaves(rules.deals)[0])
        deal = jax.random.randint(key, (), 0, number)
        game = jax.tree.map(lambda x: jnp.asarray(x)[deal], rules.deals)
        step = timesteps.first(rules.observe(game), jnp.zeros(players), **channels(game))
        return Playing(game, jnp.zeros((), bool)), step

    def step(key: Key, state: Playing, action: Array, params: Tree) -> tuple[Playing, TimeStep]:
        mover = rules.mover(state.game)
        forfeited = ~rules.legal(state.game)[action]
        game = rules.play(state.game, action)
        over = rules.over(game)
        payoff = jnp.where(over, rules.payoff(game, params), 0.0)
        return Playing(game, forfeited), timesteps.following(
            rules.observe(game),
            jnp.where(forfeited, forfeit(mover, players), payoff),
            over | forfeited,
            **channels(game),
        )  # fmt: skip

    features = jax.eval_shape(lambda deals: rules.observe(first_of(deals)), rules.deals)
    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=params,
        observation_space=Box(0.0, 1.0, features.shape),
        action_space=Discrete(rules.num_actions),
        max_steps=rules.max_moves,
        render=None if render is None else lambda state, params: render(state.game),
        rules=rules if small else None,
        expert=None if expert is None else lambda state, params: expert(state.game),
    )


def first_of(deals: Tree) -> Tree:
    """Return the first of the states in `deals`."""
    return jax.tree.map(lambda x: jnp.asarray(x)[0], deals)


def forfeit(mover: Array, players: int = PLAYERS) -> Array:
    """Return the rewards, float32 [N], when `mover` has made an illegal move."""
    return jnp.where(jnp.arange(players) == mover, -1.0, 1.0 / (players - 1))


def one_hot(index: Array | int, size: int) -> Array:
    """One-hot encode `index`, float32 [size]; zeros for an index of -1."""
    return (jnp.arange(size) == index).astype(jnp.float32)
