"""Datasets that scripted players record, without a training run. All need an environment that has
an expert of its own:

    demonstrations  the expert's episodes
    scripted        episodes of players from poor to perfect: each draws how often it acts as the
                    expert, and acts at random otherwise
    play            the expert with random actions in between, which goes on to a new goal wherever
                    it has reached one; each goal is an episode that begins where the last ended
    conservative    a controller weaker than the expert, without exploration: the expert's actions,
                    scaled toward the middle of their bounds

Scripted and play are kinds of data of D5RL (Rafailov et al., 2024, "D5RL: Diverse datasets for
data-driven deep reinforcement learning", arXiv:2408.08441), whose players are people and
controllers of robots. Conservative data are those of NeoRL-2 (Gao et al., 2025, "NeoRL-2: Near
real-world benchmarks for offline reinforcement learning with extended realistic scenarios",
arXiv:2503.19267), whose behavior policies have 50 to 80 % of the expert's return; how they are made
suboptimal is a choice made here.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jaxrl.algorithms.offline.shared.recording import record, record_streams
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Environment, Policy, TimeStep, Transition
from jaxrl.datasets import cache
from jaxrl.datasets.data import Dataset, References, score
from jaxrl.datasets.transitions import from_streams
from jaxrl.envs.goals import set_new_goals
from jaxrl.envs.policies import expert_policy, mixed_skill, random_policy, scaled_expert
from jaxrl.envs.wrappers import expert_channel
from jaxrl.envs.wrappers.expert_channel import EXPERT_ACTION
from jaxrl.evaluation.evaluate import evaluate

NAMES = ("demonstrations", "scripted", "play", "conservative")
SKILLS = (0.2, 0.4, 0.6, 0.8, 1.0)  # shares of the expert's actions in episodes of "scripted"
PLAY_SKILL = 0.7  # share of the expert's actions in "play"
STREAMS = 16  # streams of play side by side
WEAKENED = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)  # factors that are tried
CONSERVATIVE = (50.0, 80.0)  # scores that a conservative controller may have
EPISODES = 64  # episodes of an evaluation


def load(env: Environment, name: str, size: int, seed: int) -> Dataset:
    """Return the dataset `name`, one of `NAMES`, of about `size` steps, from the cache if it was
    recorded before.

    Raises `UserError` for an environment without an expert or on the host, whose expert is no
    better than random play, and for players that it does not allow: play needs goals, and
    conservative data a bounded Box of actions, and a factor that weakens the expert as it should.
    """
    recipe = {"players": name, "episodes": EPISODES}
    make = lambda: {name: _record(env, name, size, seed)}
    return cache.load(env, name, size=size, seed=seed, recipe=recipe, make=make)


def _record(env: Environment, name: str, size: int, seed: int) -> Dataset:
    advised, key = _with_advice(env), random.key(seed)
    mean = functools.partial(_mean_return, advised, key=jax.random.fold_in(key, 1))
    references = References(mean(random_policy(advised)), mean(expert_policy(advised)))
    if name == "demonstrations":
        return Dataset(name, demonstrations(env, size, seed), references)
    if name == "play":
        return Dataset(name, _play(env, key, size), references)
    if name == "scripted":
        players = mixed_skill(advised, SKILLS)
    else:
        players = _conservative(advised, references, mean)
    return Dataset(name, bare(record(advised, players, key, size)), references)


@functools.cache
def demonstrations(env: Environment, size: int, seed: int) -> Transition:
    """Record about `size` steps [N] of whole episodes of the environment's expert. Raises
    `UserError` for an environment that has none."""
    advised = _with_advice(env)
    return bare(record(advised, expert_policy(advised), random.key(seed), size))


def bare(transitions: Transition) -> Transition:
    """Remove the expert's advice from the channel in which players find it."""

    def plain(timestep: TimeStep) -> TimeStep:
        channel: Any = timestep.privileged
        own = {name: x for name, x in channel.items() if name != EXPERT_ACTION}
        return dataclasses.replace(timestep, privileged=own or None)

    return dataclasses.replace(
        transitions,
        timestep=plain(transitions.timestep),
        next_timestep=plain(transitions.next_timestep),
    )


def _with_advice(env: Environment) -> Environment:
    if env.host:
        raise UserError(f"'{env.name}' runs on the host, where no datasets are made.")
    return expert_channel(env)


def _mean_return(env: Environment, policy: Policy, key: Any) -> float:
    return float(evaluate(env, policy, key, EPISODES).returns.mean())


def _conservative(env: Environment, references: References, mean: Any) -> Policy:
    """Return the weakened expert whose score is nearest the middle of `CONSERVATIVE`."""
    players = {factor: scaled_expert(env, factor) for factor in WEAKENED}
    scores = {f: float(score(np.asarray(mean(p)), references)) for f, p in players.items()}
    best = min(scores, key=lambda f: abs(scores[f] - np.mean(CONSERVATIVE)))
    if not CONSERVATIVE[0] <= scores[best] <= CONSERVATIVE[1]:
        found = ", ".join(f"{f}: {x:.0f}" for f, x in scores.items())
        raise UserError(
            f"No factor on the expert's actions in '{env.name}' gives a controller with a score "
            f"from {CONSERVATIVE[0]:.0f} to {CONSERVATIVE[1]:.0f}; scores by factor: {found}."
        )
    return players[best]


def _play(env: Environment, key: Any, size: int) -> Transition:
    """Record play, and cut it into episodes where goals are reached."""
    assert env.max_steps is not None
    advised = expert_channel(set_new_goals(env))
    steps = -(-size // STREAMS) + env.max_steps
    players = mixed_skill(advised, (PLAY_SKILL,))
    window = jax.device_get(record_streams(advised, players, key, STREAMS, steps))
    return bare(from_streams(cut_at_goals(env, window), size))


def cut_at_goals(env: Environment, window: Transition) -> Transition:
    """Return the steps [T, B] of play under `set_new_goals` as episodes: each step has the goal
    that was set when it was taken, and the one that reaches it terminates."""
    assert env.goals is not None
    before, after = window.timestep, window.next_timestep
    achieved = env.goals.achieved(after.observation)
    reached = np.asarray(
        jax.vmap(jax.vmap(env.goals.outcome, (0, 0, None)), (0, 0, None))(
            achieved, before.goal, env.params
        )[1]
    )
    terminated = np.asarray(after.terminated) | reached
    truncated = np.asarray(after.truncated) & ~terminated
    done = terminated | truncated
    first = np.concatenate([np.ones_like(done[:1]), done[:-1]])
    begun: TimeStep = dataclasses.replace(before, first=first)
    ended = dataclasses.replace(after, goal=before.goal, terminated=terminated, truncated=truncated)
    return dataclasses.replace(window, timestep=begun, next_timestep=ended)
