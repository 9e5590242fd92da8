"""Preference models: how they read and compare answers, and how policies learn from them.

A preference model is the part `preference` of an agent: a network of a policy's kind, whose value
after an answer's last token is a vector, the answer's embedding. Which of two answers is preferred
is a function of both embeddings, `losses.general_preference`, so preferences may go round, and the
probabilities of the two orders add up to 1. The algorithm `preference_model` trains it on labeled
pairs. `judged_by` puts it in the place of the environment's judge for any recipe that compares
answers in its update; there the model is frozen:

    @group
    class Config(egpo.Config):
        preference: PreferenceModel = PreferenceModel()

    builder = on_preferences("egpo_on_preferences", egpo.egpo, Config)
    both = stages(preference_model(env, first), steps, builder(env, second))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.algorithms.preferences.shared import reward_models
from jaxrl.algorithms.preferences.shared.measures import (
    measure_proxy,
    proxy_scores,
    reference_log_probs,
)
from jaxrl.algorithms.preferences.shared.pairs import begin_as
from jaxrl.algorithms.preferences.shared.reward_models import Reading, reading_of
from jaxrl.algorithms.tokens.shared.answers import blank_memory
from jaxrl.core.examples import example_timestep
from jaxrl.core.judges import win_probabilities
from jaxrl.core.types import Array, Batch, Environment, Key, Policy, Source, TimeStep
from jaxrl.exact.answers import Answers
from jaxrl.kit import AlgorithmBuilder, Net, Part, Recipe, group, static
from jaxrl.kit.state import State, Trained
from jaxrl.networks.actor_critic import ActorCritic

PART = "preference"


@group
class PreferenceModel:
    """Preference model of two answers."""

    planes: int = static(4, low=1, high=100)
    """Number of planes in which answers are embedded; in each of them preferences can go round once
    more. One plane can express any reward, but not a reward and a cycle."""


def network_of(env: Environment, config: Any) -> ActorCritic:
    """Return the network of a preference model, that of a policy whose value is an embedding.

    Raises `UserError` for settings that want a language model instead.
    """
    return reward_models.network_of(env, config, 2 * config.preference.planes)


def embeddings_of(value: Array, reading: Reading, mask: Array) -> Array:
    """Return the embeddings [B, D] of whole episodes, those after their last tokens.

    value: [T + 1, B, D], of every time step. mask: [T, B], which steps belong to the episodes.
    """
    ended = mask & reading.after.done
    return jnp.where(ended[..., None], value[1:], 0).sum(0)


def embed(net: Net, reading: Reading, mask: Array) -> Array:
    """Return the embeddings [B, D] of whole episodes by a net's preference model."""
    memory = blank_memory(net, reading.text)
    return embeddings_of(net.preference(reading.text, memory, method="unroll")[1], reading, mask)


def with_embeddings(net: Net, batch: Batch) -> Batch:
    """Return whole episodes that say their embeddings to a judge, `losses.general_preference`."""
    t, mask = batch.transitions, batch.mask
    assert mask is not None  # `Recipe.needs`
    embedding = embed(net, reading_of(batch), mask)
    ended = jnp.where((mask & t.done)[..., None], embedding, 0)

    def say(timestep: TimeStep, judged: Array) -> TimeStep:
        privileged = {**(timestep.privileged or {}), "judged": judged}
        return dataclasses.replace(timestep, privileged=privileged)

    before, after = say(t.timestep, jnp.zeros_like(ended)), say(t.next_timestep, ended)
    t = dataclasses.replace(t, timestep=before, next_timestep=after)
    return dataclasses.replace(batch, transitions=t)


def compare_answers(
    env: Environment, config: Any, parts: dict[str, Trained], found: Answers
) -> Array:
    """Return the probability [P, A, A] that a preference model prefers answer i to answer j.

    config: settings with the groups `torso`, `memory` and `preference`. parts: of an agent's state.
    """
    network, t = network_of(env, config), found.transitions
    reading = Reading(jax.tree.map(lambda x: x[:1], t.timestep), t.next_timestep)
    memory = network.initial(t.action.shape[1])
    value: Any = network.apply(parts[PART].params, reading.text, memory, method="unroll")[1]
    embedding = embeddings_of(value, reading, found.within)
    return win_probabilities(losses.general_preference, embedding, found.reward.shape[1])


def frozen_part(env: Environment, config: Any) -> Part:
    """Return the part of a preference model that another run has trained."""
    network = network_of(env, config)
    return Part(network, (example_timestep(env), network.initial(1)))


def begin_with_model(state: State, other: Any) -> Any:
    """Return a state that takes over another agent's preference model, in which every other part
    begins as the policy of that agent: an `adopt`."""
    if not isinstance(other, State) or PART not in other.parts:
        return other  # which will not fit
    rest = {name: part for name, part in state.parts.items() if name != PART}
    begun: State = begin_as("actor_critic")(dataclasses.replace(state, parts=rest), other)
    judge = dataclasses.replace(state.parts[PART], params=other.parts[PART].params)
    return dataclasses.replace(begun, parts=begun.parts | {PART: judge})


def judged_by(recipe_of: Callable[[Environment], Recipe], env: Environment, config: Any) -> Recipe:
    """Let a recipe of token policies compare answers by a frozen preference model.

    recipe_of: environment -> a recipe that compares answers in its update, by the environment's
        judge. config: settings with the groups `torso`, `memory` and `preference`.

    The model is the part `preference`, taken over from `preference_model` in a warm start, with the
    policy that wrote its pairs: policy and reference begin as that one.
    """
    plain = recipe_of(dataclasses.replace(env, judge=losses.general_preference))

    def update(net: Net, batch: Batch) -> Net:
        return plain.update(net, with_embeddings(net, batch))

    scores = {**plain.scores, **proxy_scores(env)}
    parts = {**plain.parts, PART: frozen_part(env, config)}
    return dataclasses.replace(
        plain, parts=parts, update=update, adopt=begin_with_model, scores=scores
    )


def measure_judged(env: Environment, config: Any, policy: Policy, key: Key) -> dict[str, Array]:
    """Return `measures.measure_proxy` of a policy that learns from a preference model: its proxy is
    how probably the model prefers an answer to one of the reference's."""

    def proxy(found: Answers) -> Array:
        preference = compare_answers(env, config, policy.state.parts, found)
        reference = jnp.exp(reference_log_probs(env, config, policy))
        return (preference * reference[:, None]).sum(-1)

    return measure_proxy(env, config, policy, proxy)


def on_preferences(
    name: str, builder: AlgorithmBuilder, Config: type, **changes: Any
) -> AlgorithmBuilder:
    """Return the builder `name`: `builder`, which learns from a preference model.

    builder: of token policies that compare their answers in an update, such as `egpo`; one whose
        source compares them, such as `inpo`, raises `UserError` when it is built.
    Config: its settings with a group `preference`, a `PreferenceModel`.
    changes: as in `AlgorithmBuilder.variant`.
    """
    plain = changes.pop("recipe", builder.recipe)

    def recipe(env: Environment, config: Any, **options: Any) -> Recipe:
        return judged_by(lambda env: plain(env, config, **options), env, config)

    def source(env: Environment, config: Any) -> Source:
        """Return the source, which would compare answers by the environment's judge, not by the
        model: without a judge it raises an error."""
        return builder.source(dataclasses.replace(env, judge=None), config)

    changes = {
        "source": source,
        "measure": measure_judged,
        "goes_on_from": "preference_model",
        **changes,
    }

    return builder.variant(name, Config=Config, recipe=recipe, **changes)
