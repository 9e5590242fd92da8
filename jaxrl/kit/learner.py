"""From a recipe to an agent, and the one state that they all have."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import Values
from jaxrl.core.types import Agent, Array, Batch, Info, Key, TimeStep, Tree, struct
from jaxrl.kit.descent import Descent, Trained
from jaxrl.kit.net import Kit, Net
from jaxrl.kit.optimization import norm
from jaxrl.kit.recipe import Part, Recipe


@struct
class State:
    parts: dict[str, Trained]
    extra: Tree
    updates: Array  # int32
    env_steps: Array  # float32: environment steps at the last update; drives schedules
    hyper: dict[str, Any]


def acting_state(params: Mapping[str, Tree]) -> State:
    """What is enough to act by `params`, by the parts' names (as `wrapping.params_of` gives them):
    a state without what trains them, for agents that act by their parameters alone."""
    parts = {name: Trained(value, ()) for name, value in params.items()}
    return State(parts, (), jnp.int32(0), jnp.float32(0), {})


def learner(name: str, config: Any, recipe: Recipe) -> Agent:
    """The agent of `recipe`, whose settings are `config`.

    Its hyperparameters are all of `config`'s but for those in groups of a source's. Reports the
    value of each loss, the norm of each gradient (`critic_grad_norm`) and of each part's
    parameters (`critic_norm`), so that nothing infinite stays unseen.
    """
    own = {n: value for n, value in hypers(config).items() if not _of_a_source(config, n)}
    for part in recipe.parts:
        if hasattr(Net, part) or part in Net.__dataclass_fields__:
            raise UserError(f"A part cannot be called '{part}', which means something else.")
    descents = {
        n: Descent.of(settings.lookup(config, p.optimizer), p.optimizer, p.transform, p.members)
        for n, p in recipe.parts.items()
        if p.optimizer
    }
    for loss_name, loss in recipe.losses.items():
        for part in loss.parts:
            if part not in descents:
                raise unknown(f"part of the loss '{loss_name}'", part, descents)
    targets = {n: settings.lookup(config, p.target) for n, p in recipe.parts.items() if p.target}
    kit = Kit(recipe, descents, targets)

    def init(key, hyper):
        def begin(n: str, part: Part) -> Trained:
            # Named, so that one part more changes no other's weights.
            own_key = jax.random.fold_in(key, zlib.crc32(n.encode()))
            params = part.init(own_key)
            if n in descents:
                return descents[n].begin(params, n in targets)
            return Trained(params, (), jax.tree.map(jnp.copy, params) if n in targets else None)

        parts = {n: begin(n, part) for n, part in recipe.parts.items()}
        values = {n: jnp.asarray(hyper[n]) for n in own}
        return State(
            parts, jax.tree.map(jnp.asarray, recipe.extra), jnp.int32(0), jnp.float32(0), values
        )

    def net_of(state: State, key: Key) -> Net:
        values = Values(state.hyper)
        return Net(
            kit, dict(state.parts), values, state.extra, state.updates, state.env_steps, lambda: key
        )

    def act(state: State, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
        return recipe.act(net_of(state, key), timestep, memory, key, greedy)

    def update(state: State, batch: Batch, key: Key):
        net = recipe.update(net_of(state, key), batch)
        # After every select, so that they are those of what is kept.
        norms = {f"{n}_norm": norm(p.params) for n, p in net.parts.items()}
        net = net.report(**norms)
        state = State(net.parts, net.extra, state.updates + 1, batch.env_steps, state.hyper)
        return state, Info(net.metrics, net.feedback)

    def hand_over(state: State) -> Tree:
        """Another run counts from 0."""
        begin = {n: jnp.zeros_like(getattr(state, n)) for n in ("updates", "env_steps")}
        return recipe.hand_over(dataclasses.replace(state, **begin))

    return Agent(
        name,
        init,
        act,
        update,
        recipe.memory,
        own,
        recipe.needs,
        config,
        hand_over,
        recipe.adopt,
        recipe.goes_on_from,
        recipe.scores,
    )


def _of_a_source(config: Any, name: str) -> bool:
    """Whether a hyperparameter is in a group of a source's settings."""
    group = name.rpartition(".")[0]
    return bool(group) and getattr(settings.lookup(config, group), "of_a_source", False)
