"""Policies of few numbers in place of networks, for the losses of token policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp

from jaxrl.core.types import Array, TimeStep
from jaxrl.networks.heads import categorical


def net_of(logits: Array, hyper: Any) -> Any:
    """Return what losses read of a net whose policy has these logits [T, B, V] on a sample.

    hyper: hyperparameters.
    """
    policy = categorical(logits)
    blank = SimpleNamespace(initial=lambda number: ())
    return SimpleNamespace(
        hyper=hyper,
        actor_critic=lambda timestep, memory, method: (policy, jnp.zeros(logits.shape[:2])),
        network=lambda part: blank,
        policy=policy,
    )


def time_step(**tokens: Array) -> TimeStep:
    """Return time steps of texts, with channels [T, B] of their tokens and nothing else."""
    none = jnp.zeros_like(next(iter(tokens.values())), bool)
    return TimeStep(none, none * 0.0, none, none, none, tokens=tokens)
