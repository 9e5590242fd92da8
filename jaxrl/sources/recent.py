"""The newest windows of a source as one batch, for agents that relearn from a whole history."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Source, Tree, struct
from jaxrl.sources.replay import SPLIT
from jaxrl.sources.rollouts import window


@struct
class Recent:
    """State of a source of the newest windows."""

    source: Tree
    transitions: Tree
    """The windows, the oldest first: [windows * T, B]."""
    mask: Array
    """False where nothing was collected and where the source's batch is padded: bool
    [windows * T, B]."""


def recent(source: Source, windows: int) -> Source:
    """Hand out the last `windows` windows [T, B] of `source` as one batch [windows * T, B].

    The oldest window comes first. The mask is that of the windows, and False in the first rows
    while there are fewer windows. Batches have no memory and no tail. The source hears the feedback
    about the newest window, which it handed out. Raises `UserError` for less than one window.
    """
    if windows < 1:
        raise UserError(f"windows must be at least 1, got {windows}.")

    def init(key, hyper, policy):
        state = source.init(key, hyper, policy)
        shapes = jax.eval_shape(functools.partial(window, source), state, policy, key)[
            1
        ].transitions
        room = lambda x: jnp.zeros((windows * x.shape[0], *x.shape[1:]), x.dtype)
        transitions = jax.tree.map(room, shapes)
        return Recent(state, transitions, jnp.zeros(transitions.reward.shape, bool))

    def collect(state, policy, key):
        inner, batch, metrics = window(source, state.source, policy, key)
        append = lambda old, new: jnp.concatenate([old[new.shape[0] :], new])
        mask = batch.mask
        mask = jnp.ones(batch.transitions.reward.shape, bool) if mask is None else mask
        new = jax.tree.map(append, (state.transitions, state.mask), (batch.transitions, mask))
        batch = dataclasses.replace(batch, transitions=new[0], mask=new[1])
        return Recent(inner, *new), batch, metrics

    def feedback(state, batch, feedback):
        steps = batch.transitions.reward.shape[0]
        newest = lambda x: x[-(steps // windows) :] if jnp.shape(x)[:1] == (steps,) else x
        whole = batch.transitions, batch.mask, batch.weight, dict(feedback)
        transitions, mask, weight, rest = jax.tree.map(newest, whole)
        batch = dataclasses.replace(batch, transitions=transitions, mask=mask, weight=weight)
        return dataclasses.replace(state, source=source.feedback(state.source, batch, rest))

    return dataclasses.replace(
        source,
        name=f"recent({source.name})",
        init=init,
        collect=collect,
        sample=lambda state, fresh, key: fresh,
        feedback=feedback,
        partition=Recent(source.partition, SPLIT, SPLIT),
    )
