"""Proximal policy gradient arborescence (Batra et al., 2023, arXiv:2305.13795).

Quality-diversity with the gradients of PPO. One step, around a search policy theta:

1. `gradient_updates` (N1) updates of PPO for the objective and for each measure, from theta, all
   side by side, give the normalised directions J (their differentiable PPO).
2. xNES draws coefficients c; the branched policies theta + c J are played and offered to the
archive,
   whose thresholds are annealed softly (CMA-MAE), and xNES learns from how much each improved on
   them.
3. `walk_updates` (N2) updates of PPO on the reward c_0 f + sum_k c_k m_k, with xNES' new mean as c,
   walk theta along.

Where no branch improved, theta restarts from an elite drawn at random and xNES anew.

A measure's reward is what each step adds to the descriptor of the episode so far, so that its
return is the descriptor at the end; the paper sums a measure of each step. The elites of the
archive are the best so far, whatever the thresholds (their result archive). The critics, one for
each reward and one for the walk, and the environments' streams go on from one step to the next.
Left out of the paper's system: observation and return normalisation, and the standard deviation of
the actions, which starts anew in each step, is not part of a genotype.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.agents.policy_gradient import ppo
from jaxrl.algorithms.evolution import archive as archives
from jaxrl.algorithms.evolution import population as populations
from jaxrl.algorithms.evolution import xnes
from jaxrl.algorithms.evolution.descriptors import descriptor
from jaxrl.algorithms.evolution.map_elites import layout
from jaxrl.algorithms.evolution.policies import policies
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.divergence import guarded
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import hyper, hypers, select
from jaxrl.core.learn import LearnerState, learn
from jaxrl.core.types import Algorithm, Array, Environment, Tree, struct
from jaxrl.envs.wrappers import reward_components
from jaxrl.sources.rollouts import rollouts


@dataclasses.dataclass(frozen=True)
class Config(ppo.Config):
    """What PPGA can be told; also all that its PPO can (whose normalisations are refused)."""

    descriptor: tuple[str, ...] = ()
    """The measures: names of metrics, or observation.i, at an episode's end."""
    low: tuple[float, ...] = ()
    """Least value of each descriptor."""
    high: tuple[float, ...] = ()
    """Largest value of each descriptor."""
    cells: tuple[int, ...] = ()
    """Cells of the grid along each descriptor."""
    centroids: int = 0
    """So many cells of a centroidal Voronoi tessellation instead of the grid; 0 for the grid."""
    population: int = 64
    """Branched policies in each step."""
    episodes: int = 1
    """Episodes that each is judged by."""
    chunk: int = 0
    """Policies that play at once, where memory asks for it; 0 for all."""
    gradient_updates: int = 4
    """PPO updates for each direction (N1)."""
    walk_updates: int = 4
    """PPO updates of the search policy (N2)."""
    archive_rate: float = hyper(0.1)
    """How far an accepted branch moves its cell's threshold (alpha)."""
    floor: float = hyper(0.0)
    """The first threshold, and the fitness that adds nothing to the QD-score."""
    branch_sigma: float = hyper(1.0)
    """The first standard deviation of the coefficients; directions have length 1."""


@struct
class State:
    theta: Array  # [D]: the search policy
    directions: Tree  # LearnerState [K + 1]: of the objective and each measure
    walk: Tree  # LearnerState
    coefficients: xnes.State
    archive: archives.Archive
    thresholds: Array  # [C]
    steps: Array  # int32
    diverged: Array  # int32: the step at which a number was first not finite, or metrics.NEVER
    hyper: Tree


def weighted(env: Environment, names: tuple[str, ...]) -> Environment:
    """`env` whose reward is `params.reward_weights` [K + 1] times its own and what the step adds to
    each descriptor."""
    return _weighted(env, names)


@functools.cache
def _weighted(env: Environment, names: tuple[str, ...]) -> Environment:
    describe = descriptor(env, names)

    def added(k):
        return lambda before, action, after: (describe(after) - describe(before))[k]

    components = {"objective": lambda before, action, after: after.reward}
    components |= {f"measure_{k}": added(k) for k in range(len(names))}
    return reward_components(env, components, dict.fromkeys(components, 0.0) | {"objective": 1.0})


