"""Rollouts of a policy in a model that branch from the time steps of a dataset.

rounds = imagined_rollouts(dataset(x, 256), step, horizon=5, env_steps=50)
source = mixed(label(dataset(x, 13), True), replay(rounds, 10_000, 243))
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import (
    REPLICATED,
    Array,
    Batch,
    Environment,
    Key,
    Policy,
    Source,
    TimeStep,
    Transition,
    Tree,
    struct,
)
from jaxrl.sources.rollouts import window

REAL = "real"  # the extra that says of each transition whether it is a dataset's


class ImaginedStep(Protocol):
    """A step of a policy in a model."""

    def __call__(self, policy: Policy, timestep: TimeStep, key: Key, /) -> tuple[Tree, TimeStep]:
        """Return the policy's actions at time steps [B], and the time steps that they lead to:
        observation, reward and `terminated` are new, and there is no `truncated`."""
        ...


@struct
class ImaginedState:
    """State of a source of rollouts in a model."""

    data: Tree
    """State of the source of the first time steps."""
    rounds: Array
    """Windows so far: int32."""


def imagined_rollouts(data: Source, step: ImaginedStep, horizon: int, env_steps: int) -> Source:
    """Collect windows [T, B] of `horizon` (T) steps of a policy in a model, which begin at the time
    steps of B transitions of a dataset: branched rollouts (Janner et al., 2019, "When to trust your
    model: model-based policy optimization", algorithm 2).

    After an end a rollout begins again where it began. Transitions have the extra `real`, False.
    Channels that a model does not predict are left out, and nothing of the dataset's rewards and
    ends is left in them.

    data: batches of B transitions. step: what the policy does and where that leads.
    env_steps: what a window counts as, since no environment is played; such as the number of
        gradient steps between two windows.

    Logs `imagined_reward` and `imagined_ends`, means over the window's steps. Raises `UserError`
    for a horizon below 1, and if `data` are no single transitions.
    """
    if horizon < 1:
        raise UserError(f"The horizon of rollouts must be at least 1, got {horizon}.")

    def init(key, hyper, policy):
        return ImaginedState(data.init(key, hyper, policy), jnp.int32(0))

    def collect(state, policy, key):
        start_key, key = jax.random.split(key)
        inner, batch, _ = window(data, state.data, policy, start_key)
        if batch.transitions.reward.ndim != 1:
            raise UserError(
                f"imagined_rollouts needs single transitions; '{data.name}' hands out windows."
            )
        start = begin(batch.transitions.timestep)

        def one(timestep, key):
            action, after = step(policy, timestep, key)
            after = keep_predicted(after)
            x = Transition(timestep, action, after, (), {REAL: jnp.zeros_like(after.terminated)})
            return trees.where(after.terminated, start, after), x

        x = jax.lax.scan(one, start, jax.random.split(key, horizon))[1]
        rounds = state.rounds + 1
        metrics = {
            "imagined_reward": m.mean(x.reward.mean()),
            "imagined_ends": m.mean(x.terminated.mean(dtype=jnp.float32)),
        }
        counted = rounds.astype(jnp.float32) * env_steps
        return ImaginedState(inner, rounds), Batch(x, env_steps=counted), metrics

    return Source(
        f"imagined_rollouts({data.name})",
        init,
        collect,
        lambda state, fresh, key: fresh,
        env_steps=env_steps,
        hyper=data.hyper,
        partition=ImaginedState(data.partition, REPLICATED),
    )


def keep_predicted(timestep: TimeStep) -> TimeStep:
    """Return a time step with the channels alone that a model predicts or that last an episode."""
    kept = {"legal_actions", "role", "goal"}
    optional = (f.name for f in dataclasses.fields(TimeStep) if f.default is None)
    return dataclasses.replace(timestep, **{n: None for n in optional if n not in kept})


def begin(timestep: TimeStep) -> TimeStep:
    """Return time steps [B] of a dataset as the first of rollouts: without a reward or an end, and
    with the channels alone that `keep_predicted` keeps."""
    no = jnp.zeros_like(timestep.terminated)
    return dataclasses.replace(
        keep_predicted(timestep),
        reward=jnp.zeros_like(timestep.reward),
        terminated=no,
        truncated=no,
        first=no,
    )


def follow(timestep: TimeStep, change: Array, reward: Array, terminated: Array) -> TimeStep:
    """Return the time steps [B] after `timestep`, whose observations, one box, change by `change`
    [B, D]."""
    observation = timestep.observation
    after = observation + change.reshape(observation.shape).astype(observation.dtype)
    return dataclasses.replace(timestep, observation=after, reward=reward, terminated=terminated)


def true_step(env: Environment) -> ImaginedStep:
    """Return steps of the environment itself in the place of a model's.

    Raises `UserError` where a state cannot be told from a time step (`Environment.state_of`).
    """
    state_of = env.state_of
    if state_of is None:
        raise UserError(f"A time step of '{env.name}' does not tell the state, so no step is true.")

    def step(policy, timestep, key):
        act_key, key = jax.random.split(key)
        count = len(timestep.reward)
        memory = policy.memory(count)
        action = policy.act(policy.state, timestep, memory, act_key, False)[0]
        keys, state = jax.random.split(key, count), jax.vmap(state_of)(timestep)
        after = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, env.params)[1]
        return action, dataclasses.replace(after, first=timestep.first)

    return step


def label(source: Source, value: bool | int, name: str = REAL) -> Source:
    """Give transitions of `source` an extra, by default `real`, as rollouts of a model have it."""

    def sample(state, fresh, key):
        batch = source.sample(state, fresh, key)
        x = batch.transitions
        extras = {**x.extras, name: jnp.full(x.reward.shape, value)}
        return dataclasses.replace(batch, transitions=dataclasses.replace(x, extras=extras))

    return dataclasses.replace(source, sample=sample)
