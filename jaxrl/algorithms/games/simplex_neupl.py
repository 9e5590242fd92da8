"""Simplex-NeuPL: NeuPL whose network also answers any mixture of its rows (Liu et al., 2022,
"Simplex neural population learning: any-mixture Bayes-optimality in symmetric zero-sum games",
arXiv:2205.15879).

The rows and their interaction graph are those of `neupl`. In a share `simplex` of the games the
learner is conditioned on a mixture sigma of all rows, drawn from the whole simplex, and its
opponent is one row drawn from sigma, which it is not told. With memory the best answer is
Bayes-optimal: sigma is the prior, and the opponent's moves tell which row it is. Where the game can
be enumerated, evaluation measures that: over a grid of mixtures, the exact return against each
beside that of the exact best response to it (`exact.games.bayes_value`).

Only the paper's abstract and the beginning of its introduction could be read. From them: one
network learns both the basis policies and responses to any mixture of them. The uniform
distribution over the simplex, the share of games, a GRU as the memory, and that these games do not
count for payoffs are choices of ours; so is everything that `neupl` chooses (PPO, payoffs as
running means). The last row is no opponent of the other rows, but is one in these games.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.games import neupl
from jaxrl.algorithms.games.shared.self_play import play_table
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.types import Algorithm, Array, Environment
from jaxrl.exact import games
from jaxrl.exact.games import Game
from jaxrl.kit import group, static
from jaxrl.kit.groups import Memory
from jaxrl.networks.heads import check_discrete

SCORES = {name: name for name in ("mixture_return", "bayes_return", "bayes_gap")}


@group
class Config(neupl.Config):
    """Settings of simplex-NeuPL."""

    ppo: PPOConfig = PPOConfig(memory=Memory(recurrent=32))
    """Settings of the PPO agent that trains all rows."""
    simplex: float = static(0.5, low=0, high=1)
    """Share of games in which a best response to a mixture of all rows is learned, drawn uniformly
    from the simplex; at 0 the algorithm is NeuPL."""
    parts: int = static(3, low=1, high=8)
    """Fineness of the grid of mixtures in an evaluation, whose shares are multiples of
    1 / `parts`."""


def simplex_neupl(env: Environment, config: Config = Config()) -> Algorithm:
    """Build simplex-NeuPL in `env`, a two-player game. The same arguments give the same object.

    Raises `UserError` where `neupl` does.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    check_discrete(env.action_space, "simplex_neupl")
    algorithm = neupl.neupl(env, config)

    def measure(state, key):
        metrics = algorithm.measure(state, key)
        if env.rules is None:
            return metrics
        with jax.ensure_compile_time_eval():
            game = games.cached_game(env)
        found, best = returns(env, config, neupl.mixture(state, config), game)
        return metrics | {
            "mixture_return": found.mean(),
            "bayes_return": best.mean(),
            "bayes_gap": (best - found).max(),
        }

    return dataclasses.replace(algorithm, measure=measure, scores={**algorithm.scores, **SCORES})


def returns(
    env: Environment, config: Config, played: neupl.Mixture, game: Game
) -> tuple[Array, Array]:
    """Return, for each mixture of the grid [G], the exact return of the policy that is conditioned
    on it, against it, and that of a Bayes-optimal player; both are means over the two sides."""
    network = policy_network(env, config.ppo.torso, config.ppo.memory, config.ppo.heads)
    rows = neupl.tables(env, config, played, game)

    def of(sigma):
        own = play_table(env, network, played.agent, game, sigma)
        opponents = games.mixture(game, rows, sigma)
        return games.mean_value(game, own, opponents), games.bayes_value(game, rows, sigma)

    return jax.lax.map(of, jnp.asarray(grid(config.rows, config.parts)))


def grid(rows: int, parts: int) -> np.ndarray:
    """Return all mixtures over `rows` whose shares are multiples of 1 / `parts`, float32 [G, N]."""
    bars = itertools.combinations(range(parts + rows - 1), rows - 1)
    edges = np.asarray([(-1, *x, parts + rows - 1) for x in bars])
    return ((np.diff(edges) - 1) / parts).astype(np.float32)


TINY: Any = {
    "env": "kuhn_poker", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "recurrent": 4, "rows": 3, "parts": 1,
}  # fmt: skip
