"""Proximal policy gradient arborescence (Batra et al., 2023, arXiv:2305.13795).

Quality-diversity with the gradients of PPO. One step, around a search policy theta:

1. `gradient_updates` (N1) updates of PPO for the objective and for each measure, all from theta and
   in parallel, give the normalized directions J (their differentiable PPO).
2. xNES draws coefficients c; the branched policies theta + c J are played and offered to the
   archive, whose thresholds are annealed softly (CMA-MAE), and xNES learns from their improvements
   over the thresholds.
3. `walk_updates` (N2) updates of PPO on the reward c_0 f + sum_k c_k m_k, with xNES' new mean as c,
   move theta.

If no branch improves, theta restarts from a random elite, and xNES from a mean of 0 (as in the
paper's algorithm 1, which is also the start here; the authors' code draws that mean uniformly from
[0, 2] for the objective and from [-2, 2] for a measure).

The reward of a measure is the change of the episode's descriptor at each step, so that its return
is the descriptor at the end less that at the start; the paper sums a measure of each step. The
elites of the archive are the best so far, whatever the thresholds (their result archive). The
critics, one for each reward and one for the walk, and the environments' streams persist from one
step to the next. Left out: observation and return normalization. Theta itself is not offered to the
archive, and the standard deviation of the actions, which is reset in each step, is not part of a
genotype.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import archive as archives
from jaxrl.algorithms.evolution.shared import scoring, xnes
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.algorithms.policy_gradient.ppo import Config as PPOConfig
from jaxrl.algorithms.policy_gradient.ppo import ppo
from jaxrl.core import metrics as m
from jaxrl.core import settings, trees
from jaxrl.core.divergence import guard
from jaxrl.core.hyper import MANY, hypers, select
from jaxrl.core.learn import LearnerState, learn
from jaxrl.core.types import Algorithm, Array, Environment, Tree, struct
from jaxrl.envs.wrappers import reward_components
from jaxrl.kit import group, hyper, static
from jaxrl.kit.state import State as AgentState
from jaxrl.kit.wrapping import params_of, with_params, within


@group
class Config:
    """Settings of PPGA: those of PPO, without normalizations or memory, and of the archive."""

    ppo: PPOConfig = PPOConfig()
    """Settings of PPO, which computes each direction and the walk."""
    descriptor: tuple[str, ...] = ()
    """Measures of an episode: names of metrics, or observation.i, at its end."""
    low: tuple[float, ...] = static(())
    """Least value of each descriptor."""
    high: tuple[float, ...] = static(())
    """Largest value of each descriptor."""
    cells: tuple[int, ...] = static((), low=1, high=MANY)
    """Number of cells of the grid along each descriptor."""
    centroids: int = static(0, low=0, high=MANY)
    """Number of cells of a centroidal Voronoi tessellation that replaces the grid; 0 for the
    grid."""
    population: int = static(64, low=1, high=MANY)
    """Number of branched policies in each step."""
    episodes: int = static(1, low=1, high=MANY)
    """Number of episodes that evaluate each policy."""
    chunk: int = static(0, low=0, high=MANY)
    """Number of policies that play at once, to limit memory; 0 for all."""
    gradient_updates: int = static(4, low=1)
    """PPO updates for each direction (N1)."""
    walk_updates: int = static(4, low=1)
    """PPO updates of the search policy (N2)."""
    archive_rate: float = hyper(0.1, low=0, high=1)
    """Rate at which an accepted branch moves its cell's threshold toward its fitness (alpha)."""
    floor: float = hyper(0.0)
    """Initial threshold of each cell, and the fitness that contributes 0 to the QD-score."""
    branch_sigma: float = hyper(1.0, above=0)
    """Initial standard deviation of the branching coefficients; directions have length 1."""


@struct
class State:
    """State of PPGA."""

    theta: Array  # [D]: the search policy
    directions: Tree  # LearnerState [K + 1]: of the objective and each measure
    walk: Tree  # LearnerState
    coefficients: xnes.State
    archive: archives.Archive
    thresholds: Array  # [C]
    steps: Array  # int32
    diverged: Array  # int32: the step at which a number was first not finite, or metrics.NEVER
    hyper: Tree


def weight_rewards(env: Environment, names: tuple[str, ...]) -> Environment:
    """Return `env` with a weighted sum as its reward, by `params.reward_weights` [K + 1]: of its
    own reward and of the change of each descriptor at the step."""
    return _weight_rewards(env, names)


@functools.cache
def _weight_rewards(env: Environment, names: tuple[str, ...]) -> Environment:
    describe = descriptor(env, names)

    def increment(k):
        return lambda before, action, after: (describe(after) - describe(before))[k]

    components = {"objective": lambda before, action, after: after.reward}
    components |= {f"measure_{k}": increment(k) for k in range(len(names))}
    return reward_components(env, components, dict.fromkeys(components, 0.0) | {"objective": 1.0})


