"""NeuPL: a population of policies in one conditional network (Liu et al., 2022, arXiv:2202.07415).

Row i of the population is pi(action | observation, sigma_i), and sigma_i is the mixture of the
previous rows to which it learns a best response. A meta-solver computes the sigmas from the payoffs
between the rows: `nash` gives PSRO's (each row responds to the equilibrium of the previous ones).
All rows are trained at once, so that one row's skills serve the others.

Here the rows are trained by PPO (in the paper, by MPO and V-MPO), with sigma in the time step's
goal; payoffs are running means of the training games (the paper also learns an estimator); a game
whose sides differ is made symmetric by drawing the sides at random; and row 0, which responds to
nobody, is the uniform policy over legal actions. The sigmas may change between two windows, in the
middle of a game. Evaluation plays the solver's mixture over all rows: each side draws its row
before its first move. With `simplex`, part of the games are those of simplex-NeuPL (see
`simplex_neupl`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.games.shared.self_play import SCORES, play_table, self_play
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core.hyper import MANY, check
from jaxrl.core.learn import learn
from jaxrl.core.spaces import sample_legal
from jaxrl.core.types import Algorithm, Array, Environment, Policy, TimeStep, struct
from jaxrl.evaluation import matches
from jaxrl.exact import games
from jaxrl.exact.games import Game, matrix_nash
from jaxrl.kit import group, static
from jaxrl.kit.wrapping import snapshot
from jaxrl.networks.heads import check_discrete
from jaxrl.tasks.population import Population, payoff, population

SOLVERS = {
    "nash": lambda payoff, mask: matrix_nash(payoff, mask, iterations=200),
    "uniform": lambda payoff, mask: mask / jnp.maximum(mask.sum(), 1),
    "latest": lambda payoff, mask: (jnp.arange(mask.size) == mask.sum() - 1) * 1.0,
}


@group
class Config:
    """Settings of NeuPL: those of PPO, and of the population."""

    ppo: PPOConfig = PPOConfig()
    """Settings of the PPO agent that trains all rows."""
    rows: int = static(8, low=2, high=MANY)
    """Number of policies in the population, including the uniform one."""
    solver: str = static("nash", choices=SOLVERS)
    """Mixture that a row learns to best respond to: nash, the equilibrium of the previous rows;
    uniform, all of them equally; or latest, the previous row."""
    exploration: float = static(0.1, above=0, high=1)
    """Share of opponents drawn uniformly, so that every payoff is estimated."""
    simplex: float = static(0.0, low=0, high=1)
    """Share of games in which a best response to a mixture of all rows is learned, drawn uniformly
    from the simplex."""


@struct
class Mixture:
    """Mixture of rows that plays in evaluations."""

    agent: Any
    graph: Array  # [N, N]
    weights: Array  # [N]: the solver's mixture over all rows


def neupl(env: Environment, config: Config = Config()) -> Algorithm:
    """Build NeuPL in `env`, a two-player game. The same arguments give the same object.

    Raises `UserError` where `league` does.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    check(config)
    check_discrete(env.action_space, "neupl")
    goal = np.zeros(config.rows, np.float32)
    learner, environment = self_play(env, config.ppo, goal, answers)
    tasks = population(
        lambda shared, goal, opponent_goal: dataclasses.replace(
            environment.params, opponent=shared, goal=goal, opponent_goal=opponent_goal
        ),
        snapshot,
        SOLVERS[config.solver],
        config.rows,
        config.exploration,
        simplex=config.simplex,
    )
    algorithm = learn(learner, config.ppo.rollouts.source(environment, tasks))

    def act(state: Mixture, timestep, memory: matches.Sides, key, greedy):
        row_key, key = jax.random.split(key)
        # Each side of each game draws its own row before its first move.
        memory, row = matches.draw(memory, state.weights, timestep.role, row_key)
        timestep = dataclasses.replace(timestep, goal=state.graph[row])
        own = matches.memory_of(memory.memory, timestep.role)
        action, own, extras = answers(learner.act)(state.agent, timestep, own, key, greedy)
        inner = matches.with_memory_of(memory.memory, timestep.role, own)
        return action, dataclasses.replace(memory, memory=inner), extras

    def measure(state, key):
        found = mixture(state, config)
        strategies = lambda game: tables(env, config, found, game)
        reaches = lambda game: games.mixture(game, strategies(game), found.weights)
        return games.exploitability_metrics(env, reaches)

    return dataclasses.replace(
        algorithm,
        policy=lambda state: Policy(act, matches.undrawn(learner.memory), mixture(state, config)),
        config=config,
        num_shards=config.ppo.rollouts.num_shards,
        scores=SCORES,
        measure=measure,
    )


def mixture(state: Any, config: Config) -> Mixture:
    """Return the population of a learner's state with the solver's mixture over all of its rows."""
    found: Population = state.source.tasks
    weights = SOLVERS[config.solver](payoff(found), jnp.ones(config.rows, bool))
    return Mixture(state.agent, found.graph, weights)


def answers(act: Any) -> Any:
    """Return `act` changed to draw a uniform legal action where the goal is all zeros, as it is for
    row 0, which responds to nobody."""

    def answer(state, timestep: TimeStep, memory, key, greedy):
        action, memory, extras = act(state, timestep, memory, key, greedy)
        anything = sample_legal(timestep.legal_actions, jax.random.fold_in(key, 1))
        nobody = ~jnp.any(timestep.goal, -1)
        return jnp.where(nobody, anything, action), memory, extras

    return answer


def tables(env: Environment, config: Config, played: Mixture, game: Game) -> Array:
    """Return the action probabilities [N, I, A] of each row in the enumerated game."""
    network = policy_network(env, config.ppo.torso, config.ppo.memory, config.ppo.heads)

    def of(sigma):
        table = play_table(env, network, played.agent, game, sigma)
        return jnp.where(sigma.any(), table, jnp.asarray(game.uniform, jnp.float32))

    return jax.vmap(of)(played.graph)


TINY = {
    "env": "kuhn_poker", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "rows": 3,
}  # fmt: skip
