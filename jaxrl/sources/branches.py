"""Branches: episodes that are played on from steps of other episodes, to see what these are worth.

source = episodes(start_key(env), 64, prompts, keep_states=True)
source = with_branches(source, env, cuts, points=4, branches=9)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core import memory as memories
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    Transition,
    Tree,
)
from jaxrl.sources.rollouts import window


def with_branches(
    source: Source,
    env: Environment,
    cuts: Callable[[Batch], Array],
    points: int,
    branches: int,
) -> Source:
    """Play the episodes of `source` on from some of their steps, `branches` times from each.

    Branches begin with the state and the memory that the episode had before that step, and differ
    in what follows. Transitions get two extras: `cut` [T, B], whether branches begin before this
    step, and `value` [T, B], the mean over branches of the return of the whole episode if it is
    continued from there; 0 where none begin.

    source: whole episodes of `env` with `keep_states`, also if each is told its start
        (`start_key`).
    env: what they are played in, with its own parameters.
    cuts: whether branches may begin before each step, bool [T, B], from a batch. The first
        `points` (K) of each episode count.
    branches: number of branches from a step (N).

    B (1 + K N) episodes of T steps are simulated and counted, whether or not there are as many
    cuts. Source: Monte Carlo values of Kazemnejad et al., 2024, "VinePPO", arXiv:2410.01679.
    Raises `UserError` for sizes below 1, and for a source on the host.
    """
    if source.host_play:
        raise UserError(f"'{source.name}' is played on the host, whose states cannot be copied.")
    if points < 1 or branches < 1:
        raise UserError(f"points is {points} and branches {branches}; both must be at least 1.")
    times = 1 + points * branches

    def collect(state, policy, key):
        play_key, branch_key = jax.random.split(key)
        state, batch, metrics = window(source, state, policy, play_key)
        mask = batch.mask
        assert mask is not None
        extras = dict(batch.transitions.extras)
        states = extras.pop("env_state")
        transitions = dataclasses.replace(batch.transitions, extras=extras)
        batch = dataclasses.replace(batch, transitions=transitions)
        cut = cuts(batch) & mask
        number = jnp.cumsum(cut, 0)
        cut &= number <= points
        wanted = jnp.arange(1, points + 1)[:, None, None]
        here = cut & (number == wanted)  # [K, T, B]
        begin = jnp.where(here.any(1), here.argmax(1), len(number))
        begin = jnp.repeat(begin, branches, 0)
        played, running = play_on(env, policy, batch, states, begin, branch_key)
        total = jnp.where(running, played.reward, 0).sum(0).reshape(-1, points, branches)
        mean = total.mean(-1).T
        value = (here * mean[:, None]).sum(0)
        extras |= {"cut": cut, "value": value}
        transitions = dataclasses.replace(transitions, extras=extras)
        return (
            state,
            dataclasses.replace(batch, transitions=transitions, env_steps=batch.env_steps * times),
            metrics,
        )

    return dataclasses.replace(
        source,
        name=f"with_branches({source.name})",
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        env_steps=source.env_steps * times,
    )


def play_on(
    env: Environment,
    policy: Policy,
    batch: Batch,
    states: Tree,
    begin: Array,
    key: Key,
    keep_states: bool = False,
) -> tuple[Transition, Array]:
    """Play copies of episodes [T, B] that go their own ways from step `begin` [M, B] on; T: never.

    A copy reads what its episode did before that step, and then says what `policy` says.

    batch: whole episodes of `env`, each from its start. states: the environment's state before each
        step, [T, B].
    keep_states: give the copies the extra `env_state` [T, B M], their state before each step.

    Returns the copies as transitions [T, B M], those of an episode side by side, and a mask that is
    False after their ends.
    """
    t, (count, size) = batch.transitions, begin.shape
    own = begin.T.reshape(-1)  # those of an episode side by side, so that devices can share them
    copy = lambda tree: jax.tree.map(lambda x: jnp.repeat(x, count, 0), tree)
    blank = policy.memory(count * size)
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def body(carry, now):
        state, live, memory, running = carry
        number, key, there, state_there = now
        followed = number < own  # what the episode did is only read
        state = trees.where(number == own, copy(state_there), state)
        timestep = trees.where(number <= own, copy(there.timestep), live)
        act_key, step_key = jax.random.split(key)
        memory = memories.restart(timestep.restarts, blank, memory)
        action, memory, extras = policy.act(policy.state, timestep, memory, act_key, False)
        keys = jax.random.split(step_key, len(own))
        after_state, after = trees.strong(step(keys, state, action, env.params))
        taken = Transition(timestep, action, after, (), extras)
        old = dataclasses.replace(there, task=(), extras={n: there.extras[n] for n in extras})
        taken = trees.where(followed, copy(old), taken)
        if keep_states:
            before = trees.where(followed, copy(state_there), state)
            taken = dataclasses.replace(taken, extras={**taken.extras, "env_state": before})
        state = trees.where(running & ~followed, after_state, state)
        return (state, after, memory, running & ~taken.done), (taken, running)

    first = lambda tree: copy(jax.tree.map(lambda x: x[0], tree))
    begun = first(states), first(t.next_timestep), blank, jnp.ones(count * size, bool)
    steps = jnp.arange(len(t.reward)), jax.random.split(key, len(t.reward))
    return jax.lax.scan(body, begun, (*steps, t, states))[1]
