"""Direct policy search by evolution strategies.

Salimans et al. (2017, arXiv:1703.03864) for large networks; with `hidden` empty it is the linear
policy search of Wong et al. (2024, "Solving deep reinforcement learning benchmarks with linear
policy networks", arXiv:2402.06912), which compares CSA-ES, sep-CMA-ES and CMA-ES.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.algorithms.evolution.shared.strategies import NAMES, strategy
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.divergence import guarded
from jaxrl.core.hyper import MANY, WIDE, hypers, select
from jaxrl.core.types import Algorithm, Array, Environment, Tree, struct
from jaxrl.kit import hyper, static
from jaxrl.kit.groups import TRANSFORMATIONS
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of an evolution strategy."""

    strategy: str = static("sep_cma", choices=NAMES)
    """openai, csa, sep_cma or cma."""
    population: int = static(64, low=1, high=MANY)
    """Policies in each generation."""
    episodes: int = static(1, low=1, high=MANY)
    """Episodes that each is judged by."""
    chunk: int = static(0, low=0, high=MANY)
    """Policies that play at once, where memory asks for it; 0 for all."""
    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear policies."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """tanh, relu, elu, gelu or silu."""
    optimizer: str = static("adam", choices=TRANSFORMATIONS)
    """Of openai: adam, rmsprop or sgd."""
    sigma: float = hyper(0.5, above=0)
    """Standard deviation of the first generation; with openai, of all."""
    learning_rate: float = hyper(0.05, low=0)
    """Step size of openai."""
    weight_decay: float = hyper(0.0, low=0)
    """Of openai."""


@struct
class State:
    search: Tree
    steps: Array  # int32
    diverged: Array  # int32: the step at which a number was first not finite, or metrics.NEVER
    hyper: Tree


def evolution_strategy(env: Environment, config: Config = Config()) -> Algorithm:
    """Evolve policies for `env`; the policy that results is the mean of the search distribution.
    One step is a generation; its env_steps are all steps that could be played, episodes of full
    length. The same arguments give the same object.

    Raises `UserError` where env and config do not fit: no time limit, an action space without a
    head, a population too small for the strategy, a setting that is out of its range.
    """
    return _build(env, config)


@functools.cache
def _build(env: Environment, config: Config) -> Algorithm:
    own = hypers(config)
    scoring.check_env(env, "evolution_strategy")
    space = policies(env, config.hidden, config.activation)
    search = strategy(config.strategy, space.size, config.population, config.optimizer)

    def init(key, hyper):
        hyper = select(config, hyper)
        return State(search.init(space.init(key), hyper), jnp.int32(0), jnp.int32(m.NEVER), hyper)

    def step(state, key):
        ask_key, play_key = jax.random.split(key)
        genotypes = search.ask(state.search, ask_key)
        scores = scoring.score(env, space, genotypes, play_key, config.episodes, None, config.chunk)
        new = search.tell(state.search, genotypes, scores.fitness, state.hyper)
        norm = jnp.sqrt(jnp.square(new.mean).sum())
        metrics = {"sigma": m.mean(new.sigma), "mean_norm": m.mean(norm)}
        return dataclasses.replace(state, search=new), scoring.statistics(scores) | metrics

    def finite(state, metrics):
        return trees.all_finite((state.search, metrics["mean_norm"], metrics["best_return"]))

    algorithm = Algorithm(
        f"{config.strategy} on {env.name}",
        init,
        step,
        policy=lambda state: space.policy(state.search.mean[None]),
        hyper=own,
        env_steps=config.population * config.episodes * (env.max_steps or 0),
        config=config,
        scores=scoring.SCORES,
    )
    return guarded(algorithm, finite)


TINY = {"env": "cartpole", "strategy": "cma", "population": 8}
