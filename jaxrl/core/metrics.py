"""Metrics of fixed size that are folded inside the scan: over time, seeds and devices.

Each kind has an identity (`empty`) and an associative `merge`. So a row of the log is accumulated
step by step, half a row can be saved, and memory does not grow with training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array, struct

NEVER = np.int32(np.iinfo(np.int32).max)


@struct
class Mean:
    """A weighted mean, as its two sums."""

    total: Array
    weight: Array

    def merge(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)

    def empty(self) -> Mean:
        return Mean(jnp.zeros_like(self.total), jnp.zeros_like(self.weight))

    def value(self) -> Array:
        """Return total / weight, NaN where nothing was counted."""
        xp: Any = np if isinstance(self.total, (np.ndarray, np.generic)) else jnp
        counted = self.weight > 0
        return xp.where(counted, self.total / xp.where(counted, self.weight, 1), xp.nan)


@struct
class Sum:
    """A sum, e.g. a number of episodes."""

    total: Array

    def merge(self, other: Sum) -> Sum:
        return Sum(self.total + other.total)

    def empty(self) -> Sum:
        return Sum(jnp.zeros_like(self.total))

    def value(self) -> Array:
        return self.total


@struct
class Minimum:
    """The smallest value so far; +inf for none."""

    least: Array

    def merge(self, other: Minimum) -> Minimum:
        return Minimum(jnp.minimum(self.least, other.least))

    def empty(self) -> Minimum:
        return Minimum(jnp.full_like(self.least, jnp.inf))

    def value(self) -> Array:
        return self.least


@struct
class Maximum:
    """The largest value so far; -inf for none."""

    most: Array

    def merge(self, other: Maximum) -> Maximum:
        return Maximum(jnp.maximum(self.most, other.most))

    def empty(self) -> Maximum:
        return Maximum(jnp.full_like(self.most, -jnp.inf))

    def value(self) -> Array:
        return self.most


@struct
class First:
    """The first step (int32) at which something happened; `NEVER` if it did not."""

    step: Array

    def merge(self, other: First) -> First:
        return First(jnp.minimum(self.step, other.step))

    def empty(self) -> First:
        return First(jnp.full_like(self.step, NEVER))

    def value(self) -> Array:
        """Return the step as a float, NaN if it did not happen."""
        xp: Any = np if isinstance(self.step, (np.ndarray, np.generic)) else jnp
        return xp.where(self.step == NEVER, xp.nan, xp.asarray(self.step, xp.float32))


Metric = Mean | Sum | Minimum | Maximum | First
Metrics = Mapping[str, Any]


def is_metric(x: Any) -> bool:
    """Return whether `x` is a metric of one of the kinds here."""
    return isinstance(x, Metric)


def mean(values: Array, where: Array | None = None, axis: Any = None) -> Mean:
    """Average `values` over `axis` (all axes by default), where `where` (bool) holds."""
    values = jnp.asarray(values, jnp.float32)
    if where is None:
        count = (
            values.size if axis is None else np.prod([values.shape[a] for a in np.atleast_1d(axis)])
        )
        return Mean(values.sum(axis), jnp.float32(count))
    where = where.reshape(where.shape + (1,) * (values.ndim - where.ndim))
    return Mean(
        jnp.where(where, values, 0).sum(axis),
        jnp.broadcast_to(where, values.shape).sum(axis, dtype=jnp.float32),
    )


def by_agent(name: str, values: Any, batch: int = 1) -> dict[str, Any]:
    """Name values for each agent: `values` with `batch` axes are called `name`; if an axis of N
    agents follows, the values of agent i are called `name_i`. (A metric is a scalar.)"""
    if values.ndim == batch:
        return {name: values}
    return {f"{name}_{i}": values[..., i] for i in range(values.shape[-1])}


def name_in(metrics: Mapping[str, Any], name: str) -> str:
    """Return the name of the metric `name` in `metrics`: `name`, or `name_0` of the first agent if
    there are several."""
    return name if name in metrics or f"{name}_0" not in metrics else f"{name}_0"


def agent_suffix(name: str, plain: str) -> str:
    """Return the agent of a metric in words, such as ` of agent 0`: `by_agent` was given the name
    `plain` and returned `name`. Empty if there is one agent."""
    return name.removeprefix(plain).replace("_", " of agent ")


def empty(metrics: Metrics) -> dict[str, Any]:
    """Return the identity of `merge` for such metrics; leaves may be ShapeDtypeStructs."""
    return {name: metric.empty() for name, metric in metrics.items()}


def merge(a: Metrics, b: Metrics) -> dict[str, Any]:
    """Merge two rows of metrics with the same names, name by name."""
    return {name: a[name].merge(b[name]) for name in a}


def reduce(metrics: Metrics, axis: int = 0) -> dict[str, Any]:
    """Fold one axis of all metrics, such as the time axis that `jax.lax.scan` stacked."""

    def fold(metric):
        how = {Minimum: jnp.min, Maximum: jnp.max, First: jnp.min}.get(type(metric), jnp.sum)
        return jax.tree.map(lambda x: how(x, axis=axis), metric)

    return {name: fold(metric) for name, metric in metrics.items()}


def values(metrics: Metrics) -> dict[str, Array]:
    """Return the number that each metric stands for."""
    return {name: metric.value() for name, metric in metrics.items()}
