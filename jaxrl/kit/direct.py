"""Algorithms that are no agent with a source: evolution, populations, solvers, learned rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax.numpy as jnp

from jaxrl.core import hyper as hyperparameters
from jaxrl.core import metrics as m
from jaxrl.core import settings, trees
from jaxrl.core.divergence import guard
from jaxrl.core.settings import Static, Values
from jaxrl.core.types import Algorithm, Array, Environment, Key, Measure, Policy, Tree, struct


@struct
class State:
    """State of a direct algorithm.

    own: what its functions see. steps, diverged: int32, kept by the builder. hyper: by dotted name.
    """

    own: Tree
    steps: Array
    diverged: Array
    hyper: dict[str, Any]


class Init(Protocol):
    """The first state of a direct algorithm."""

    def __call__(self, key: Key, hyper: Values, /) -> Tree:
        """Return the first state. key: random key. hyper: hyperparameters, by attribute."""
        ...


class Step(Protocol):
    """One step of a direct algorithm."""

    def __call__(self, state: Tree, key: Key, hyper: Values, /) -> tuple[Tree, dict[str, Any]]:
        """Return the next state, and metrics (values of `core.metrics`, by name).

        state: as `init` or the last step returned it. key: another one for each step.
        hyper: hyperparameters, by attribute.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Direct:
    """A direct algorithm as functions.

    policy: state -> the policy that is evaluated and saved.
    finite: (state, metrics) -> whether all numbers are healthy, a bool scalar; after the first step
        that is not, the state stays as it was. Hyperparameters are no part of the state, so an
        infinite one does no harm.
    env_steps: environment steps in one step; initial_env_steps: those in `init`.
    scores: metrics that it is judged by; see `Algorithm.scores`.
    measure: (state, key) -> name -> scalar; see `Algorithm.measure`.
    num_shards: parts that devices may share, such as the policies of a population that play side by
        side (`core.devices.spread`); None if every device does the same.
    """

    init: Init
    step: Step
    policy: Callable[[Tree], Policy]
    finite: Callable[[Tree, dict[str, Any]], Array] = lambda state, metrics: trees.all_finite(state)
    env_steps: int = 0
    initial_env_steps: int = 0
    scores: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measure: Measure = lambda state, key: {}
    num_shards: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class DirectBuilder:
    """Builder of a direct algorithm: `evolution_strategy(env, config)` is an `Algorithm`.

    build(env, config) -> Direct; `config` hides hyperparameters, so that none is compiled in.
    check(env, config, name): raises `UserError` where the two do not fit.
    describe(env, config) -> the algorithm's name in logs; "NAME on ENVIRONMENT" by default.
    """

    name: str
    Config: type
    build: Callable[[Environment, Any], Direct]
    check: Callable[[Environment, Any, str], None] = lambda env, config, name: None
    describe: Callable[[Environment, Any], str] | None = None

    def __call__(self, env: Environment, config: Any = None) -> Algorithm:
        """Return the algorithm. The same arguments give the same object.

        config: a `Config`, or a mapping of the settings that differ from its defaults, by unique
            endings of their names.

        Raises `UserError` where env and config do not fit.
        """
        if config is None or isinstance(config, Mapping):
            config = settings.replace(self.Config(), config or {})
        return _build(self, env, config)


@functools.cache
def _build(builder: DirectBuilder, env: Environment, config: Any) -> Algorithm:
    own = hyperparameters.hypers(config)
    builder.check(env, config, builder.name)
    direct = builder.build(env, Static(config))

    def init(key, hyper):
        hyper = hyperparameters.select(config, hyper)
        state = direct.init(key, Values(hyper))
        return State(state, jnp.int32(0), jnp.int32(m.NEVER), hyper)

    def step(state, key):
        new, metrics = direct.step(state.own, key, Values(state.hyper))
        return dataclasses.replace(state, own=new), metrics

    describe = builder.describe or (lambda env, config: f"{builder.name} on {env.name}")
    algorithm = Algorithm(
        describe(env, config),
        init,
        step,
        policy=lambda state: direct.policy(state.own),
        hyper=own,
        env_steps=direct.env_steps,
        initial_env_steps=direct.initial_env_steps,
        config=config,
        num_shards=direct.num_shards,
        scores=direct.scores,
        measure=lambda state, key: direct.measure(state.own, key),
    )
    return guard(algorithm, lambda state, metrics: direct.finite(state.own, metrics))
