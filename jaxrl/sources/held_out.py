"""Transitions of a dataset that are held out of learning, and how often each member of an ensemble
learns from the others."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl.core import random
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Source
from jaxrl.sources.ring import Ring

MOST = 8  # times that a member may learn from a transition; more have a probability of 1e-6


def held_out(source: Source, share: float, members: int) -> Source:
    """Hold a share of a dataset's transitions out: the mask of batches is False there.

    Batches also get the extra `bootstrap` [n, members]: how often a member's own sample of the
    dataset has the transition, drawn from a Poisson distribution with mean 1 (Oza and Russell,
    2001, "Online bagging and boosting"). Both depend on the transition's row alone, so what is held
    out once always is.

    source: a `dataset` of single transitions.

    Raises `UserError` for a share outside (0, 1), and for any other source.
    """
    if not 0 < share < 1:
        raise UserError(f"The share that is held out must be between 0 and 1, got {share}.")

    def sample(state, fresh, key):
        batch = source.sample(state, fresh, key)
        if not isinstance(state, Ring) or batch.transitions.reward.ndim != 1:
            raise UserError(f"held_out needs a dataset of transitions, not '{source.name}'.")
        held, bootstrap = by_row(batch.index[0].reshape(-1), share, members)
        x = batch.transitions
        x = dataclasses.replace(x, extras={**x.extras, "bootstrap": bootstrap})
        return dataclasses.replace(batch, transitions=x, mask=~held)

    return dataclasses.replace(source, name=f"held_out({source.name})", sample=sample)


def by_row(row: Array, share: float, members: int) -> tuple[Array, Array]:
    """Return whether each of the rows [n] is held out, bool [n], and how often each member's sample
    has it, float32 [n, members]."""
    below = [sum(math.exp(-1) / math.factorial(i) for i in range(k + 1)) for k in range(MOST)]

    def one(row):
        drawn = jax.random.uniform(jax.random.fold_in(random.key(0), row), (1 + members,))
        times = (drawn[1:, None] > jnp.asarray(below)).sum(-1)
        return drawn[0] < share, times.astype(jnp.float32)

    return jax.vmap(one)(row)
