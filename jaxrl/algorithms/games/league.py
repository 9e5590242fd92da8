"""PPO in a league of its own past selves (Vinyals et al., 2019, "Grandmaster level in StarCraft II
using multi-agent reinforcement learning"; fictitious self-play: Heinrich et al., 2015).

Every `every` windows the agent's weights enter a pool, and each episode is played against one of
the pool's members, drawn uniformly or by the results of recent games against it. The algorithm is
PPO on rollouts of the game with the opponent inside (`envs.games.opponents`), and the pool is its
`Tasks`. Only the main agents of AlphaStar's league are implemented, without exploiters and without
games against the current agent (except in the window after a snapshot).
"""

from __future__ import annotations

import dataclasses
import functools

from jaxrl.algorithms.games.shared.self_play import SCORES, play_table, self_play
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.hyper import MANY, check
from jaxrl.core.learn import learn
from jaxrl.core.types import Algorithm, Environment
from jaxrl.evaluation import matches
from jaxrl.exact import games
from jaxrl.kit import group, static
from jaxrl.kit.wrapping import snapshot
from jaxrl.networks.heads import check_action_space
from jaxrl.tasks.league import MATCHING, past_selves


@group
class Config:
    """Settings of the league: those of PPO, and of the pool."""

    ppo: PPOConfig = PPOConfig()
    """Settings of the PPO agent that learns."""
    pool: int = static(16, low=1, high=MANY)
    """Number of past selves in the pool."""
    every: int = static(8, low=1)
    """Number of windows between two snapshots."""
    matching: str = static("uniform", choices=MATCHING)
    """Distribution of opponents: uniform; hard, favoring those that win most; or even, favoring
    those at the agent's level."""
    power: float = static(2.0, low=0)
    """Exponent of the preference of `hard` for opponents that win."""


def league(env: Environment, config: Config = Config()) -> Algorithm:
    """Build PPO against past selves in `env`, a two-player game. The same arguments give the same
    object.

    The policy plays both sides. Raises `UserError` where PPO does, for a game that is not for two
    players, and for agents with a transformer.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    check(config)
    check_action_space(env.action_space, "league")
    learner, environment = self_play(env, config.ppo)
    tasks = past_selves(
        lambda opponent: dataclasses.replace(environment.params, opponent=opponent),
        snapshot,
        config.pool,
        config.every,
        config.matching,
        config.power,
    )
    algorithm = learn(learner, config.ppo.rollouts.source(environment, tasks))

    def measure(state, key):
        network = policy_network(env, config.ppo.torso, config.ppo.memory, config.ppo.heads)
        table = lambda game: play_table(env, network, state.agent, game)
        return games.exploitability_metrics(env, lambda game: games.reach(game, table(game)))

    return dataclasses.replace(
        algorithm,
        policy=lambda state: matches.both_sides(algorithm.policy(state)),
        config=config,
        num_shards=config.ppo.rollouts.num_shards,
        scores=SCORES,
        measure=measure,
    )


TINY = {
    "env": "kuhn_poker", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "pool": 2, "every": 1,
}  # fmt: skip
