"""A genetic algorithm over the weights of a policy, for reward or for novelty.

Such et al. (2017), "Deep neuroevolution" (arXiv:1712.06567): truncation selection, Gaussian
mutation, no crossover, one elite. A genome is the list of the random seeds that made its weights:
one draws the first weights, every other one a mutation (their section 3.1). With `selection:
novelty` parents are chosen by how new their behavior is (GA-NS, their section 3.2).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import novelty, scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import Policies, policies
from jaxrl.algorithms.evolution.shared.ranking import ordered
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.divergence import guard
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, WIDE, check, hypers, select
from jaxrl.core.types import Algorithm, Array, Environment, Key, Tree, struct
from jaxrl.kit import hyper, static
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the genetic algorithm."""

    population: int = static(256, low=1, high=MANY)
    """Policies in each generation."""
    parents: int = static(20, low=1, high=MANY)
    """How many of them have offspring (T)."""
    episodes: int = static(1, low=1, high=MANY)
    """Episodes that each is judged by."""
    elite_candidates: int = static(1, low=1, high=MANY)
    """The best so many play again, to choose the elite; 1 takes the best as it is."""
    elite_episodes: int = static(30, low=1, high=MANY)
    """Episodes that each candidate plays again."""
    chunk: int = static(0, low=0, high=MANY)
    """Policies that play at once, where memory asks for it; 0 for all."""
    max_generations: int = static(1000, low=1)
    """How many generations a genome has room for; its weights go on beyond that."""
    hidden: tuple[int, ...] = static((16, 16), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear policies."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    selection: str = static("fitness", choices=("fitness", "novelty"))
    """fitness or novelty."""
    descriptor: tuple[str, ...] = ()
    """What novelty compares: names of metrics, or observation.i, at an episode's end."""
    neighbors: int = static(25, low=1, high=MANY)
    """How many of the nearest behaviors novelty is the mean distance to."""
    memory: int = static(4096, low=1, high=MANY)
    """Behaviors that are remembered at most."""
    memory_rate: float = hyper(0.01, low=0, high=1)
    """Probability that a behavior is remembered."""
    mutation: float = hyper(0.05, low=0)
    """Standard deviation of a mutation."""


@struct
class Genome:
    seeds: Array  # uint32 [..., max_generations]
    length: Array  # int32 [...]: above max_generations the last seeds are lost


@struct
class State:
    vectors: Array  # [P, D]: the generation that is played next; 0 is the elite
    genomes: Genome  # [P]
    best: Array  # [D]: the elite, with novelty the fittest so far
    best_genome: Genome
    best_fitness: Array
    memory: novelty.Memory
    noise: Key  # what seeds are folded into; never changes
    steps: Array  # int32
    diverged: Array  # int32: the step at which a number was first not finite, or metrics.NEVER
    hyper: Tree


def _noise(base: Key, seeds: Array, size: int) -> Array:
    """Standard normal [n, size], each row from the seed of `seeds` [n]. The barriers keep it from
    being fused, so that its bits are the same wherever it is computed."""
    draw = lambda seed: jax.random.normal(jax.random.fold_in(base, seed), (size,))
    return jax.lax.optimization_barrier(jax.vmap(draw)(seeds))


def mutate(base: Key, vectors: Array, seeds: Array, deviation: Array) -> Array:
    """`vectors` [n, D] with the mutation of each of `seeds` [n]."""
    # Separate, or the product and the sum might be one operation with another rounding.
    change = jax.lax.optimization_barrier(deviation * _noise(base, seeds, vectors.shape[1]))
    return jax.lax.optimization_barrier(vectors) + change


def first(base: Key, seeds: Array, space: Policies) -> Array:
    """The first weights [n, D] of each of `seeds` [n]."""
    draw = lambda seed: space.init(jax.random.fold_in(base, seed))
    return jax.lax.optimization_barrier(jax.vmap(draw)(jax.lax.optimization_barrier(seeds)))


@functools.partial(jax.jit, static_argnums=2)
def _rebuild(base: Key, genome: Genome, space: Policies, deviation: Array) -> Array:
    def step(vector, at):
        index, seed = at
        child = mutate(base, vector, seed[None], deviation)
        return jnp.where(index < genome.length, child, vector), None

    index = jnp.arange(1, genome.seeds.shape[0])
    start = first(base, genome.seeds[:1], space)
    return jax.lax.scan(step, start, (index, genome.seeds[1:]))[0][0]


def reconstruct(env: Environment, config: Config, state: State, genome: Genome) -> Array:
    """The weights [D] that `genome` (one of `state`'s) stands for, from its seeds alone: the same
    bits. Raises `UserError` for a genome that is longer than it has room for."""
    if int(genome.length) > genome.seeds.shape[0]:
        raise UserError(
            f"The genome is {int(genome.length)} generations long and has room for "
            f"max_generations={genome.seeds.shape[0]}; it cannot be reconstructed."
        )
    space = policies(env, config.hidden, config.activation)
    return _rebuild(state.noise, genome, space, state.hyper["mutation"])


def genetic(env: Environment, config: Config = Config()) -> Algorithm:
    """Evolve policies for `env`. One step is a generation; its env_steps are all steps that could
    be played, episodes of full length. The same arguments give the same object.

    Raises `UserError` where env and config do not fit.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    _check(env, config)
    space = policies(env, config.hidden, config.activation)
    describe = descriptor(env, config.descriptor)
    by_novelty = config.selection == "novelty"
    size, capacity = config.population, config.max_generations

    def init(key, hyper):
        seed_key, noise = jax.random.split(key)
        seeds = jax.random.bits(seed_key, (size,), jnp.uint32)
        vectors = first(noise, seeds, space)
        room = jnp.zeros((size, capacity), jnp.uint32).at[:, 0].set(seeds)
        genomes = Genome(room, jnp.ones(size, jnp.int32))
        memory = novelty.empty(config.memory, len(config.descriptor))
        return State(
            vectors, genomes, vectors[0], _take(genomes, 0), jnp.float32(-jnp.inf), memory, noise,
            jnp.int32(0), jnp.int32(m.NEVER), select(config, hyper),
        )  # fmt: skip

    def elite(state, order, fitness, key):
        """The index and the mean return of the best."""
        if config.elite_candidates == 1:
            return order[0], fitness[order[0]]
        candidates = order[: config.elite_candidates]
        again = scoring.score(
            env, space, state.vectors[candidates], key, config.elite_episodes
        ).fitness
        chosen = ordered(again)[0]
        return candidates[chosen], again[chosen]

    def step(state, key):
        play_key, elite_key, memory_key, parent_key, seed_key = jax.random.split(key, 5)
        scores = scoring.score(
            env, space, state.vectors, play_key, config.episodes, describe, config.chunk
        )
        value, memory = scores.fitness, state.memory
        if by_novelty:
            value = novelty.novelty(scores.descriptors, memory, config.neighbors)
            memory = novelty.remember(
                memory, scores.descriptors, memory_key, state.hyper["memory_rate"]
            )
        fittest, fitness = elite(state, ordered(scores.fitness), scores.fitness, elite_key)
        better = fitness > state.best_fitness if by_novelty else jnp.bool_(True)
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)

        order = ordered(value)
        drawn = jax.random.randint(parent_key, (size,), 0, config.parents)
        parents = order[drawn].at[0].set(order[0] if by_novelty else fittest)
        seeds = jax.random.bits(seed_key, (size,), jnp.uint32)
        children = mutate(state.noise, state.vectors[parents], seeds, state.hyper["mutation"])
        genomes = _take(state.genomes, parents)
        grown = jnp.arange(size) > 0  # 0 is the elite, as it is
        place = jnp.where(grown, genomes.length, capacity)  # out of bounds: dropped
        genomes = Genome(
            genomes.seeds.at[jnp.arange(size), place].set(seeds, mode="drop"),
            genomes.length + grown,
        )
        new = State(
            jnp.where(grown[:, None], children, state.vectors[parents]),
            genomes,
            pick(state.vectors[fittest], state.best),
            pick(_take(state.genomes, fittest), state.best_genome),
            pick(fitness, state.best_fitness),
            memory,
            state.noise,
            state.steps,
            state.diverged,
            state.hyper,
        )
        metrics = scoring.statistics(scores)
        if by_novelty:
            metrics |= {"novelty": m.mean(value, jnp.isfinite(value))}
        return new, metrics

    def finite(state, metrics):
        found = state.vectors, state.best, state.best_fitness
        return trees.all_finite((found, metrics["best_return"]))

    plays = size * config.episodes
    if config.elite_candidates > 1:
        plays += config.elite_candidates * config.elite_episodes
    algorithm = Algorithm(
        f"genetic({config.selection}) on {env.name}",
        init,
        step,
        policy=lambda state: space.policy(state.best[None]),
        hyper=hypers(config),
        env_steps=plays * (env.max_steps or 0),
        config=config,
        scores=scoring.SCORES | ({"novelty": "novelty"} if by_novelty else {}),
    )
    return guard(algorithm, finite)


def _take(genomes: Genome, index: Array | int) -> Genome:
    return jax.tree.map(lambda x: x[index], genomes)


def _check(env: Environment, config: Config) -> None:
    check(config)
    scoring.check_env(env, "genetic")
    for name in ("parents", "elite_candidates"):
        if getattr(config, name) > config.population:
            raise UserError(
                f"{name} is {getattr(config, name)}; there are {config.population} policies."
            )
    if config.selection == "novelty":
        if not config.descriptor:
            raise UserError("selection: novelty needs a descriptor, and there is none.")
        if config.memory < config.population:
            raise UserError(
                f"memory is {config.memory}; it must hold a generation of {config.population}."
            )


TINY = {
    "env": "cartpole", "population": 6, "parents": 2, "hidden": (), "max_generations": 4,
    "elite_candidates": 2, "elite_episodes": 2, "selection": "novelty",
    "descriptor": ("observation.0",), "memory": 8,
}  # fmt: skip
