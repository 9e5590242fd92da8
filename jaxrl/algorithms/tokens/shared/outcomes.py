"""Outcomes of answers that environments report at their ends, and rewards placed there."""

from __future__ import annotations

import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.examples import example_timestep
from jaxrl.core.types import Array, Batch, Environment


def metric_at_end(batch: Batch, name: str) -> Array:
    """Return the metric `name` of whole episodes [T, B] at their ends, [B]; 0 without an end."""
    return _at_end(batch, batch.transitions.next_timestep.metrics, name)


def component_at_end(batch: Batch, name: str) -> Array:
    """Return the same of a component of the reward."""
    return _at_end(batch, batch.transitions.next_timestep.reward_components, name)


def _at_end(batch: Batch, channel: dict[str, Array] | None, name: str) -> Array:
    assert batch.mask is not None and channel is not None
    return jnp.where(batch.mask & batch.transitions.done, channel[name], 0).sum(0)


def place_at_last(value: Array, mask: Array) -> Array:
    """Return [T, B] with `value` [B] at the last step that `mask` [T, B] marks, and 0 elsewhere."""
    from_here = jnp.cumsum(mask[::-1], 0)[::-1]
    return jnp.where(mask & (from_here == 1), value, 0.0)


def check_metrics(env: Environment, name: str, *metrics: str) -> None:
    """Raise `UserError` if `env` does not report each of the `metrics` that algorithm `name`
    reads."""
    reported = example_timestep(env).metrics or {}
    for metric in metrics:
        if metric not in reported:
            raise UserError(
                f"{name} reads TimeStep.metrics['{metric}'], which '{env.name}' does not report."
            )
