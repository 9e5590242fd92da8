"""Transitions of a dataset with their outcomes: the next action and the return."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl import losses
from jaxrl.core.types import REPLICATED, Array, Source, Tree, struct


@struct
class Outcomes:
    """State of a dataset source, with the return of each row."""

    source: Tree
    returns: Array  # float32 [N], by the discount of this run


def add_outcomes(source: Source) -> Source:
    """Add outcomes to the extras of a dataset's transitions.

    These are `next_action`, the action of the next row (meaningless at an episode's end), and
    `return`, the discounted sum of rewards from here to the episode's end.
    """

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        x = state.transitions.value
        nothing = jnp.zeros(x.reward.shape[1])
        returns = losses.discounted_returns(x.reward, x.done, nothing, hyper["discount"])
        return Outcomes(state, returns[:, 0])

    def collect(state, policy, key):
        inner, fresh, metrics = source.collect(state.source, policy, key)
        return Outcomes(inner, state.returns), fresh, metrics

    def sample(state, fresh, key):
        batch = source.sample(state.source, fresh, key)
        row = batch.index[0].reshape(-1)
        after = (row + 1) % len(state.returns)
        action = jax.tree.map(lambda x: x[after, 0], state.source.transitions.value.action)
        came = {"next_action": action, "return": state.returns[row]}
        extras = batch.transitions.extras | came
        return dataclasses.replace(
            batch, transitions=dataclasses.replace(batch.transitions, extras=extras)
        )

    return dataclasses.replace(
        source,
        init=init,
        collect=collect,
        sample=sample,
        feedback=lambda state, batch, feedback: dataclasses.replace(
            state, source=source.feedback(state.source, batch, feedback)
        ),
        partition=Outcomes(source.partition, REPLICATED),
    )
