"""A game as a task for one agent: the opponent moves inside the environment."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Tree, struct
from jaxrl.envs import registry
from jaxrl.envs.games.rules import PLAYERS
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers.lifting import lift_fields, shapes

RANDOM = -1  # the side is drawn anew in each episode


@struct
class Params:
    """`opponent`, the state that the opponent's policy reads, is a parameter of the environment:
    which opponent the next episode is against is for `Tasks` to say."""

    inner: Any
    opponent: Any
    side: Any = RANDOM  # which player the agent is: 0, 1 or RANDOM
    goal: Any = None  # what the agent's policy is conditioned on: the channel `goal`
    opponent_goal: Any = None  # what the opponent's policy is conditioned on


@struct
class State:
    inner: Any
    timestep: TimeStep  # of the game, with the rewards of both
    memory: Tree  # the opponent's, [1]
    side: Array  # int32
    total: Array  # float32 [2]: what each has got so far


def against(env: Environment, opponent: Policy, params: Tree = None) -> Environment:
    """`env`, a game for two players, as one agent plays it against `opponent`.

    The agent is one side, `Params.side`, and every time step is its turn or the episode's end; its
    reward is what it got since its last move, also where the game ends on the opponent's. `role`
    is its side. Metrics: `outcome`, what the agent got in the game, `won`, 1 if that is more than
    what the opponent got, 1/2 if they got alike, and `lost`, 1 if it is less.

    params: the `Params`; by default against `opponent.state`, on a side drawn for each episode.
    A later state of the same opponent is another `Params.opponent`, and the same program.
    Raises `UserError` unless `env` is a game for two.
    """
    channels = shapes(env)
    if channels.role is None or channels.reward.shape != (PLAYERS,):
        raise UserError(f"'{env.name}' is not a game for two players; against needs one.")
    params = Params(env.params, opponent.state) if params is None else params

    def answer(key: Key, state: State, params: Params) -> State:
        """The opponent moves until it is the agent's turn or the game is over."""

        def opponent_moves(carry):
            _, state = carry
            return (state.timestep.role != state.side) & ~state.timestep.done

        def move(carry):
            key, state = carry
            key, act_key, step_key = jax.random.split(key, 3)
            seen = dataclasses.replace(state.timestep, goal=params.opponent_goal)
            action, memory, _ = opponent.act(
                params.opponent, jax.tree.map(lambda x: x[None], seen), state.memory, act_key, False
            )
            action = jax.tree.map(lambda x: x[0], action)
            inner, timestep = env.step(step_key, state.inner, action, params.inner)
            total = state.total + timestep.reward
            return key, State(inner, timestep, memory, state.side, total)

        # What is carried is a game and no weights: under vmap they stay outside of the loop.
        return jax.lax.while_loop(opponent_moves, move, (key, state))[1]

    def agent_timestep(state: State, before: Array, params: Params) -> TimeStep:
        """What the agent sees; `before` [2] is what both had got when it moved."""
        gain = state.total - before
        lead = state.total[state.side] - state.total[1 - state.side]
        return dataclasses.replace(
            state.timestep,
            reward=gain[state.side],
            role=state.side,
            goal=_float(params.goal),
            metrics={
                **(state.timestep.metrics or {}),
                "outcome": state.total[state.side],
                "won": (jnp.sign(lead) + 1) / 2,
                "lost": (lead < 0).astype(jnp.float32),
            },
        )

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        side_key, reset_key, key = jax.random.split(key, 3)
        inner, timestep = env.reset(reset_key, params.inner)
        drawn = jax.random.randint(side_key, (), 0, PLAYERS)
        side = jnp.where(jnp.asarray(params.side) == RANDOM, drawn, params.side)
        nothing = jnp.zeros(PLAYERS, jnp.float32)
        memory = trees.strong(opponent.memory(1))
        state = State(inner, timestep, memory, side.astype(jnp.int32), nothing)
        state = answer(key, trees.strong(state), params)
        # The opponent may have opened, but the agent's episode begins here.
        timestep = dataclasses.replace(agent_timestep(state, nothing, params), first=jnp.ones((), bool))
        return state, dataclasses.replace(timestep, reward=jnp.zeros((), jnp.float32))

    def step(key: Key, state: State, action: Array, params: Params) -> tuple[State, TimeStep]:
        step_key, key = jax.random.split(key)
        before = state.total
        inner, timestep = env.step(step_key, state.inner, action, params.inner)
        total = before + timestep.reward
        state = answer(key, State(inner, timestep, state.memory, state.side, total), params)
        return state, agent_timestep(state, before, params)

    return dataclasses.replace(
        env,
        name=f"against({env.name})",
        reset=reset,
        step=step,
        params=params,
        scores={**env.scores, "won": "won"},
        **lift_fields(env, state=True, params=True),
    )


@functools.cache
def against_random(game: str = "kuhn_poker") -> Environment:
    """The built-in `game` for one agent, against random legal moves: to train in (`--env
    jaxrl.envs.games.opponents:against_random --env-params game=negotiation`), or to evaluate in."""
    env = registry.make(game)
    return against(env, random_policy(env))


def _float(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
