"""Builders of algorithms: from a recipe to what a run trains."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from jaxrl.core import hyper, learn, settings
from jaxrl.core.errors import unknown
from jaxrl.core.settings import Static
from jaxrl.core.types import Agent, Algorithm, Array, Environment, Key, Policy, Source
from jaxrl.kit.learner import learner
from jaxrl.kit.networks import as_network, replace_network
from jaxrl.kit.normalization import add_normalization
from jaxrl.kit.recipe import Recipe


class Measure(Protocol):
    """A judge of an agent, called in each evaluation."""

    def __call__(
        self, env: Environment, config: Any, policy: Policy, key: Key, /
    ) -> dict[str, Array]:
        """Return scalars by name that an evaluation reports besides its episodes.

        env: the environment that the algorithm was built for.
        config: its settings; hyperparameters are hidden, and lie in the agent's state.
        policy: how the agent acts; `policy.state` is the agent's state.
        key: source of randomness, such as of the episodes that are played to measure.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class AlgorithmBuilder:
    """Builder of a published algorithm.

    `sac(env, config)` is an `Algorithm`, `sac.agent(env, config)` its agent alone, and
    `sac.variant("redq", ...)` the builder of another algorithm.

    recipe(env, config) -> Recipe. `config` hides hyperparameters, so that none is compiled in.
    source(env, config) -> what it learns from: that of the group of the settings that has one
        (`Rollouts`, `Replay`...), unless said
    updates(config) -> updates after each time that the source collects: the group's `updates`, or
        one where it has none, unless said
    check(env, config, name): raises `UserError` where the two do not fit.
    measure: what each evaluation reports besides its episodes; see `Measure`.
    goes_on_from: the algorithm that must have been trained before, for one that cannot learn from
        new weights, such as the one that learns its world model; empty for none.
    """

    name: str
    Config: type
    recipe: Callable[..., Recipe]
    source: Callable[[Environment, Any], Source] = lambda env, config: source_group(config).source(
        env
    )
    updates: Callable[[Any], int] = lambda config: getattr(source_group(config), "updates", 1)
    check: Callable[[Environment, Any, str], None] = lambda env, config, name: None
    measure: Measure = lambda env, config, policy, key: {}
    goes_on_from: str = ""

    def variant(self, name: str, **changes: Any) -> AlgorithmBuilder:
        """Return a builder called `name` that differs from this one in `changes`.

        Changes that are fields of this class replace them; all others are keyword arguments of the
        recipe: `dqn.variant("double_dqn", double=True)`.
        """
        fields = {f.name for f in dataclasses.fields(self)}
        own = {key: value for key, value in changes.items() if key in fields}
        options = {key: value for key, value in changes.items() if key not in fields}
        recipe = own.pop("recipe", self.recipe)
        if options:
            recipe = functools.partial(recipe, **options)
        return dataclasses.replace(self, name=name, recipe=recipe, **own)

    def complete_config(self, config: Any = None) -> Any:
        """Return a `Config`, from one or from a mapping of what differs from its defaults."""
        if config is None or isinstance(config, Mapping):
            return settings.replace(self.Config(), config or {})
        return config

    def __call__(
        self,
        env: Environment,
        config: Any = None,
        networks: Mapping[str, Any] = {},
        optimizers: Mapping[str, optax.GradientTransformation] = {},
    ) -> Algorithm:
        """Return the algorithm. The same arguments give the same object.

        config: a `Config`, or what differs from its defaults, by unique endings of names:
            `{"num_envs": 64, "optimizer.learning_rate": 1e-3}`, or nested.
        networks: flax modules (linen or nnx) that replace those of the named parts and take the
            same inputs; see `kit.networks` and docs/tutorials/agent.md.
        optimizers: optax optimizers that replace those of the named parts, whole: sign, step size
            and clipping are theirs (`optax.adam(1e-3)`), and the settings of the optimizer that
            they replace have no effect.

        Raises `UserError` where env and config do not fit, and for parts that do not exist.
        """
        config = self.complete_config(config)
        networks = {name: as_network(name, given) for name, given in networks.items()}
        parts = tuple(sorted(networks.items())), tuple(sorted(optimizers.items()))
        return _build(self, env, config, *parts)

    def agent(
        self,
        env: Environment,
        config: Any = None,
        networks: Mapping[str, Any] = {},
        optimizers: Mapping[str, optax.GradientTransformation] = {},
    ) -> Agent:
        """Return the agent alone, without normalizations."""
        config = self.complete_config(config)
        hyper.check(config)
        self.check(env, config, self.name)
        # What is built is kept, also where a trace asks for it first: its arrays are no tracers.
        # (Only there, since it would call what an environment on the host does on the host.)
        tracing = isinstance(jnp.zeros(()), Tracer)
        with jax.ensure_compile_time_eval() if tracing else contextlib.nullcontext():
            recipe = self.recipe(env, Static(config))
        for name, network in networks.items():
            recipe = replace_network(self.name, recipe, name, network)
        parts = dict(recipe.parts)
        for name, optimizer in optimizers.items():
            if name not in parts:
                raise unknown(f"part of '{self.name}'", name, parts)
            parts[name] = dataclasses.replace(parts[name], optimizer=optimizer)
        shards = num_shards(config)
        recipe = dataclasses.replace(recipe, parts=parts, num_shards=shards)
        return learner(self.name, config, recipe)


@functools.cache
def _build(
    builder: AlgorithmBuilder, env: Environment, config: Any, networks: Any, optimizers: Any
) -> Algorithm:
    agent = builder.agent(env, config, dict(networks), dict(optimizers))
    source = builder.source(env, config)
    algorithm = learn.learn(add_normalization(agent, env, config), source, builder.updates(config))
    return dataclasses.replace(
        algorithm,
        num_shards=num_shards(config),
        measure=lambda state, key: builder.measure(
            env, Static(config), algorithm.policy(state), key
        ),
    )


def source_group(config: Any) -> Any:
    """Return the group of the settings that makes a source."""
    own = (f for f in dataclasses.fields(config) if not f.metadata.get("hyper"))
    groups = (getattr(config, field.name) for field in own)
    return next(group for group in groups if hasattr(group, "source"))


def num_shards(config: Any) -> int:
    """Return the number of logical shards of that source."""
    return getattr(source_group(config), "num_shards", 1)
