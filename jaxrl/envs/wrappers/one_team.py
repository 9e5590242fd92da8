"""Games of two teams as tasks for one team: a policy plays the other inside the environment."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Environment, Key, Policy, TimeStep, Tree, struct
from jaxrl.envs.wrappers.lifting import lift_fields


@struct
class Params:
    """Parameters of `one_team`. The state of the opponent's policy is one of them, so that `Tasks`
    can choose the opponent of the next episode."""

    inner: Any
    opponent: Any


@struct
class State:
    inner: Any
    timestep: TimeStep  # of the game, with all agents
    memory: Tree  # memory of the opponent, [1]


def group_by_team(names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the agents of each team, in the order of `names`: those whose names are alike up to
    the last underscore."""
    teams: dict[str, list[str]] = {}
    for name in names:
        teams.setdefault(name.rpartition("_")[0] or name, []).append(name)
    return {team: tuple(members) for team, members in teams.items()}


def view_of_team(env: Environment, timestep: TimeStep, team: int) -> TimeStep:
    """Return a time step [...] of a game of two teams as the first or second `team` sees it.

    Agents have the names of the first team, and share the reward of the first of them. Entries of
    `privileged` with an axis of all agents and a further one are cut to the team's; others are
    dropped, except those without any axis.
    """
    teams = list(group_by_team(env.agents).values())
    own, names, axis = teams[0], teams[team], timestep.first.ndim
    order = np.array([env.agents.index(n) for n in names])
    share = lambda tree: {o: tree[n] for o, n in zip(own, names, strict=True)}
    legal, alive = timestep.legal_actions, timestep.alive

    def cut(entry: Any) -> Array | None:
        if not hasattr(entry, "ndim"):
            return None  # a tree, such as the expert's actions
        if entry.ndim == axis:
            return entry
        whole = entry.ndim > axis + 1 and entry.shape[axis] == len(env.agents)
        return jnp.take(entry, order, axis) if whole else None

    entries = {n: cut(x) for n, x in (timestep.privileged or {}).items()}
    return dataclasses.replace(
        timestep,
        observation=share(timestep.observation),
        reward=timestep.reward[..., order[0]],
        legal_actions=legal and share(legal),
        alive=None if alive is None else alive[..., order],
        privileged={n: x for n, x in entries.items() if x is not None} or None,
    )


def one_team(env: Environment, opponent: Policy, params: Tree = None) -> Environment:
    """Turn `env`, a symmetric game of two teams, into a task for the first team.

    Its agents share one reward, that of the first of them. `opponent` sees what the other team sees
    (`view_of_team`), its own reward included, under the names of the first team, and answers with
    actions under these names: so an agent that learned here can be its own opponent.

    params: the `Params`; by default with `opponent.state`. A later state of the same opponent is
        another `Params.opponent` in the same program.

    Raises `UserError` unless `env` has two teams of equal spaces, and a reward for each agent.
    """
    check_teams(env, "one_team")
    own, other = group_by_team(env.agents).values()
    params = Params(env.params, opponent.state) if params is None else params

    def reset(key: Key, params: Params) -> tuple[State, TimeStep]:
        inner, timestep = env.reset(key, params.inner)
        state = State(inner, timestep, trees.strong(opponent.memory(1)))
        return trees.strong(state), view_of_team(env, timestep, 0)

    def step(key: Key, state: State, action: dict, params: Params) -> tuple[State, TimeStep]:
        act_key, key = jax.random.split(key)
        seen = jax.tree.map(lambda x: x[None], view_of_team(env, state.timestep, 1))
        answer, memory, _ = opponent.act(params.opponent, seen, state.memory, act_key, False)
        answer = jax.tree.map(lambda x: x[0], answer)
        answers = {n: answer[o] for n, o in zip(other, own, strict=True)}
        inner, timestep = env.step(key, state.inner, action | answers, params.inner)
        state = State(inner, timestep, trees.strong(memory))
        return state, view_of_team(env, timestep, 0)

    return dataclasses.replace(
        env,
        name=f"one_team({env.name})",
        reset=reset,
        step=step,
        params=params,
        observation_space={n: env.observation_space[n] for n in own},  # type: ignore[index]
        action_space={n: env.action_space[n] for n in own},  # type: ignore[index]
        agents=own,
        **lift_fields(env, state=True, params=True) | {"expert": None},
    )


def check_teams(env: Environment, name: str) -> None:
    """Raise `UserError` unless `env` has two teams of equal spaces, and a reward for each agent."""
    teams = list(group_by_team(env.agents).values())
    spaces = env.observation_space, env.action_space
    alike = len(teams) == 2 and all(
        [space[n] for n in teams[0]] == [space[n] for n in teams[1]]  # type: ignore[index]
        for space in spaces
    )
    if not alike or example_timestep(env, agents=True).reward.shape != (1, len(env.agents)):
        raise UserError(
            f"{name} needs agents in two equal teams, each agent with a reward, such as those of "
            f"soccer; '{env.name}' has none."
        )