def ppga(env: Environment, config: Config = Config()) -> Algorithm:
    """Fill an archive with policies for `env`; the policy that results is the fittest elite. Its
    frames are all steps that PPO takes and the branches could (episodes of full length). The same
    arguments give the same object.

    Raises `UserError` where env and config do not fit.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    _check(config)
    cell_of, count = layout(config)
    describe = descriptor(env, config.descriptor)
    space = policies(env, config.hidden, config.activation)
    rewards = len(config.descriptor) + 1
    paid = weighted(env, config.descriptor)
    learner = ppo.agent(paid, config)
    # Both learn from the same rollouts; only what these pay differs, and lies in their state.
    inner = learn(
        learner, rollouts(paid, config.num_envs, config.num_steps, None, config.reset_pool)
    )

    def pay(state: LearnerState, weights: Array) -> LearnerState:
        params = dataclasses.replace(state.source.tasks, reward_weights=weights)
        return dataclasses.replace(state, source=dataclasses.replace(state.source, tasks=params))

    def begin(state: LearnerState, fresh: ppo.State, theta: Array) -> LearnerState:
        """`state` at the policy `theta`, with its own critic, deviation and optimiser as in
        `fresh`."""
        critic = jax.tree.map(jnp.asarray, state.agent.params)
        critic["params"]["head"] = fresh.params["params"]["head"]  # its log_std starts anew
        params = space.insert(critic, theta)
        agent = dataclasses.replace(state.agent, params=params, optimiser=fresh.optimiser)
        return dataclasses.replace(state, agent=agent)

    def train(state: LearnerState, key, updates: int):
        state, metrics = jax.lax.scan(inner.step, state, jax.random.split(key, updates))
        return state, space.vector(state.agent.params), m.reduce(metrics)

    def new_coefficients(key, hyper):
        # The objective's coefficient starts in [0, 2], a measure's in [-2, 2].
        mean = jax.random.uniform(key, (rewards,), minval=-2.0, maxval=2.0)
        return xnes.init(mean.at[0].set(jnp.abs(mean[0])), hyper["branch_sigma"])

    def init(key, hyper):
        theta_key, direction_key, walk_key, xnes_key = jax.random.split(key, 4)
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
            new_coefficients(xnes_key, own),
            archives.empty(count, space.size, len(config.descriptor)),
            jnp.full(count, own["floor"]),
            jnp.int32(0),
            jnp.int32(m.NEVER),
            own,
        )

    def step(state, key):
        gradient_key, draw_key, play_key, walk_key, elite_key, xnes_key, fresh_key = (
            jax.random.split(key, 7)
        )
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
        scores = populations.score(
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
        walked = jnp.where(restart & archive.occupied.any(), elite, walked)
        coefficients = trees.where(restart, new_coefficients(xnes_key, hyper), coefficients)
        new = dataclasses.replace(
            state,
            theta=walked,
            directions=directions,
            walk=walk,
            coefficients=coefficients,
            archive=archive,
            thresholds=thresholds,
        )
        report = populations.statistics(scores) | archives.statistics(archive, hyper["floor"])
        kept = ("policy_loss", "value_loss", "entropy", "approximate_kl", "explained_variance")
        report |= {name: metrics[name] for name in kept}
        return new, report | {
            "restarts": m.Sum(restart.astype(jnp.float32)),
            "improved": m.mean(improvement > 0),
        }

    def finite(state, metrics):
        # PPO that diverged has frozen its agent, and would leave a direction of length 0.
        learning = jnp.append(state.directions.diverged, state.walk.diverged) == m.NEVER
        own = state.theta, state.coefficients, state.thresholds, metrics["best_return"]
        return learning.all() & trees.all_finite(own)

    updates = rewards * config.gradient_updates + config.walk_updates
    algorithm = Algorithm(
        f"ppga on {env.name}",
        init,
        step,
        policy=lambda state: space.policy(archives.best(state.archive)[None]),
        hyper=hypers(config),
        frames=updates * inner.frames + config.population * config.episodes * (env.max_steps or 0),
        config=config,
    )
    return guarded(algorithm, finite)


def _check(config: Config) -> None:
    for name, wrong in (
        ("normalize_observation", config.normalize_observation),
        ("normalize_reward", config.normalize_reward),
        ("recurrent", config.recurrent > 0),
    ):
        if wrong:
            raise UserError(
                f"{name} is set; ppga's genotypes are the weights of a feed-forward policy, "
                "without statistics or memory."
            )
