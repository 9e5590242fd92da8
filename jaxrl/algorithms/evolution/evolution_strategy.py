"""Direct policy search by evolution strategies.

Salimans et al. (2017, arXiv:1703.03864) for large networks; with `hidden` empty, the linear policy
search of Wong et al. (2024, "Solving deep reinforcement learning benchmarks with linear policy
networks", arXiv:2402.06912), who compare CSA-ES, sep-CMA-ES and CMA-ES.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.algorithms.evolution.shared import scoring
from jaxrl.algorithms.evolution.shared.policies import policies
from jaxrl.algorithms.evolution.shared.strategies import NAMES, strategy
from jaxrl.core import metrics as m
from jaxrl.core import trees
from jaxrl.core.hyper import MANY, WIDE
from jaxrl.core.types import Environment
from jaxrl.kit import Direct, DirectBuilder, hyper, static
from jaxrl.kit.groups import TRANSFORMATIONS
from jaxrl.networks.torsos import ACTIVATIONS


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of an evolution strategy."""

    strategy: str = static("sep_cma", choices=NAMES)
    """Evolution strategy: openai, csa, sep_cma or cma."""
    population: int = static(64, low=1, high=MANY)
    """Number of policies in each generation."""
    episodes: int = static(1, low=1, high=MANY)
    """Number of episodes that evaluate each policy."""
    chunk: int = static(0, low=0, high=MANY)
    """Number of policies that play at once, to limit memory; 0 for all."""
    hidden: tuple[int, ...] = static((), low=1, high=WIDE)
    """Widths of the hidden layers; none for linear policies."""
    activation: str = static("tanh", choices=ACTIVATIONS)
    """Activation function of the hidden layers."""
    optimizer: str = static("adam", choices=TRANSFORMATIONS)
    """Optimizer of the strategy openai."""
    sigma: float = hyper(0.5, above=0)
    """Standard deviation of the first generation; with openai, of all generations."""
    learning_rate: float = hyper(0.05, low=0, log=True)
    """Step size of the strategy openai."""
    weight_decay: float = hyper(0.0, low=0, log=True)
    """Weight decay of the strategy openai."""


def build(env: Environment, config: Config) -> Direct:
    """Evolve policies for `env`; the resulting policy is the mean of the search distribution.

    One step is a generation. Its environment steps are counted as if all episodes had full length.
    """
    space = policies(env, config.hidden, config.activation)
    search = strategy(config.strategy, space.size, config.population, config.optimizer)

    def init(key, hyper):
        return search.init(space.init(key), hyper)

    def step(state, key, hyper):
        ask_key, play_key = jax.random.split(key)
        genotypes = search.ask(state, ask_key)
        scores = scoring.score(env, space, genotypes, play_key, config.episodes, None, config.chunk)
        new = search.tell(state, genotypes, scores.fitness, hyper)
        norm = jnp.sqrt(jnp.square(new.mean).sum())
        metrics = {"sigma": m.mean(new.sigma), "mean_norm": m.mean(norm)}
        return new, scoring.statistics(scores) | metrics

    def finite(state, metrics):
        return trees.all_finite((state, metrics["mean_norm"], metrics["best_return"]))

    return Direct(
        init,
        step,
        policy=lambda state: space.policy(state.mean[None]),
        finite=finite,
        env_steps=config.population * config.episodes * (env.max_steps or 0),
        scores=scoring.SCORES,
        num_shards=config.chunk or config.population,
    )


def check(env: Environment, config: Config, name: str) -> None:
    """Raise `UserError` for an environment without a time limit or an action space without a policy
    head."""
    scoring.check_env(env, name)


evolution_strategy = DirectBuilder(
    "evolution_strategy",
    Config,
    build,
    check,
    describe=lambda env, config: f"{config.strategy} on {env.name}",
)

TINY = {"env": "cartpole", "strategy": "cma", "population": 8}
