"""Evolution strategies as pure functions: `ask` for genotypes, `tell` their fitness.

openai    gradient of the smoothed return (Salimans et al., 2017)
csa       cumulative step-size adaptation, one step size and no covariance
sep_cma   a diagonal covariance (Ros and Hansen, 2008)
cma       a full covariance (Hansen, 2016)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.evolution.shared import cma
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Array, Hyper, Key, Tree, struct
from jaxrl.kit.groups import plain_optimizer
from jaxrl.kit.optimization import descend


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy:
    """Search distribution over vectors [D] that maximizes fitness.

    init(mean [D], hyper) -> state; hyper has `sigma`, the initial standard deviation
    ask(state, key) -> genotypes [P, D]
    tell(state, genotypes, fitness [P], hyper) -> state; NaN is the worst fitness
    `state.mean` [D] is the best estimate.
    """

    init: Callable[[Array, Hyper], Tree]
    ask: Callable[[Tree, Key], Array]
    tell: Callable[[Tree, Array, Array, Hyper], Tree]


NAMES = ("openai", "csa", "sep_cma", "cma")


def strategy(name: str, dimension: int, population: int, optimizer: str = "adam") -> Strategy:
    """Return the strategy of that name. Raises `UserError` for an unknown one, for a population of
    an unsuitable size, and for a full covariance of more than `cma.LARGEST` dimensions."""
    if name == "openai":
        return openai(population, optimizer)
    if name not in NAMES:
        raise unknown("strategy", name, NAMES)
    return Strategy(*cma.functions(name, dimension, population))


# ------------------------------------------------------------------------------- OpenAI-ES


@struct
class OpenAIState:
    """State of OpenAI-ES."""

    mean: Array  # [D]
    sigma: Array
    optimizer: Tree


def openai(population: int, optimizer: str = "adam") -> Strategy:
    """Return the evolution strategy of Salimans et al. (2017, arXiv:1703.03864): antithetic pairs,
    centered ranks, weight decay, and any optimizer. Here, equal fitness gets equal ranks. It reads
    `sigma`, `learning_rate` and `weight_decay` of `hyper`. Raises `UserError` for an odd
    population."""
    if population < 2 or population % 2:
        raise UserError(f"population is {population}; antithetic pairs need an even number.")
    rule = plain_optimizer(optimizer)

    def init(mean, hyper):
        return OpenAIState(mean, jnp.asarray(hyper["sigma"]), rule.init(mean))

    def ask(state, key):
        noise = jax.random.normal(key, (population // 2, state.mean.shape[0]))
        return state.mean + state.sigma * jnp.concatenate([noise, -noise])

    def tell(state, genotypes, fitness, hyper):
        noise = (genotypes - state.mean) / state.sigma
        up = losses.es_gradient(losses.centered_ranks(fitness), noise, state.sigma)
        down = hyper["weight_decay"] * state.mean - up
        mean, optimizer_state, _ = descend(
            rule, down, state.optimizer, state.mean, hyper["learning_rate"]
        )
        return OpenAIState(mean, jnp.asarray(hyper["sigma"]), optimizer_state)

    return Strategy(init, ask, tell)