def ppga(env: Environment, config: Config = Config()) -> Algorithm:
    """Fill an archive with policies for `env`; the resulting policy is the fittest elite. Its
    env_steps are those of PPO and of the branches, as if all their episodes had full length. The
    same arguments give the same object.

    Raises `UserError` if env and config do not fit.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    defaults = hypers(config)
    scoring.check_env(env, "ppga")
    wrong = ("ppo.normalization.observation", "ppo.normalization.reward", "ppo.memory.recurrent")
    why = "ppga's genotypes are weights of a feed-forward policy, without statistics or memory"
    settings.refuse(config, wrong, why)
    cell_of, count = archives.cells_of(config)
    describe = descriptor(env, config.descriptor)
    torso = config.ppo.torso
    more = {"channels": torso.channels, "initializer": torso.initializer}
    space = policies(env, torso.hidden, torso.activation, **more)
    rewards = len(config.descriptor) + 1
    paid = weight_rewards(env, config.descriptor)
    learner = within(ppo.agent(paid, config.ppo), "ppo")
    # Directions and walk use the same kind of rollouts; only the reward weights, which are part of
    # their state, differ.
    inner = learn(learner, config.ppo.rollouts.source(paid))

    def network(state: AgentState) -> Tree:
        return params_of(state)["actor_critic"]

    def pay(state: LearnerState, weights: Array) -> LearnerState:
        params = dataclasses.replace(state.source.tasks, reward_weights=weights)
        return dataclasses.replace(state, source=dataclasses.replace(state.source, tasks=params))

    def begin(state: LearnerState, fresh: AgentState, theta: Array) -> LearnerState:
        """Return `state` at the policy `theta`, with its own critic, and with the deviation and the
        optimizer of `fresh`."""
        critic, new = network(state.agent), network(fresh)
        head = {"head": new["params"]["head"]}  # resets its log_std
        params = space.insert({"params": critic["params"] | head}, theta)
        begun = with_params(fresh, {"actor_critic": params})
        agent = dataclasses.replace(state.agent, parts=begun.parts)
        return dataclasses.replace(state, agent=agent)

    def train(state: LearnerState, key, updates: int):
        state, metrics = jax.lax.scan(inner.step, state, jax.random.split(key, updates))
        return state, space.vector(network(state.agent)), m.reduce(metrics)

    def no_coefficients(hyper):
        return xnes.init(jnp.zeros(rewards), hyper["branch_sigma"])

    def init(key, hyper):
        theta_key, direction_key, walk_key = jax.random.split(key, 3)
        own = select(config, hyper)
        theta = space.init(theta_key)
        weights = jnp.eye(rewards)
        directions = jax.vmap(lambda key, w: pay(inner.init(key, hyper), w))(
            jax.random.split(direction_key, rewards), weights
        )
        return State(
            theta,
            directions,
            pay(inner.init(walk_key, hyper), weights[0]),
            no_coefficients(own),
            archives.empty(count, space.size, len(config.descriptor)),
            jnp.full(count, own["floor"]),
            jnp.int32(0),
            jnp.int32(m.NEVER),
            own,
        )

    def step(state, key):
        gradient_key, draw_key, play_key, walk_key, elite_key, fresh_key = jax.random.split(key, 6)
        hyper, theta = state.hyper, state.theta
        fresh = learner.init(fresh_key, hyper)

        start = jax.vmap(lambda s: begin(s, fresh, theta))(state.directions)
        directions, ends, _ = jax.vmap(lambda s, k: train(s, k, config.gradient_updates))(
            start, jax.random.split(gradient_key, rewards)
        )
        jacobian = ends - theta
        jacobian /= jnp.sqrt(jnp.square(jacobian).sum(-1, keepdims=True)) + 1e-8

        normal = jax.random.normal(draw_key, (config.population, rewards))
        branches = theta + xnes.genotypes(state.coefficients, normal) @ jacobian
        scores = scoring.score(
            env, space, branches, play_key, config.episodes, describe, config.chunk
        )
        cell = cell_of(scores.descriptors)
        archive, _ = archives.add(state.archive, cell, branches, scores.fitness, scores.descriptors)
        thresholds, improvement = archives.anneal(
            state.thresholds, cell, scores.fitness, hyper["archive_rate"]
        )
        coefficients = xnes.tell(state.coefficients, normal, improvement)

        walk = begin(pay(state.walk, coefficients.mean), fresh, theta)
        walk, walked, metrics = train(walk, walk_key, config.walk_updates)

        restart = ~jnp.any(improvement > 0)
        elite = archive.genotypes[archives.sample(archive, elite_key, 1)[0]]
        walked = jnp.where(restart & archive.has_elite.any(), elite, walked)
        coefficients = trees.where(restart, no_coefficients(hyper), coefficients)
        new = dataclasses.replace(
            state,
            theta=walked,
            directions=directions,
            walk=walk,
            coefficients=coefficients,
            archive=archive,
            thresholds=thresholds,
        )
        report = scoring.statistics(scores) | archives.statistics(archive, hyper["floor"])
        kept = ("policy_loss", "value_loss", "entropy", "approximate_kl", "explained_variance")
        report |= {name: metrics[name] for name in kept}
        return new, report | {
            "restarts": m.Sum(restart.astype(jnp.float32)),
            "improved": m.mean(improvement > 0),
        }

    def finite(state, metrics):
        # A PPO run that diverged has frozen its agent and would give a direction of length 0.
        learning = jnp.append(state.directions.diverged, state.walk.diverged) == m.NEVER
        own = state.theta, state.coefficients, state.thresholds, metrics["best_return"]
        return learning.all() & trees.all_finite(own)

    updates = rewards * config.gradient_updates + config.walk_updates
    algorithm = Algorithm(
        f"ppga on {env.name}",
        init,
        step,
        policy=lambda state: space.policy(archives.best(state.archive)[None]),
        hyper=defaults,
        env_steps=updates * inner.env_steps
        + config.population * config.episodes * (env.max_steps or 0),
        config=config,
        scores=archives.SCORES,
        num_shards=config.chunk or config.population,
    )
    return guard(algorithm, finite)


TINY = {
    "env": "cartpole", "population": 4, "num_envs": 2, "num_steps": 4, "minibatches": 1,
    "epochs": 1, "gradient_updates": 1, "walk_updates": 1, "hidden": (4,),
    "descriptor": ("observation.0",), "low": (-1.0,), "high": (1.0,), "cells": (8,),
}  # fmt: skip
