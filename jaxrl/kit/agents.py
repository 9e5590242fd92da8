"""Several learners in one run: agents that act at the same time, each with an algorithm of its own.

`seen_by(env, name)` is the environment as one agent sees it, to build that agent for. `joint` lets
agents so built act and learn together; `shared` lets one agent play several alike ones. Rewards,
observations, actions, memories and algorithms may differ; what they have in common is the source.

    env = make("speaker_listener")
    one = {name: ppo.agent(seen_by(env, name)) for name in agent_names(env)}
    algorithm = learn(joint(env, one), rollouts(env, 64, 32))
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Agent, Batch, Environment, Info, Key, TimeStep, Tree, struct
from jaxrl.kit.wrapping import within


@struct
class Joint:
    """States of the agents, by name."""

    agents: dict[str, Tree]


def agent_names(env: Environment) -> tuple[str, ...]:
    """Return the names of the agents that act at once, in the order of their rewards.

    Raises `UserError` for an environment of one agent, and where each agent has a reward but the
    environment does not say whose is whose (`Environment.agents`).
    """
    if not isinstance(env.action_space, dict):
        raise UserError(
            f"The actions of '{env.name}' are those of one agent; several that act at once have a "
            "dict of action spaces, by name."
        )
    rewards = example_timestep(env, agents=True).reward.shape[1:]
    if not rewards:
        return env.agents or tuple(sorted(env.action_space))
    if not env.agents:
        raise UserError(
            f"'{env.name}' rewards {rewards[0]} agents and does not say whose reward is whose; "
            "name them in this order: Environment(agents=(...))."
        )
    if rewards != (len(env.agents),):
        raise UserError(
            f"'{env.name}' has {len(env.agents)} agents and rewards of shape {list(rewards)}; each "
            "agent needs one."
        )
    return env.agents


def _view(env: Environment, name: str, timestep: TimeStep) -> TimeStep:
    """Return a time step as the agent `name` sees it: its observation, legal actions and reward.

    An agent that is dead is in an episode that has ended.
    """
    names = agent_names(env)
    if name not in names:
        raise unknown(f"agent of '{env.name}'", name, names)
    own = names.index(name)
    several = example_timestep(env, agents=True).reward.ndim > 1
    legal, alive = timestep.legal_actions, timestep.alive
    terminated = timestep.terminated
    if alive is not None:
        terminated = terminated | ~alive[..., own]
    return dataclasses.replace(
        timestep,
        observation=timestep.observation[name],
        legal_actions=legal[name] if legal else None,
        reward=timestep.reward[..., own] if several else timestep.reward,
        terminated=terminated,
        alive=None,
    )


@functools.cache
def seen_by(env: Environment, name: str) -> Environment:
    """Return `env` as the agent `name` sees it. It describes, and cannot be played.

    Raises `UserError` as `agent_names` does, and for a name that is none of them.
    """
    example = example_timestep(env, agents=True)
    _view(env, name, example)

    def reset(key, params):
        state, timestep = env.reset(key, params)
        return state, _view(env, name, timestep)

    def step(key, state, action, params):
        raise UserError(f"'{env.name}' as {name} sees it cannot be played; play '{env.name}'.")

    return dataclasses.replace(
        env,
        name=f"{env.name} as {name}",
        reset=reset,
        step=step,
        observation_space=env.observation_space[name],  # type: ignore[index]
        action_space=env.action_space[name],  # type: ignore[index]
        agents=(),
        render=None,
        expert=None,
        goals=None,
        rules=None,
        state_of=None,
        judge=None,
    )


def joint(env: Environment, agents: Mapping[str | tuple[str, ...], Agent]) -> Agent:
    """Return the agents of `env` as one agent.

    agents: by name, each built for `seen_by(env, name)`; for a tuple of names, one agent that plays
        all of these alike ones (`shared`). Hyperparameters and metrics have the names before them
        (`listener.discount`, `listener_loss`); those of a tuple its first name.

    An agent that died does not learn until the next episode. What agents report about a batch to
    the source (`net.feed`, a replay's priorities) is dropped, since transitions are shared: give
    them a replay that draws uniformly. Raises `UserError` unless every agent of `env` has exactly
    one.
    """
    names = agent_names(env)
    players: dict[str, tuple[tuple[str, ...], Agent]] = {}
    for key, agent in agents.items():
        group = key if isinstance(key, tuple) else (key,)
        for name in group:
            if name not in names:
                raise unknown(f"agent of '{env.name}'", name, names)
        players[group[0]] = group, within(agent, group[0])
    covered = [name for group, _ in players.values() for name in group]
    for name in names:
        if covered.count(name) != 1:
            raise UserError(
                f"The agent '{name}' of '{env.name}' has {covered.count(name)} learners; it needs "
                "exactly one."
            )
    own_key = lambda key, name: jax.random.fold_in(key, zlib.crc32(name.encode()))

    def init(key: Key, hyper: Any) -> Joint:
        return Joint(
            {
                name: agent.init(own_key(key, name), {n: hyper[n] for n in agent.hyper})
                for name, (_, agent) in players.items()
            }
        )

    def act(state: Joint, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
        actions, memories, extras = {}, {}, {}
        for name, (group, agent) in players.items():
            seen = _stack(env, group, timestep)
            action, after, said = agent.act(
                state.agents[name], seen, _flat(memory[name], group), own_key(key, name), greedy
            )
            memories[name] = _by_environment(after, group)
            actions |= _split(action, group)
            extras[name] = said
        return actions, memories, extras

    def view(batch: Batch, name: str, group: tuple[str, ...]) -> Batch:
        x = batch.transitions
        look = functools.partial(_stack, env, group)
        mask = batch.mask if batch.mask is None else _repeat(batch.mask, len(group))
        if x.timestep.alive is not None:
            alive = _join({n: x.timestep.alive[..., names.index(n)] for n in group}, group,
                          x.timestep.first.ndim)  # fmt: skip
            mask = alive if mask is None else mask & alive
        transitions = dataclasses.replace(
            x,
            timestep=look(x.timestep),
            next_timestep=look(x.next_timestep),
            action=_join({n: x.action[n] for n in group}, group, x.timestep.first.ndim),
            extras=x.extras[name],
        )
        tail = batch.tail and (look(batch.tail[0]), _flat(batch.tail[1][name], group))
        memory = None if batch.memory is None else _flat(batch.memory[name], group)
        return dataclasses.replace(
            batch, transitions=transitions, memory=memory, tail=tail, mask=mask
        )

    def update(state: Joint, batch: Batch, key: Key) -> tuple[Joint, Info]:
        new, metrics = {}, {}
        for name, (group, agent) in players.items():
            seen = view(batch, name, group)
            new[name], info = agent.update(state.agents[name], seen, own_key(key, name))
            metrics |= {f"{name}_{n}": value for n, value in info.metrics.items()}
        return Joint(new), Info(metrics)

    def hand_over(state: Joint) -> Joint:
        return Joint({n: players[n][1].hand_over(x) for n, x in state.agents.items()})

    def adopt(state: Joint, other: Any) -> Any:
        if not isinstance(other, Joint):
            return other  # which will not fit
        return Joint({n: players[n][1].adopt(state.agents[n], x) for n, x in other.agents.items()})

    def needs(name: str, path: str) -> str:
        return path.replace("transitions.extras.", f"transitions.extras.{name}.")

    return Agent(
        f"joint({', '.join(f'{name}: {agent.name}' for name, (_, agent) in players.items())})",
        init,
        act,
        update,
        memory=lambda n: {
            name: _by_environment(agent.memory(n * len(group)), group)
            for name, (group, agent) in players.items()
        },
        hyper={n: v for _, agent in players.values() for n, v in agent.hyper.items()},
        needs=tuple(needs(name, p) for name, (_, agent) in players.items() for p in agent.needs),
        hand_over=hand_over,
        adopt=adopt,
        in_evaluation={
            n: x for _, agent in players.values() for n, x in agent.in_evaluation.items()
        },
    )


def _stack(env: Environment, group: tuple[str, ...], timestep: TimeStep) -> TimeStep:
    """Return what a group of agents sees, as the streams of one agent: leaves [..., B, ...] of each
    agent become [..., B N, ...], the agents of one environment side by side."""
    each = {name: _view(env, name, timestep) for name in group}
    return _join(each, group, timestep.first.ndim)


def _join(trees: Mapping[str, Tree], group: tuple[str, ...], ndim: int) -> Tree:
    """Leaves [..., B, ...] by agent as [..., B N, ...]; `ndim` axes up to B."""
    if len(group) == 1:
        return trees[group[0]]

    def wide(*x):
        both = jnp.stack(x, ndim)
        return both.reshape(*both.shape[: ndim - 1], -1, *both.shape[ndim + 1 :])

    return jax.tree.map(wide, *(trees[name] for name in group))


def _split(tree: Tree, group: tuple[str, ...]) -> dict[str, Tree]:
    """Leaves [B N, ...] by agent, [B, ...]."""
    if len(group) == 1:
        return {group[0]: tree}
    rows = lambda i: jax.tree.map(lambda x: x.reshape(-1, len(group), *x.shape[1:])[:, i], tree)
    return {name: rows(i) for i, name in enumerate(group)}


def _by_environment(memory: Tree, group: tuple[str, ...]) -> Tree:
    """Leaves [B N, ...] as [B, N, ...], so that an environment that resets resets all of them."""
    if len(group) == 1:
        return memory
    return jax.tree.map(lambda x: x.reshape(-1, len(group), *x.shape[1:]), memory)


def _flat(memory: Tree, group: tuple[str, ...]) -> Tree:
    """Leaves [B, N, ...] as [B N, ...]."""
    if len(group) == 1:
        return memory
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), memory)


def _repeat(mask: jax.Array, count: int) -> jax.Array:
    """A mask [..., B] for `count` agents of each environment, [..., B N]."""
    return jnp.repeat(mask, count, axis=-1) if count > 1 else mask
