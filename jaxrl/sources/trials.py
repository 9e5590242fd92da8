"""Batches that are played with hyperparameters chosen anew for each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.errors import UserError
from jaxrl.core.hyper import replace_hyper
from jaxrl.core.types import Array, Batch, Policy, Source, Tree, struct
from jaxrl.sources.rollouts import window


class Score(Protocol):
    """A function that rates a trial."""

    def __call__(self, batch: Batch, /) -> tuple[Array, dict[str, Array]]:
        """Return the score of a batch [], and further choices by name, [] each, that go with it,
        such as the threshold at which it has that score."""
        ...


@struct
class TrialState:
    """State of both sources."""

    source: Tree
    trial: Tree


def best_of_trials(
    source: Source, trial: Source, name: str, values: Sequence[float], score: Score
) -> Source:
    """Play each batch of `source` with the one of `values` of a hyperparameter whose trial scores
    best, the first of equal ones.

    trial: a source of small batches, one of which is played with each of the values before.
    name: the hyperparameter, of the agent that plays; what it learns with is unchanged.
    score: rates a batch of trials.

    What goes with the best score is in the extras of the batch, at each step. The metrics are those
    of `source`, the score and the value (`chosen_` and the last part of its name). Trials count as
    environment steps. Batches have no memory and no tail. Raises `UserError` without a value, and
    for sources on the host.
    """
    if not values:
        raise UserError(f"There must be a value of {name} to choose from.")
    if source.host_play or trial.host_play:
        raise UserError(f"'{source.name}' is played on the host, by the agent that learns from it.")
    env_steps = source.env_steps + len(values) * trial.env_steps

    def playing(policy: Policy, value: Array) -> Policy:
        return dataclasses.replace(policy, state=replace_hyper(policy.state, {name: value}))

    def init(key, hyper, policy):
        keys = jax.random.split(key)
        return TrialState(source.init(keys[0], hyper, policy), trial.init(keys[1], hyper, policy))

    def collect(state, policy, key):
        key, trial_key = jax.random.split(key)

        def attempt(inner, given):
            value, key = given
            inner, batch, _ = window(trial, inner, playing(policy, value), key)
            return inner, score(batch)

        candidates, keys = jnp.float32(values), jax.random.split(trial_key, len(values))
        inner, (scores, choices) = jax.lax.scan(attempt, state.trial, (candidates, keys))
        best = jnp.argmax(scores)
        outer, batch, metrics = window(source, state.source, playing(policy, candidates[best]), key)
        t = batch.transitions
        spread = {n: jnp.broadcast_to(x[best], t.reward.shape) for n, x in choices.items()}
        t = dataclasses.replace(t, extras={**t.extras, **spread})
        env_share = env_steps / source.env_steps
        batch = dataclasses.replace(batch, transitions=t, env_steps=batch.env_steps * env_share)
        chosen = {"score": scores[best], f"chosen_{name.split('.')[-1]}": candidates[best]}
        chosen |= {f"chosen_{n}": x[best] for n, x in choices.items()}
        metrics = {**metrics, **{n: m.mean(x) for n, x in chosen.items()}}
        return TrialState(outer, inner), batch, metrics

    return dataclasses.replace(
        source,
        name=f"best_of_trials({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=lambda state, batch, feedback: dataclasses.replace(
            state, source=source.feedback(state.source, batch, feedback)
        ),
        env_steps=env_steps,
        partition=TrialState(source.partition, trial.partition),
    )
