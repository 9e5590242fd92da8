"""Steps with those around them, of which some episodes are labeled with their actions."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Hyper, Key, Transition
from jaxrl.sources.played import Record, View, any_row, at_rows
from jaxrl.sources.segments import Windows


def surroundings(past: int = 0, future: int = 0, labels: str = "labeled") -> View:
    """Draw windows [past + 1 + future, n] around any step, all steps equally likely, and as many
    around steps whose actions are known.

    Where an episode has no such step its first or last one is repeated, and the mask is False.
    The extras are those that the record keeps, and `shown`: transitions like those of the batch,
    around steps drawn from those whose extra `labels` (bool [M]) is True.

    past, future: number of steps before and after.

    Raises `UserError` for numbers below 0, and, when it prepares a record, for one without the
    extra `labels`.
    """
    for name, value in {"past": past, "future": future}.items():
        if value < 0:
            raise UserError(f"{name} must be at least 0, got {value}.")

    def prepare(data: Record, hyper: Hyper) -> Windows:
        if labels not in data.transitions.extras:
            raise UserError(f"The record has no extra '{labels}', which tells what is labeled.")
        known = data.transitions.extras[labels]
        row = jnp.arange(len(data.end), dtype=jnp.int32)
        return Windows(jnp.cumsum(known, dtype=jnp.int32), row - data.time, data.end)

    def around(data: Record, row: Array) -> tuple[Transition, Array]:
        begin, end = row - at_rows(data.time, row), at_rows(data.end, row)
        wanted = row + jnp.arange(-past, future + 1)[:, None]
        rows = jnp.clip(wanted, begin, end)
        return data.at(rows), rows == wanted

    def take(
        data: Record, prepared: Windows, drawn: tuple[Array, Array]
    ) -> tuple[Transition, Array]:
        x, mask = around(data, drawn[0])
        shown, _ = around(data, drawn[1])
        return dataclasses.replace(x, extras={**x.extras, "shown": shown}), mask

    def draw(data: Record, prepared: Windows, key: Key, n: int) -> tuple[Array, Array]:
        any_key, known_key = jax.random.split(key)
        return any_row(data, any_key, n), prepared.draw(known_key, (n,))

    return View(f"surroundings of {past} and {future} steps", prepare, draw, take)
