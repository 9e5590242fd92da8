"""Agents made of a recipe."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core import settings
from jaxrl.core.errors import UserError, unknown
from jaxrl.core.hyper import hypers
from jaxrl.core.settings import Values
from jaxrl.core.types import Agent, Batch, Info, Key, ReadingAct, TimeStep, Tree
from jaxrl.kit.descent import descent_of
from jaxrl.kit.net import RESERVED, Blueprint, Net
from jaxrl.kit.optimization import norm
from jaxrl.kit.parts import copy, trainable
from jaxrl.kit.recipe import Recipe
from jaxrl.kit.state import State, Trained


def learner(name: str, config: Any, recipe: Recipe) -> Agent:
    """Return the agent of `recipe`, whose settings are `config`.

    Its hyperparameters are all of `config`'s except those in groups of a source's. Logs the value
    of each loss, the norm of each gradient (`critic_grad_norm`) and of each part's parameters
    (`critic_norm`), so that nothing infinite stays unseen.

    Raises `UserError` for a reserved name of a part, and for a loss of parts that do not exist or
    have no optimizer.
    """
    own = {n: value for n, value in hypers(config).items() if not _of_a_source(config, n)}
    for part in recipe.parts:
        if part in RESERVED or part.startswith("_"):
            raise UserError(f"'{part}' is reserved (an attribute of Net); rename this part.")
    descents = {n: d for n, p in recipe.parts.items() if (d := descent_of(n, p)) is not None}
    losses: dict[str, Any] = {}
    for loss in recipe.losses:
        if losses.setdefault(loss.name, loss) is not loss:
            raise UserError(f"Two losses of '{name}' are called '{loss.name}'; rename one.")
        for part in loss.parts:
            if part not in descents:
                raise unknown(f"part of the loss '{loss.name}'", part, descents)
    for n, part in recipe.parts.items():
        first = recipe.parts.get(part.begins_as)
        if part.begins_as and (first is None or first.begins_as):
            known = [name for name, p in recipe.parts.items() if not p.begins_as]
            raise unknown(f"part that '{n}' begins as", part.begins_as, known)
    blueprint = Blueprint(recipe.parts, losses, descents, recipe.num_shards)
    update_net = recipe.update
    assert update_net is not None

    def init(key, hyper):
        def begin(n: str, params: Tree) -> Trained:
            own = trainable(params)
            target = None if recipe.parts[n].target is None else copy(own)
            return Trained(params, descents[n].init(own) if n in descents else (), target)

        parts: dict[str, Trained] = {}
        for n, part in recipe.parts.items():
            if not part.begins_as:
                # Named, so that one part more changes no other's weights.
                own_key = jax.random.fold_in(key, zlib.crc32(n.encode()))
                parts[n] = begin(n, part.init(own_key))
        for n, part in recipe.parts.items():
            if part.begins_as:
                parts[n] = begin(n, copy(parts[part.begins_as].params))
        values = {n: jnp.asarray(hyper[n]) for n in own}
        extra = jax.tree.map(jnp.asarray, recipe.extra)
        return State(parts, extra, jnp.int32(0), jnp.float32(0), values)

    def net_of(state: State, key: Key) -> Net:
        scale = {} if state.normalizer is None else {"normalize": state.normalizer}
        return Net(
            parts=dict(state.parts),
            hyper=Values(state.hyper),
            extra=state.extra,
            updates=state.updates,
            env_steps=state.env_steps,
            _blueprint=blueprint,
            _seed=lambda: key,
            **scale,
        )

    def act(state: State, timestep: TimeStep, memory: Tree, key: Key, greedy: bool):
        return recipe.act(net_of(state, key), timestep, memory, key, greedy)

    def read(state: State, timestep: TimeStep, memory: Tree, action: Tree):
        net = net_of(state, jax.random.key(0))  # nothing is drawn
        return recipe.act.read(net, timestep, memory, action)  # type: ignore[attr-defined]

    def update(state: State, batch: Batch, key: Key):
        net = update_net(net_of(state, key), batch)
        # After every select, so that they are those of what is kept.
        norms = {f"{n}_norm": norm(trainable(p.params)) for n, p in net.parts.items()}
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
        ReadingAct(act, read) if isinstance(recipe.act, ReadingAct) else act,
        update,
        recipe.memory,
        own,
        recipe.needs,
        config,
        hand_over,
        recipe.adopt,
        recipe.scores,
        recipe.in_evaluation,
    )


def _of_a_source(config: Any, name: str) -> bool:
    """Return true if a hyperparameter is in a group of a source's settings."""
    group = name.rpartition(".")[0]
    return bool(group) and getattr(settings.lookup(config, group), "of_a_source", False)
