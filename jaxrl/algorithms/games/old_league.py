"""PPO in a league of its own past selves (Vinyals et al., 2019, "Grandmaster level in StarCraft II
using multi-agent reinforcement learning"; fictitious self-play: Heinrich et al., 2015).

Every `every` windows the agent's weights enter a pool, and each episode is played against one of
them, drawn uniformly or by how the recent games against it went. It is PPO on rollouts of the game
with the opponent inside (`envs.games.opponents`), and the pool is its `Tasks`. The main agents of
AlphaStar's league alone, without exploiters and without games against the agent as it is now (but
for those in the window after a snapshot).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl.agents.policy_gradient import ppo
from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hypers
from jaxrl.core.learn import learn
from jaxrl.core.types import Agent, Algorithm, Environment, Policy, Tree
from jaxrl.envs.games.opponents import Params, against
from jaxrl.envs.policies import random_policy
from jaxrl.sources.rollouts import rollouts
from jaxrl.tasks.league import past_selves


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
    """What the league can be told: what PPO can, and the pool."""

    pool: int = 16
    """Past selves that are kept."""
    every: int = 8
    """Windows between two snapshots."""
    matching: str = "uniform"
    """Who is played: uniform; hard, those who win most; or even, those on the agent's level."""
    power: float = 2.0
    """How much `hard` prefers those who win."""


def league(env: Environment, config: Config = Config()) -> Algorithm:
    """PPO against past selves in `env`, a game for two. The same arguments give the same object.

    The policy plays both sides. Raises `UserError` where PPO does, for a game that is not for two,
    and for normalised or recurrent agents, whose snapshot would be more than weights.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    learner, world = self_play(env, config)
    tasks = past_selves(
        lambda opponent: dataclasses.replace(world.params, opponent=opponent),
        weights,
        config.pool,
        config.every,
        config.matching,
        config.power,
    )
    return learn(learner, rollouts(world, config.num_envs, config.num_steps, tasks))


def self_play(
    env: Environment,
    config: ppo.Config,
    goal: Any = None,
    answers: Callable[[Any], Any] = lambda act: act,
) -> tuple[Agent, Environment]:
    """A PPO agent, and `env` against an opponent that plays by that agent's weights; both sides
    are conditioned on a `goal` where there is one. The opponent's weights are for tasks to set;
    its `act` is what `answers` makes of the agent's."""
    for what in ("normalize_observation", "normalize_reward", "recurrent"):
        if getattr(config, what):
            raise UserError(f"{what} is {getattr(config, what)}; a league's agents have none.")
    # Who the opponent is does not change what the agent sees, and the agent says how it acts.
    example = Params(env.params, (), goal=goal, opponent_goal=goal)
    learner = ppo.agent(against(env, random_policy(env), example), config)
    shapes = jax.eval_shape(lambda: weights(learner.init(random.key(0), hypers(config))))
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)  # until tasks set them
    play = answers(learner.act)
    act = lambda params, *rest: play(ppo.State(params, (), {}), *rest)
    opponent = Policy(act, learner.memory, nothing)
    example = dataclasses.replace(example, opponent=opponent.state)
    return learner, against(env, opponent, example)


def weights(state: ppo.State) -> Tree:
    """What an opponent plays by: the network's weights, without the optimiser's memory."""
    return state.params
