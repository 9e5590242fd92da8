"""Several games in one: each episode draws the game that is played.

Observation: float32 [23], the game, one-hot, then that game's own observation, then zeros. Actions:
those of the game; all others are illegal. Reward and `role` tell the games apart: player p of game
g is role 2 g + p, and the reward has an entry for each role, 0 for those of the other games. So
`reward[role]` is always the mover's, and whatever depends on the role depends on the game as well.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import Array, Environment, Key, TimeStep, Tree, struct
from jaxrl.envs.games.kuhn_poker import kuhn_poker
from jaxrl.envs.games.negotiation import negotiation
from jaxrl.envs.games.rules import PLAYERS, forfeit, one_hot
from jaxrl.envs.games.tic_tac_toe import tic_tac_toe


@struct
class State:
    number: Array  # int32: the game that is played
    games: tuple[Any, ...]  # states of all games
    role: Array  # int32: who is to move


@functools.cache
def three_games() -> Environment:
    """Tic-tac-toe, Kuhn poker and negotiation, all equally likely: the games of SPIRAL."""
    return medley("three_games", (tic_tac_toe(), kuhn_poker(), negotiation()))


def medley(name: str, games: Sequence[Environment]) -> Environment:
    """Combine `games` (each with two players, a vector as observation and a few actions) into
    one."""
    count = len(games)
    width = max(game.observation_space.shape[0] for game in games)
    actions = max(game.action_space.n for game in games)

    def select(number: Array, timesteps: Sequence[TimeStep]) -> TimeStep:
        padded = [_pad(t, i, count, width, actions) for i, t in enumerate(timesteps)]
        return jax.tree.map(lambda *x: jnp.stack(x)[number], *padded)

    def reset(key: Key, params: tuple) -> tuple[State, TimeStep]:
        draw, key = jax.random.split(key)
        number = jax.random.randint(draw, (), 0, count)
        states, first = zip(
            *(game.reset(key, p) for game, p in zip(games, params, strict=True)), strict=True
        )
        timestep = select(number, first)
        return State(number, states, jnp.asarray(timestep.role)), timestep

    def step(key: Key, state: State, action: Array, params: tuple) -> tuple[State, TimeStep]:
        # All games step, and only the one that is played counts: each is a few operations.
        states, following = zip(
            *(
                game.step(key, inner, jnp.minimum(action, game.action_space.n - 1), p)
                for game, inner, p in zip(games, state.games, params, strict=True)
            ),
            strict=True,
        )
        timestep = select(state.number, following)
        # An action that this game does not have is as illegal as any other illegal one.
        beyond = action >= jnp.asarray([game.action_space.n for game in games])[state.number]
        roles = jnp.arange(PLAYERS * count)
        mine = jnp.where(roles // PLAYERS == state.number, forfeit(state.role % 2)[roles % 2], 0.0)
        return State(state.number, states, jnp.asarray(timestep.role)), dataclasses.replace(
            timestep,
            reward=jnp.where(beyond, mine, timestep.reward),
            terminated=timestep.terminated | beyond,
        )

    def render(state: State, params: tuple):
        number = int(state.number)
        draw = games[number].render
        assert draw is not None
        return draw(state.games[number], params[number])

    return Environment(
        name=name,
        reset=reset,
        step=step,
        params=tuple(game.params for game in games),
        observation_space=Box(0.0, 1.0, (count + width,)),
        action_space=Discrete(actions),
        max_steps=max(game.max_steps or 0 for game in games),
        render=render,
    )


def _pad(timestep: TimeStep, number: int, count: int, width: int, actions: int) -> TimeStep:
    """Pad the time step of one game to one of the medley."""
    fill = lambda x, size: jnp.pad(x, (0, size - x.shape[0]))
    observation: Tree = timestep.observation
    reward = jnp.zeros((count, PLAYERS)).at[number].set(timestep.reward).reshape(-1)
    assert timestep.role is not None
    return dataclasses.replace(
        timestep,
        observation=jnp.concatenate([one_hot(number, count), fill(observation, width)]),
        reward=reward,
        role=timestep.role + PLAYERS * number,
        legal_actions=fill(timestep.legal_actions, actions),
    )
