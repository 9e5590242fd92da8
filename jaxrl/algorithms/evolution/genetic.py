"""A genetic algorithm over the weights of a policy, for reward or for novelty.

Such et al. (2017), "Deep neuroevolution" (arXiv:1712.06567): truncation selection, Gaussian
mutation, no crossover, one elite. A genome is the list of the random seeds that produced its
weights: the first draws the initial weights, every other one a mutation (their section 3.1). With
`selection: novelty` parents are chosen by the novelty of their behavior (GA-NS, their section 3.2).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import novelty, scoring
from jaxrl.algorithms.evolution.shared.descriptors import descriptor
from jaxrl.algorithms.evolution.shared.policies import Policies, policies
from jaxrl.algorithms.evolution.shared.ranking import order_by_fitness
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Array, Environment, Key, struct
from jaxrl.kit import Direct, DirectBuilder, direct, hyper, static
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of the genetic algorithm."""

    population: int = static(256, low=1, high=MANY)
    """Number of policies in each generation."""
    parents: int = static(20, low=1, high=MANY)
    """Number of policies in each generation that have offspring (T)."""
    episodes: int = static(1, low=1, high=MANY)
    """Number of episodes that evaluate each policy."""
    elite_candidates: int = static(1, low=1, high=MANY)
    """Number of the best policies, the elite so far included, that play again to select the elite;
    1 takes the best as it is."""
    elite_episodes: int = static(30, low=1, high=MANY)
    """Number of episodes that each elite candidate plays again."""
    chunk: int = static(0, low=0, high=MANY)
    """Number of policies that play at once, to limit memory; 0 for all."""
    max_generations: int = static(1000, low=1)
    """Maximum number of generations that a genome records; weights evolve beyond that."""
    hidden: tuple[int, ...] = static((16, 16), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear policies."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """Activation function of the hidden layers."""
    selection: str = static("fitness", choices=("fitness", "novelty"))
    """Criterion for selecting parents: fitness or novelty."""
    descriptor: tuple[str, ...] = ()
    """Behavior that novelty compares: names of metrics, or observation.i, at the end of an
    episode."""
    neighbors: int = static(25, low=1, high=MANY)
    """Number of nearest behaviors whose mean distance is the novelty."""
    memory: int = static(4096, low=1, high=MANY)
    """Capacity of the memory of behaviors."""
    memory_rate: float = hyper(0.01, low=0, high=1)
    """Probability that a behavior is stored in the memory."""
    mutation: float = hyper(0.05, low=0)
    """Standard deviation of a mutation."""


@struct
class Genome:
    """Random seeds that produced a vector of weights."""

    seeds: Array  # uint32 [..., max_generations]
    length: Array  # int32 [...]: beyond max_generations the last seeds are lost


@struct
class State:
    """State of the genetic algorithm."""

    vectors: Array  # [P, D]: the generation to play next; index 0 is the elite
    genomes: Genome  # [P]
    best: Array  # [D]: the elite; with novelty, the fittest so far
    best_genome: Genome
    best_fitness: Array
    memory: novelty.Memory
    noise: Key  # seeds are folded into it; never changes


def _noise(base: Key, seeds: Array, size: int) -> Array:
    """Draw standard normal [n, size], each row from one of `seeds` [n]. The barrier prevents
    fusion, so that the bits are the same wherever it is computed."""
    draw = lambda seed: jax.random.normal(jax.random.fold_in(base, seed), (size,))
    return jax.lax.optimization_barrier(jax.vmap(draw)(seeds))


def mutate(base: Key, vectors: Array, seeds: Array, deviation: Array) -> Array:
    """Add to `vectors` [n, D] the mutation of each of `seeds` [n]."""
    # The barrier keeps product and sum from becoming one operation with different rounding.
    change = jax.lax.optimization_barrier(deviation * _noise(base, seeds, vectors.shape[1]))
    return jax.lax.optimization_barrier(vectors) + change


def initial_weights(base: Key, seeds: Array, space: Policies) -> Array:
    """Draw the initial weights [n, D] of each of `seeds` [n]."""
    draw = lambda seed: space.init(jax.random.fold_in(base, seed))
    return jax.lax.optimization_barrier(jax.vmap(draw)(jax.lax.optimization_barrier(seeds)))


@functools.partial(jax.jit, static_argnums=2)
def _rebuild(base: Key, genome: Genome, space: Policies, deviation: Array) -> Array:
    def step(vector, at):
        index, seed = at
        child = mutate(base, vector, seed[None], deviation)
        return jnp.where(index < genome.length, child, vector), None

    index = jnp.arange(1, genome.seeds.shape[0])
    start = initial_weights(base, genome.seeds[:1], space)
    return jax.lax.scan(step, start, (index, genome.seeds[1:]))[0][0]


def reconstruct(env: Environment, config: Config, state: direct.State, genome: Genome) -> Array:
    """Rebuild the weights [D] of `genome` (one of `state`'s) from its seeds alone, to the same
    bits. Raises `UserError` for a genome longer than `max_generations`."""
    if int(genome.length) > genome.seeds.shape[0]:
        raise UserError(
            f"The genome is {int(genome.length)} generations long and has room for "
            f"max_generations={genome.seeds.shape[0]}; it cannot be reconstructed."
        )
    space = policies(env, config.hidden, config.activation)
    return _rebuild(state.own.noise, genome, space, state.hyper["mutation"])


def build(env: Environment, config: Config) -> Direct:
    """Evolve policies for `env`; the resulting policy is the elite.

    One step is a generation. Its environment steps are counted as if all episodes had full length.
    """
    space = policies(env, config.hidden, config.activation)
    describe = descriptor(env, config.descriptor)
    by_novelty = config.selection == "novelty"
    size, capacity = config.population, config.max_generations

    def init(key, hyper):
        seed_key, noise = jax.random.split(key)
        seeds = jax.random.bits(seed_key, (size,), jnp.uint32)
        vectors = initial_weights(noise, seeds, space)
        room = jnp.zeros((size, capacity), jnp.uint32).at[:, 0].set(seeds)
        genomes = Genome(room, jnp.ones(size, jnp.int32))
        memory = novelty.empty(config.memory, len(config.descriptor))
        best = vectors[0], _take(genomes, 0), jnp.float32(-jnp.inf)
        return State(vectors, genomes, *best, memory, noise)

    def elite(state, order, fitness, key):
        """Return the index and the mean return of the elite."""
        if config.elite_candidates == 1:
            return order[0], fitness[order[0]]
        candidates = order[: config.elite_candidates]
        if not by_novelty:  # the elite so far, at index 0, always plays again (their algorithm 1)
            known = (candidates == 0).any() | ~jnp.isfinite(state.best_fitness)
            candidates = jnp.where(known, candidates, candidates.at[-1].set(0))
        again = scoring.score(
            env, space, state.vectors[candidates], key, config.elite_episodes
        ).fitness
        chosen = order_by_fitness(again)[0]
        return candidates[chosen], again[chosen]

    def step(state, key, hyper):
        play_key, elite_key, memory_key, parent_key, seed_key = jax.random.split(key, 5)
        scores = scoring.score(
            env, space, state.vectors, play_key, config.episodes, describe, config.chunk
        )
        value, memory = scores.fitness, state.memory
        if by_novelty:
            value = novelty.novelty(scores.descriptors, memory, config.neighbors)
            memory = novelty.remember(memory, scores.descriptors, memory_key, hyper.memory_rate)
        order = order_by_fitness(scores.fitness)
        fittest, fitness = elite(state, order, scores.fitness, elite_key)
        better = fitness > state.best_fitness if by_novelty else jnp.bool_(True)
        pick = lambda new, old: jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)

        order = order_by_fitness(value)
        if not by_novelty:  # the elite is a parent, even if others had more luck in their one play
            others = jnp.nonzero(order != fittest, size=size - 1)[0]
            order = jnp.concatenate([fittest[None], order[others]])
        drawn = jax.random.randint(parent_key, (size,), 0, config.parents)
        parents = order[drawn].at[0].set(order[0] if by_novelty else fittest)
        seeds = jax.random.bits(seed_key, (size,), jnp.uint32)
        children = mutate(state.noise, state.vectors[parents], seeds, hyper.mutation)
        genomes = _take(state.genomes, parents)
        grown = jnp.arange(size) > 0  # index 0 is the elite, unchanged
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
    return Direct(
        init,
        step,
        policy=lambda state: space.policy(state.best[None]),
        finite=finite,
        env_steps=plays * (env.max_steps or 0),
        scores=scoring.SCORES | ({"novelty": "novelty"} if by_novelty else {}),
        num_shards=config.chunk or config.population,
    )


def _take(genomes: Genome, index: Array | int) -> Genome:
    return jax.tree.map(lambda x: x[index], genomes)


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment without a time limit or an action space without a policy
    head, and for settings that contradict each other."""
    scoring.check_env(env, name)
    for setting in ("parents", "elite_candidates"):
        if getattr(config, setting) > config.population:
            raise UserError(
                f"{setting} is {getattr(config, setting)}; there are {config.population} policies."
            )
    if config.selection == "novelty":
        if not config.descriptor:
            raise UserError("selection: novelty needs a descriptor; there is none.")
        if config.memory < config.population:
            raise UserError(
                f"memory is {config.memory}; it must hold a generation of {config.population}."
            )


genetic = DirectBuilder(
    "genetic",
    Config,
    build,
    check,
    describe=lambda env, config: f"genetic({config.selection}) on {env.name}",
)

TINY = {
    "env": "cartpole", "population": 8, "parents": 2, "hidden": (), "max_generations": 4,
    "elite_candidates": 2, "elite_episodes": 2, "selection": "novelty",
    "descriptor": ("observation.0",), "memory": 8,
}  # fmt: skip
