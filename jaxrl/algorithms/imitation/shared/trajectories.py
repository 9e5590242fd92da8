"""A few episodes of a scripted player in numbered levels, for environments that draw levels."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from jaxrl import losses
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY
from jaxrl.core.types import Array, Environment, Transition
from jaxrl.envs.policies import mixed_skill
from jaxrl.envs.registry import vary
from jaxrl.envs.wrappers import expert_channel
from jaxrl.kit import Net, group, loss, static
from jaxrl.sources.played import record
from jaxrl.sources.rollouts import rollouts, window
from jaxrl.tasks import each


@group
class Trajectories:
    """Episodes of a scripted player: how many, of how many levels, and how good."""

    trajectories: int = static(10, low=1, high=MANY)
    """Number of episodes."""
    levels: int = static(10, low=1, high=MANY)
    """Number of levels that the episodes are from, one after the other: those numbered from 0."""
    skill: float = static(1.0, low=0, high=1)
    """Probability that an action of the player is the expert's; the others are random."""
    seed: int = static(0, low=0, high=2**32 - 1)
    """Seed of the player's random actions."""

    def load(self, env: Environment) -> Transition:
        """Return the steps of the episodes, one after the other: [N], on the host.

        Raises `UserError` for an environment without an expert, or without levels.
        """
        return _play(env, self.trajectories, self.levels, self.skill, self.seed)


@functools.cache
def _play(env: Environment, number: int, levels: int, skill: float, seed: int) -> Transition:
    """Return the steps of episodes in levels [N], one after the other."""
    count = min(levels, number)
    steps, exists = play_each(env, "level", tuple(range(count)), number, skill=skill, seed=seed)
    return jax.tree.map(lambda x: x[exists], steps)


@functools.cache
def play_each(
    env: Environment, field: str, values: tuple[int, ...], number: int, *, skill: float, seed: int
) -> tuple[Transition, np.ndarray]:
    """Play an episode in each of several copies of an environment, on the host: its steps [number,
    max_steps], and which of them it has.

    field: the parameter in which copies differ: copy i has `values[i % len(values)]`.
    skill: probability that an action is the expert's; the others are random.
    """
    advised = expert_channel(env)
    player = mixed_skill(advised, (skill,))
    tasks = each(vary(advised, field, values))
    assert env.max_steps is not None
    source = rollouts(advised, number, env.max_steps, tasks)

    def play(key):
        start_key, key = jax.random.split(key)
        begun = source.init(start_key, {}, player)
        return record(window(source, begun, player, key)[1].transitions)

    with jax.ensure_compile_time_eval():  # also where a trace asks for it first
        played = jax.device_get(jax.jit(play)(random.key(seed)))
    # The first episode of every stream, each of which is `max_steps` steps long.
    apart = lambda x: x.reshape(number, env.max_steps, *x.shape[1:])
    last = apart(played.end)[:, :1] - np.arange(number)[:, None] * env.max_steps
    steps = dataclasses.replace(jax.tree.map(apart, played.transitions), task=(), extras={})
    return steps, np.arange(env.max_steps) <= last


@loss("actor_critic")
def cloning_loss(net: Net, x: Transition) -> Array:
    """Compute -log pi(a|s) of demonstrated actions."""
    return losses.behavior_cloning(net.actor_critic(x.timestep, ())[0].log_prob(x.action))


def check_demonstrations(env: Environment, recurrent: int, name: str) -> None:
    """Raise `UserError` for an environment without a time limit or an expert, and for memory."""
    if env.max_steps is None or env.expert is None:
        lacks = "no time limit" if env.max_steps is None else "no expert"
        raise UserError(f"'{env.name}' has {lacks}, which the demonstrations of '{name}' need.")
    if recurrent:
        raise UserError(
            f"memory.recurrent is {recurrent}, but '{name}' clones single steps; it must be 0."
        )


# The smallest settings.
SMALL_TRAJECTORIES = {"env": "empty", "trajectories": 4, "levels": 2, "hidden": (8,)}
