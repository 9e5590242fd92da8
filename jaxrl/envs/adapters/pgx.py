"""Games of pgx (Koyamada et al., 2023, arXiv:2303.17503), by names such as `pgx/tic_tac_toe`.

A game with several players is the game itself: `role` is the player to move, the observation is
that player's, and the reward is a vector with one entry for each player, as algorithms for games
expect. With `opponent="random"` it is a task for one agent: `role` is the side that the agent
plays, drawn anew in each episode, the others choose legal moves at random, every observation is one
at which the agent moves, and the reward is the agent's. Games for one player are always such tasks.
An illegal move ends the game at the expense of the player who made it; `legal_actions` says which
moves are legal. Games end by their own rules; a clock at `episode_length` truncates those that need
not end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import errors, random
from jaxrl.core.spaces import Discrete, sample_legal
from jaxrl.core.types import Array, Environment, TimeStep, struct
from jaxrl.envs.adapters import check_name, construct, package
from jaxrl.envs.adapters.conversions import cast, cast_like, stable_shapes, unbounded_space
from jaxrl.envs.wrappers.time_limit import time_limit

OPPONENTS = ("none", "random")


@struct
class State:
    """State of pgx's game, and the player that the agent is."""

    game: Any
    side: Array  # int32


def builder(name: str) -> Callable[..., Environment]:
    """Return the builder of pgx's game `name`. Raises `UserError` if there is none."""
    check_name("pgx", name, package("pgx").available_envs())
    return functools.partial(build, name)


def build(name: str, opponent: str = "none", episode_length: int = 10_000) -> Environment:
    """Build pgx's game `name`, for all its players or for one against an `opponent`. Raises
    `UserError` for an unknown opponent."""
    if opponent not in OPPONENTS:
        raise errors.unknown("opponent", opponent, OPPONENTS)
    theirs = construct(f"pgx/{name}", lambda: package("pgx").make(name))
    begin, follow = jax.jit(theirs.init), jax.jit(theirs.step)  # for eager use
    alone, against = theirs.num_players == 1, opponent == "random" and theirs.num_players > 1
    key, action = random.key(0), jnp.int32(0)
    shapes = construct(
        f"pgx/{name}",
        lambda: stable_shapes(lambda: begin(key), lambda game: follow(game, action, key)),
    )
    observation_space = unbounded_space(shapes.observation)

    def play(key, game, action):
        return cast_like(shapes, follow(game, action, key))

    def others(key, game, side):
        """Play on until it is the turn of `side`; return the game and the reward of `side`."""

        def their_turn(carry):
            _, game, _ = carry
            return (game.current_player != side) & ~(game.terminated | game.truncated)

        def move(carry):
            key, game, reward = carry
            key, choice, chance = jax.random.split(key, 3)
            action = sample_legal(game.legal_action_mask, choice)
            game = play(chance, game, action)
            return key, game, reward + game.rewards[side]

        zero = jnp.zeros((), shapes.rewards.dtype)
        return jax.lax.while_loop(their_turn, move, (key, game, zero))[1:]

    def timestep(state, reward, first):
        game = state.game
        return TimeStep(
            cast(observation_space, game.observation),
            jnp.where(first, 0.0, jnp.asarray(reward, jnp.float32)),
            terminated=game.terminated & ~first,
            truncated=game.truncated & ~game.terminated & ~first,
            first=first,
            legal_actions=game.legal_action_mask,
            role=None if alone else state.side if against else _int32(game.current_player),
        )

    def reset(key, params):
        deal, draw, chance = jax.random.split(key, 3) if against else (key, key, key)
        game, side = cast_like(shapes, begin(deal)), jnp.int32(0)
        if against:
            side = jax.random.randint(draw, (), 0, theirs.num_players)
            game, _ = others(chance, game, side)
        reward = game.rewards[0] if alone or against else game.rewards
        state = State(game, side)
        return state, timestep(state, jnp.zeros_like(reward), jnp.ones((), bool))

    def step(key, state, action, params):
        mine, chance = jax.random.split(key) if against else (key, key)
        game = play(mine, state.game, action)
        reward = game.rewards[state.side] if alone or against else game.rewards
        if against:
            game, later = others(chance, game, state.side)
            reward += later
        state = State(game, state.side)
        return state, timestep(state, reward, jnp.zeros((), bool))

    env = Environment(
        f"pgx/{name}", reset, step, (), observation_space, Discrete(theirs.num_actions)
    )
    return time_limit(env, episode_length)


def _int32(x: Array) -> Array:
    return jnp.asarray(x, jnp.int32)
