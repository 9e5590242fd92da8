"""Parts of populations whose agents play each other: PPO against a player of its own kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import random, settings
from jaxrl.core.types import Agent, Array, Environment, Policy
from jaxrl.envs.games.opponents import Params, against
from jaxrl.envs.policies import random_policy
from jaxrl.exact import games
from jaxrl.exact.games import Game
from jaxrl.kit.normalization import add_normalization, as_seen
from jaxrl.kit.wrapping import params_of, snapshot, within

SCORES = {"won": "won", **games.SCORES}  # against the pool, and against a best response


def self_play(
    env: Environment,
    config: PPOConfig,
    goal: Any = None,
    answers: Callable[[Any], Any] = lambda act: act,
) -> tuple[Agent, Environment]:
    """Return a PPO agent, and `env` against an opponent that plays by a `snapshot` of that agent.

    Tasks set the snapshot. The agent's hyperparameters are those of a group `ppo`.

    goal: example of the goal that both sides are conditioned on; None for none.
    answers: maps the agent's `act` to the opponent's.
    """
    settings.refuse(config, ("memory.transformer",), "a league's agents have none")
    # The agent is needed to act as the opponent, and what it sees does not depend on the opponent,
    # so it is built against a random one.
    example = Params(env.params, (), goal=goal, opponent_goal=goal)
    task = against(env, random_policy(env), example)
    learner = within(add_normalization(ppo.agent(task, config), task, config), "ppo")
    shapes = jax.eval_shape(lambda: snapshot(learner.init(random.key(0), learner.hyper)))
    nothing = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)  # until tasks set it
    opponent = Policy(answers(learner.act), learner.memory, nothing)
    example = dataclasses.replace(example, opponent=opponent.state)
    return learner, against(env, opponent, example)


def play_table(env: Environment, network: Any, state: Any, game: Game, goal: Any = None) -> Array:
    """Return the action probabilities [I, A] of an agent in the enumerated game of `env`, where it
    may have memory.

    network: its actor-critic. state: of the agent, or a `snapshot`.
    """
    places, params = len(game.player), params_of(state)["actor_critic"]
    timesteps = as_seen(state, env, game.timesteps)
    if goal is not None:
        goal = jnp.broadcast_to(goal, (places, *goal.shape))
        timesteps = dataclasses.replace(timesteps, goal=goal)

    def decide(memory):
        policy, _, memory = network.apply(params, timesteps, memory)
        return policy.probs, memory

    return games.unroll(game, decide, network.initial(places))
