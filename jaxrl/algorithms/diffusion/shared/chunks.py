"""Plans of several steps: windows of data within one episode, and plans that are followed for some
steps and then made anew."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.core import trees
from jaxrl.core.errors import UserError
from jaxrl.core.types import Array, Key, TimeStep, Transition, Tree, struct


def rows_within_episodes(x: Transition, past: int) -> Array:
    """Return rows [T, B] of a window [T, B] that belong to the episode of its row number `past`.

    Before the episode's first step its first row stands, and after its last step its last row: what
    lies beyond an episode is repeated from its edge.
    """
    length = x.reward.shape[0]
    row = jnp.arange(length)[:, None]
    begun = jnp.where(x.timestep.first & (row <= past), row, 0).max(0)
    ended = jnp.where(x.done & (row >= past), row, length - 1).min(0)
    return jnp.clip(row, begun, ended)


def take_rows(x: Array, rows: Array) -> Array:
    """Return the rows [T, B] of an array [T, B, D]."""
    return jnp.take_along_axis(x, rows[..., None], 0)


@struct
class Plan:
    """Memory of a policy that follows plans."""

    steps: Array
    """Planned actions [B, H, D], in half-widths."""
    at: Array
    """Number of the next step of the plan, int32 [B]."""
    past: Array
    """Features of earlier observations [B, P, F], the oldest first."""
    beside: Tree = ()
    """Description of each plan by its maker, leaves [B, ...]."""


def no_plan(n: int, horizon: int, size: int, past: int, features: int) -> Plan:
    """Return the memory [n] before an episode's first step; a plan is made at that step."""
    empty = jnp.zeros((n, horizon, size))
    return Plan(empty, jnp.zeros(n, jnp.int32), jnp.zeros((n, past, features)))


class MakePlan(Protocol):
    """A function that makes plans."""

    def __call__(self, timestep: TimeStep, past: Array, key: Key, /) -> Array:
        """Return plans [B, H, D] from time steps [B] and features of earlier ones [B, P, F]."""
        ...


def follow_plan(
    make_plan: MakePlan,
    timestep: TimeStep,
    plan: Plan,
    key: Key,
    *,
    features: Array,
    execute: int,
) -> tuple[Array, Plan]:
    """Return the next action [B, D] of each plan, and the memory after it.

    Plans are made anew at the first step of an episode and after `execute` steps.

    features: of the time steps, [B, F].
    """

    def make(timestep: TimeStep, past: Array, key: Key) -> tuple[Array, Tree]:
        return make_plan(timestep, past, key), ()

    return follow_described_plan(make, timestep, plan, key, features=features, execute=execute)


class MakeDescribedPlan(Protocol):
    """A function that makes plans, and says something of them."""

    def __call__(self, timestep: TimeStep, past: Array, key: Key, /) -> tuple[Array, Tree]:
        """Return plans [B, H, D], and leaves [B, ...] that describe each."""
        ...


def follow_described_plan(
    make_plan: MakeDescribedPlan,
    timestep: TimeStep,
    plan: Plan,
    key: Key,
    *,
    features: Array,
    execute: int,
) -> tuple[Array, Plan]:
    """Return what `follow_plan` returns; `Plan.beside` of a new plan is what its maker says of it.

    A plan was made at this step where the memory that is returned has `Plan.at` 1.
    """
    repeated = jnp.broadcast_to(features[:, None], plan.past.shape)
    past = trees.where(timestep.first, repeated, plan.past)
    due = timestep.first | (plan.at >= execute)

    def renew(old: Tree) -> Tree:
        return trees.where(due, make_plan(timestep, past, key), old)

    old = (plan.steps, plan.beside)
    steps, beside = jax.lax.cond(due.any(), renew, lambda old: old, old)
    at = jnp.where(due, 0, plan.at)
    action = jnp.take_along_axis(steps, at[:, None, None], 1)[:, 0]
    past = jnp.concatenate([past, features[:, None]], 1)[:, 1:]
    return action, Plan(steps, at + 1, past, beside)


def flat_past(past: Array) -> Array:
    """Return features of earlier observations [B, P, F] as one vector [B, P * F]."""
    return past.reshape(past.shape[0], -1)


def check_length(config: Any) -> None:
    """Raise `UserError` unless plans are as long as they are followed."""
    if config.execute > config.horizon:
        raise UserError(
            f"execute is {config.execute}; a plan of {config.horizon} actions (horizon) must be "
            "at least as long."
        )


def check_plans(config: Any, name: str) -> None:
    """Raise `UserError` unless plans are as long as they are followed, and there is a dataset
    alone."""
    check_length(config)
    if config.data.num_envs or not config.data.name:
        raise UserError(f"{name} learns from a dataset alone: name one, and set num_envs to 0.")
