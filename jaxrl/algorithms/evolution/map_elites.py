"""MAP-Elites: the best policy for each kind of behavior.

Mouret and Clune (2015, arXiv:1504.04909): draw elites, mutate them, play, and keep the offspring
that are better than the elite of their cell. Variation is Gaussian, with `line` > 0 also along the
line to another elite (Vassiliades and Mouret, 2018, "Discovering the elite hypervolume by
leveraging interspecies correlation", iso+line).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import archive as archives
from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.divergence import guard
from jaxrl.core.hyper import MANY, WIDE, hypers, select
from jaxrl.core.types import Algorithm, Array, Environment, Tree, struct
from jaxrl.kit import hyper, static
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of MAP-Elites."""

    descriptor: tuple[str, ...] = ()
    """Descriptors of an episode: names of metrics, or observation.i, at its end."""
    low: tuple[float, ...] = static(())
    """Least value of each descriptor."""
    high: tuple[float, ...] = static(())
    """Largest value of each descriptor."""
    cells: tuple[int, ...] = static((), low=1, high=MANY)
    """Number of cells of the grid along each descriptor."""
    centroids: int = static(0, low=0, high=MANY)
    """Number of cells of a centroidal Voronoi tessellation that replaces the grid; 0 for the
    grid."""
    population: int = static(256, low=1, high=MANY)
    """Number of policies in each generation."""
    episodes: int = static(1, low=1, high=MANY)
    """Number of episodes that evaluate each policy."""
    chunk: int = static(0, low=0, high=MANY)
    """Number of policies that play at once, to limit memory; 0 for all."""
    initial_generations: int = static(1, low=1)
    """Number of generations of random policies before the first offspring."""
    hidden: tuple[int, ...] = static((16, 16), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear policies."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """Activation function of the hidden layers."""
    mutation: float = hyper(0.05, low=0)
    """Standard deviation of a mutation."""
    line: float = hyper(0.1, low=0)
    """Standard deviation of the step along the line to another elite, as a fraction of the
    distance; 0 for mutations alone."""
    floor: float = hyper(0.0)
    """Fitness that contributes 0 to the QD-score."""


@struct
class State:
    """State of MAP-Elites."""

    archive: archives.Archive
    generation: Array  # int32
    steps: Array  # int32
    diverged: Array  # int32: the step at which a number was first not finite, or metrics.NEVER
    hyper: Tree


def map_elites(env: Environment, config: Config = Config()) -> Algorithm:
    """Fill an archive with policies for `env`; the resulting policy is the fittest elite. One step
    is a generation; its env_steps are counted as if all episodes had full length. The same
    arguments give the same object.

    Raises `UserError` if env and config do not fit.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    own = hypers(config)
    scoring.check_env(env, "map_elites")
    space = policies(env, config.hidden, config.activation)
    describe = descriptor(env, config.descriptor)
    cell_of, count = archives.cells_of(config)

    def init(key, hyper):
        empty = archives.empty(count, space.size, len(config.descriptor))
        counters = jnp.int32(0), jnp.int32(0), jnp.int32(m.NEVER)
        return State(empty, *counters, select(config, hyper))

    def vary(state, key):
        parent_key, noise_key, line_key = jax.random.split(key, 3)
        cells = archives.sample(state.archive, parent_key, 2 * config.population)
        elites = state.archive.genotypes[cells]
        parents, others = jnp.split(elites, 2)
        noise = jax.random.normal(noise_key, parents.shape)
        along = jax.random.normal(line_key, (config.population, 1))
        hyper = state.hyper
        return parents + hyper["mutation"] * noise + hyper["line"] * along * (others - parents)

    def step(state, key):
        new_key, vary_key, play_key = jax.random.split(key, 3)
        new = jax.vmap(space.init)(jax.random.split(new_key, config.population))
        starting = state.generation < config.initial_generations
        vectors = jnp.where(starting, new, vary(state, vary_key))
        scores = scoring.score(
            env, space, vectors, play_key, config.episodes, describe, config.chunk
        )
        cell = jnp.where(state.diverged == m.NEVER, cell_of(scores.descriptors), archives.NONE)
        archive, _ = archives.add(state.archive, cell, vectors, scores.fitness, scores.descriptors)
        metrics = scoring.statistics(scores)
        metrics |= archives.statistics(archive, state.hyper["floor"])
        new = dataclasses.replace(state, archive=archive, generation=state.generation + 1)
        return new, metrics

    def finite(state, metrics):  # failed policies never enter the archive
        return trees.all_finite(metrics["best_return"])

    algorithm = Algorithm(
        f"map_elites on {env.name}",
        init,
        step,
        policy=lambda state: space.policy(archives.best(state.archive)[None]),
        hyper=own,
        env_steps=config.population * config.episodes * (env.max_steps or 0),
        config=config,
        scores=archives.SCORES,
        num_shards=config.chunk or config.population,
    )
    # A select would copy the archive, which can take longer than playing.
    return guard(algorithm, finite, but=("archive",))


TINY = {
    "env": "cartpole", "population": 4, "hidden": (),
    "descriptor": ("observation.0",), "low": (-1.0,), "high": (1.0,), "cells": (8,),
}  # fmt: skip
