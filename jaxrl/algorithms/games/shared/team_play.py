"""Games of two teams whose players act at the same time: an agent that plays one team against its
own past selves, and one policy for both teams."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core import random
from jaxrl.core.types import Agent, Environment, Policy, Tree
from jaxrl.envs.policies import random_policy
from jaxrl.envs.wrappers.one_team import Params, group_by_team, one_team, view_of_team
from jaxrl.evaluation.matches import two_memories
from jaxrl.kit.state import acting_state
from jaxrl.kit.wrapping import params_of


def blank_team(env: Environment) -> Environment:
    """Return `env`, a game of two teams, as its first team sees it, against random play: for
    building agents."""
    nobody = Policy(lambda *_: (None, (), {}), lambda n: ())
    return one_team(env, random_policy(one_team(env, nobody)))


def team_self_play(
    env: Environment, agent: Agent, parts: tuple[str, ...]
) -> tuple[Environment, Callable[[Tree], Tree]]:
    """Return `env` as a task for the first team against a team that plays by an agent's parameters,
    and the function that takes these parameters from the agent's state.

    Tasks set the opponent's parameters. env: a game of two teams. agent: built for `blank_team`.
    parts: names of the parts that the agent needs to act.
    """

    def snapshot(state: Tree) -> Tree:
        params = params_of(state)
        return {name: params[name] for name in parts}

    shapes = jax.eval_shape(lambda: snapshot(agent.init(random.key(0), agent.hyper)))
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)  # until tasks set them
    act = lambda params, *rest: agent.act(acting_state(params), *rest)
    opponent = Policy(act, agent.memory, nothing)
    return one_team(env, opponent, Params(env.params, nothing)), snapshot


def both_teams(env: Environment, policy: Policy) -> Policy:
    """Return the policy that plays both teams of `env` as `policy` plays the first, each with a
    memory of its own."""
    first, second = group_by_team(env.agents).values()
    act = _play_both(env, policy.act, tuple(zip(first, second, strict=True)))
    return Policy(act, two_memories(policy.memory), policy.state)


@functools.cache
def _play_both(env: Environment, act: Any, pairs: tuple[tuple[str, str], ...]) -> Any:
    def play(state, timestep, memory, key, greedy):
        both = [view_of_team(env, timestep, team) for team in (0, 1)]
        seen = jax.tree.map(lambda *x: jnp.concatenate(x), *both)
        flat = jax.tree.map(lambda x: jnp.concatenate([x[:, 0], x[:, 1]]), memory)
        action, flat, _ = act(state, seen, flat, key, greedy)
        one, other = (jax.tree.map(lambda x, i=i: jnp.split(x, 2)[i], action) for i in (0, 1))
        memory = jax.tree.map(lambda x: jnp.stack(jnp.split(x, 2), 1), flat)
        return {a: one[a] for a, _ in pairs} | {b: other[a] for a, b in pairs}, memory, {}

    return play
