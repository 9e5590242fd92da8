"""Whole episodes: a batch holds one complete episode of each stream, from its first step on."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core import stream
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Policy,
    ReadingAct,
    Source,
    Tasks,
    Tree,
    struct,
)
from jaxrl.sources.handed import host_source
from jaxrl.sources.rollouts import SPLIT, check_shards, check_tasks, score_tasks
from jaxrl.tasks.basic import fixed


@struct
class EpisodesState:
    """State of a source of whole episodes."""

    tasks: Tree
    batches: Array
    """Batches so far: int32."""
    order: Array
    """Numbers of the streams, split over devices: int32 [B]."""


def episodes(
    env: Environment,
    num_envs: int,
    tasks: Tasks | None = None,
    num_shards: int = 1,
    keep_states: bool = False,
) -> Source:
    """Collect one episode from each of `num_envs` (B) new streams.

    A batch holds transitions [T, B] with T = `env.max_steps`, and a mask that is False after the
    first episode of each stream. So short episodes are not favored, as they would be if windows of
    rollouts were cut into complete episodes. All T x B steps are simulated and counted.

    The first `env.forced_steps`, such as those of a prompt, are read at once by a policy that can
    (`ReadingAct`), and what follows step by step; the result is the same.

    num_shards: logical shards of the streams.
    keep_states: whether transitions hold the environment's state before each step, as the extra
        `env_state`, from which an episode can be played on (`with_branches`).

    Raises `UserError` if the environment has no time limit, and for sizes that do not fit.
    """
    if env.max_steps is None:
        raise UserError(f"episodes needs a time limit; '{env.name}' has none (see time_limit).")
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, got {num_envs}.")
    check_shards(num_shards, num_envs=num_envs)
    check_tasks(env, tasks)
    tasks = tasks or fixed(env.params)
    num_steps = env.max_steps
    env_steps = num_envs * num_steps

    def init(key, hyper, policy):
        return EpisodesState(tasks.init(key, policy, hyper), jnp.int32(0), jnp.arange(num_envs))

    def collect(state, policy, key):
        start_key, key = jax.random.split(key)
        streams = stream.start(env, tasks, state.tasks, policy, start_key, num_envs)
        # All streams are new, so the numbers in `order` tell the devices which of them are theirs.
        # (Memories are all the same and stay: XLA would compute a gather from a constant.)
        memory, streams = streams.memory, dataclasses.replace(streams, memory=None)
        streams = jax.tree.map(lambda x: x[state.order], streams)
        streams = dataclasses.replace(streams, memory=memory)

        def body(player, carry, step_input):
            streams, running = carry
            before = streams.env_state
            streams, _, transition, endings = stream.advance(
                env, tasks, state.tasks, streams, player, step_input
            )
            if keep_states:
                extras = transition.extras | {"env_state": before}
                transition = dataclasses.replace(transition, extras=extras)
            # Only each stream's first episode counts, in the statistics too.
            endings = dataclasses.replace(endings, done=endings.done & running)
            return (streams, running & ~endings.done), (transition, running, endings)

        inputs = stream.step_inputs(key, num_steps)
        carry = streams, jnp.ones(num_envs, bool)
        reading = min(env.forced_steps, num_steps) if isinstance(policy.act, ReadingAct) else 0
        if not reading:
            carry, played = jax.lax.scan(functools.partial(body, policy), carry, inputs)
        else:
            # The forced steps are played alone, and then read at once.
            forced = jax.tree.map(lambda x: x[:reading], inputs)
            inputs = jax.tree.map(lambda x: x[reading:], inputs)
            carry = dataclasses.replace(streams, memory=()), carry[1]
            carry, begun = jax.lax.scan(functools.partial(body, _obey(env)), carry, forced)
            t = begun[0]
            memory, extras = policy.act.read(policy.state, t.timestep, memory, t.action)
            begun = dataclasses.replace(t, extras=extras | t.extras), *begun[1:]
            carry = dataclasses.replace(carry[0], memory=memory), carry[1]
            carry, played = jax.lax.scan(functools.partial(body, policy), carry, inputs)
            played = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), begun, played)
        (streams, _), (transitions, mask, endings) = carry, played
        batches = state.batches + 1
        batch = Batch(
            transitions,
            env_steps=batches.astype(jnp.float32) * env_steps,
            memory=streams.memory,
            mask=mask,
        )
        # What began in the padding is not counted as begun.
        counted = dataclasses.replace(transitions.timestep, first=transitions.first & mask)
        counted = dataclasses.replace(transitions, timestep=counted)
        task_state = tasks.update(state.tasks, policy, counted)
        return EpisodesState(task_state, batches, state.order), batch, stream.statistics(endings)

    def feedback(state, batch, feedback):
        return dataclasses.replace(state, tasks=score_tasks(tasks, state.tasks, batch, feedback))

    source = Source(
        f"episodes({env.name})",
        init,
        collect,
        sample=lambda state, fresh, key: fresh,
        feedback=feedback,
        env_steps=env_steps,
        num_envs=num_envs,
        hyper=dict(tasks.hyper),
        partition=EpisodesState(REPLICATED, REPLICATED, SPLIT),
    )
    return host_source(source, env, fresh=True) if env.host else source


def _obey(env: Environment) -> Policy:
    """Return the policy of steps in which one action alone is legal; it remembers nothing."""

    def act(state, timestep, memory, key, greedy):
        return timestep.legal_actions.argmax(-1).astype(env.action_space.dtype), memory, {}

    return Policy(act, lambda n: ())
