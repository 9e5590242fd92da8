"""PSRO with a meta-solver that may be averse to risk: a population of answers to its own mixtures.

Policy space response oracles: Lanctot et al. (2017), "A unified game-theoretic approach to
multiagent reinforcement learning" (arXiv:1711.00832). Risk-averse equilibria: Slumbers et al.
(2023), "A game-theoretic framework for managing risk in multi-agent systems" (arXiv:2205.15434).

One step is an iteration: PPO learns to answer the mixture of the policies so far, with all of them
frozen; the answer joins the population; games of all pairs with it give its payoffs; and the
meta-solver computes the next mixture (`exact.meta_games.META`). With `risk`, an answer maximizes
its mean payoff minus `risk` times the variance over the opponents of the mixture, which is also the
utility of the solver `risk_averse`. Both sides of a game are one population, with sides drawn at
random, and the first policy is that of new weights. When the population is full, an answer takes
the place of the policy with the least share, and all payoffs there are measured anew. Evaluation
plays the mixture.

The variance's form and the gradient of it, by which an answer's rewards are weighted
(`tasks.pool.worth`), are derived here from the utility. The paper's stochastic fictitious play, its
grid and its driving environments are not here.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.games.shared.self_play import SCORES, play_table, self_play
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.shared.actor_critic import policy_network
from jaxrl.core import metrics as m
from jaxrl.core.divergence import guard
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, hypers
from jaxrl.core.learn import LearnerState, learn, start_source
from jaxrl.core.types import (
    REPLICATED,
    Algorithm,
    Array,
    Environment,
    Key,
    Policy,
    TimeStep,
    Tree,
    struct,
)
from jaxrl.envs.wrappers.rewards import reward_components
from jaxrl.evaluation import matches
from jaxrl.exact import games
from jaxrl.exact.games import Game
from jaxrl.exact.meta_games import META
from jaxrl.kit import group, hyper, static
from jaxrl.kit.wrapping import snapshot
from jaxrl.networks.heads import check_discrete
from jaxrl.tasks.pool import Opponents, fill, next_place, opponents, pool, put


@group
class Config:
    """Settings of PSRO: those of PPO, and of the population."""

    ppo: PPOConfig = PPOConfig()
    """Settings of the PPO agent that learns the answers."""
    size: int = static(16, low=2, high=MANY)
    """Maximum number of policies in the population, including the first one."""
    windows: int = static(40, low=1)
    """Windows of experience from which one answer is learned."""
    games: int = static(128, low=2, high=MANY)
    """Games of each pair of policies, for the payoffs; an even number."""
    solver: str = static("nash", choices=META)
    """Mixture that answers are learned against: nash, the equilibrium of the population;
    risk_averse, with `risk`; uniform; or projected_replicator."""
    fresh: bool = True
    """Learn each answer from new weights rather than from those of the previous answer, which may
    have stopped exploring."""
    risk: float = hyper(0.0, low=0)
    """Weight of the variance of payoffs over opponents, against their mean (gamma)."""


@struct
class State:
    """State of PSRO. The pool is the state of the learner's tasks."""

    inner: LearnerState
    payoff: Array
    """Mean payoff of each policy (row) against each other: float32 [K, K]; 0 where there is none
    yet."""
    count: Array
    """Number of policies that exist: int32."""
    steps: Array
    diverged: Array
    hyper: dict[str, Any]

    @property
    def agent(self) -> Tree:
        """State of the agent, for a warm start of another run."""
        return self.inner.agent


@struct
class Answering:
    """State of the policy that starts a source: an agent, and the pool that it meets."""

    agent: Tree
    opponents: Opponents


def game_reward(before: TimeStep, action: Tree, after: TimeStep) -> Array:
    """Return the reward of the game, a component that the pool weighs."""
    return after.reward


