"""Games as tasks for one agent: the opponent moves inside the environment."""

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

RANDOM = -1  # the side is drawn in each episode


@struct
class Params:
    """Parameters of `against`. The state of the opponent's policy, `opponent`, is one of them, so
    that `Tasks` can choose the opponent of the next episode."""

    inner: Any
    opponent: Any
    side: Any = RANDOM  # the player that the agent is: 0, 1 or RANDOM
    goal: Any = None  # what the agent's policy is conditioned on, in the channel `goal`
    opponent_goal: Any = None  # what the opponent's policy is conditioned on


@struct
class State:
    inner: Any
    timestep: TimeStep  # of the game, with the rewards of both players
    memory: Tree  # memory of the opponent, [1]
    side: Array  # int32
    total: Array  # float32 [2]: return of each player so far


def against(env: Environment, opponent: Policy, params: Tree = None) -> Environment:
    """Turn `env`, a game for two players, into a task for one agent against `opponent`.

    The agent plays one side, `Params.side`, and every time step is its turn or the episode's end;
    its reward is what it received since its last move, even if the game ends on the opponent's.
    (Where a clock truncates the game on the opponent's turn, the last observation is the
    opponent's, and the value there is not the agent's; built-in games have no clock.)
    `role` is its side. Metrics: `outcome`, the agent's return in the game; `won`, 1 if it exceeds
    the opponent's and 1/2 if they are equal; `lost`, 1 if it is less.

    params: the `Params`; by default with `opponent.state` and a side drawn in each episode. A later
    state of the same opponent is another `Params.opponent` in the same program.
    Raises `UserError` unless `env` is a game for two.
    """
    channels = shapes(env)
    if channels.role is None or channels.reward.shape != (PLAYERS,):
        raise UserError(f"'{env.name}' is not a game for two players; against needs one.")
    params = Params(env.params, opponent.state) if params is None else params

    def answer(key: Key, state: State, params: Params) -> State:
        """Let the opponent move until it is the agent's turn or the game is over."""

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

        # The carry is a game and no weights, which under vmap stay outside of the loop.
        return jax.lax.while_loop(opponent_moves, move, (key, state))[1]

    def agent_timestep(state: State, before: Array, params: Params) -> TimeStep:
        """Return the agent's time step; `before` [2] holds both returns when it moved."""
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
        timestep = dataclasses.replace(
            agent_timestep(state, nothing, params), first=jnp.ones((), bool)
        )
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
    """A built-in `game` for one agent, against random legal moves: to train in (`--env
    jaxrl.envs.games.opponents:against_random --env-params game=negotiation`), or to evaluate in."""
    env = registry.make(game)
    return against(env, random_policy(env))


def _float(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