def psro(env: Environment, config: Config = Config()) -> Algorithm:
    """Build PSRO in `env`, a two-player game. The same arguments give the same object.

    `env_steps` are those from which answers are learned; games for payoffs do not count. Raises
    `UserError` where `league` does, and for an odd number of games.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    own = {"risk": hypers(config)["risk"]}
    check_discrete(env.action_space, "psro")
    if config.games % 2:
        raise UserError(
            f"games is {config.games}; it must be even, since half of them are played on each side."
        )
    size, solve = config.size, META[config.solver]
    learner, environment = self_play(env, config.ppo)

    def first(policy: Policy) -> Opponents:
        """Return the pool that a new source starts with."""
        if isinstance(policy.state, Answering):
            return policy.state.opponents
        weights = jnp.zeros(size, jnp.float32).at[0].set(1.0)
        return opponents(fill(snapshot(policy.state), size), weights, 0.0)

    paid = reward_components(environment, {"game": game_reward}, {"game": 1.0})
    tasks = pool(
        lambda opponent, worth: dataclasses.replace(
            paid.params,
            inner=dataclasses.replace(environment.params, opponent=opponent),
            reward_weights=worth[None],
        ),
        first,
    )
    source = config.ppo.rollouts.source(paid, tasks)
    algorithm = learn(learner, source)
    every = dict(algorithm.hyper) | own
    member = Policy(learner.act, learner.memory)
    first_act = lambda state, *rest: learner.act(state.agent, *rest)

    def meet(agent: Tree, opposed: Opponents, key: Key, values: Any) -> LearnerState:
        """Return `agent` at the beginning of new games against a pool."""
        policy = Policy(first_act, learner.memory, Answering(agent, opposed))
        started = start_source(source, key, values, policy)
        return LearnerState(agent, started, jnp.int32(0), jnp.int32(m.NEVER))

    def init(key, hyper):
        return State(
            algorithm.init(key, hyper),
            jnp.zeros((size, size), jnp.float32),
            jnp.int32(1),
            jnp.int32(0),
            jnp.int32(m.NEVER),
            {name: jnp.asarray(hyper[name]) for name in every},
        )

    def step(state, key):
        learn_key, play_key, fresh_key, start_key = jax.random.split(key, 4)
        # Each member of a sweep has its own risk, and may change it.
        met = dataclasses.replace(state.inner.source.tasks, risk=state.hyper["risk"])
        source_state = dataclasses.replace(state.inner.source, tasks=met)
        inner, rows = jax.lax.scan(
            algorithm.step,
            dataclasses.replace(state.inner, source=source_state),
            jax.random.split(learn_key, config.windows),
        )
        answer = snapshot(inner.agent)
        place = next_place(met.weights, state.count)
        members = put(met.members, place, answer)
        count = jnp.minimum(state.count + 1, size)
        mask = jnp.arange(size) < count
        results = matches.cross_play(
            env, member, fill(answer, 1), members, key=play_key, games=config.games
        )
        payoff = replace_payoffs(state.payoff, place, results, mask)
        weights = solve(payoff, mask, state.hyper["risk"]).astype(jnp.float32)
        agent = learner.init(fresh_key, state.hyper) if config.fresh else inner.agent
        opposed = opponents(members, weights, state.hyper["risk"])
        following = meet(agent, opposed, start_key, state.hyper)
        following = dataclasses.replace(following, diverged=inner.diverged)
        metrics = m.reduce(rows)
        metrics["answer_payoff"] = m.mean((results.row[0] * met.weights).sum())
        metrics["policies"] = m.mean((weights > 0.01).sum())
        return dataclasses.replace(state, inner=following, payoff=payoff, count=count), metrics

    def measure(state, key):
        met = state.inner.source.tasks
        found = lambda game: tables(env, config, met.members, game)
        return games.exploitability_metrics(
            env, lambda game: games.mixture(game, found(game), met.weights)
        )

    def mixture(state):
        met = state.inner.source.tasks
        return matches.mixture(env, member, met.members, met.weights)

    healthy = lambda state, metrics: state.inner.diverged == m.NEVER
    built = dataclasses.replace(
        algorithm,
        name=f"psro({config.solver}) on {env.name}",
        init=init,
        step=step,
        policy=mixture,
        hyper=every,
        env_steps=algorithm.env_steps * config.windows,
        partition=State(algorithm.partition, *[REPLICATED] * 5),
        config=config,
        num_shards=config.ppo.rollouts.num_shards,
        agent=None,
        source=None,
        scores=SCORES,
        measure=measure,
    )
    return guard(built, healthy)


def replace_payoffs(payoff: Array, place: Array, results: matches.Results, mask: Array) -> Array:
    """Return the payoffs [K, K] after the policy at `place` has been replaced.

    results: of the new policy (one row) against all members, itself included. Its row and its
    column are both replaced: what others earned against its predecessor says nothing about it.
    mask: bool [K], the members that exist.
    """
    row = jnp.where(mask, results.row[0], 0.0)
    column = jnp.where(mask, results.column[0], 0.0)
    payoff = payoff.at[place].set(row).at[:, place].set(column)
    return payoff.at[place, place].set((row[place] + column[place]) / 2)


def tables(env: Environment, config: Config, members: Tree, game: Game) -> Array:
    """Return the action probabilities [K, I, A] of all members in the enumerated game."""
    network = policy_network(env, config.ppo.torso, config.ppo.memory, config.ppo.heads)
    of = lambda state: play_table(env, network, state, game)
    return jax.vmap(of)(members)


TINY = {
    "env": "kuhn_poker", "num_envs": 8, "num_steps": 4, "num_shards": 4, "epochs": 1,
    "minibatches": 1, "hidden": (4,), "size": 3, "windows": 2, "games": 2, "solver": "risk_averse",
    "risk": 0.1, "fresh": True,
}  # fmt: skip
