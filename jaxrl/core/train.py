"""The training loop: one scan over one pure step, for every algorithm."""

from __future__ import annotations

import functools
import operator
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp

from jaxrl.core import metrics as m
from jaxrl.core.hyper import override
from jaxrl.core.types import Algorithm, Array, Hyper, Key, Tree, struct


@struct
class Run:
    """A training run at some moment: all that is needed to go on exactly."""

    state: Tree
    """The algorithm's state."""
    key: Key
    """The key of the run, which never changes: `init` draws from fold_in(key, 0), step t from
    fold_in(key, t + 1)."""
    step: Array
    """Steps so far: int32."""


def start(algorithm: Algorithm, key: Key, hyper: Hyper | None = None) -> Run:
    """Start a run. `hyper` overrides some of `algorithm.hyper`; vmap over it to sweep.

    Raises `UserError` for a hyperparameter that the algorithm does not have.
    """
    return _start(algorithm, key, override(algorithm.hyper, hyper))


@functools.partial(jax.jit, static_argnums=0)  # so that no two leaves share a buffer: see donation
def _start(algorithm: Algorithm, key: Key, hyper: Hyper) -> Run:
    state = algorithm.init(jax.random.fold_in(key, 0), hyper)
    return Run(state, key, jnp.int32(0))


@functools.partial(jax.jit, static_argnums=0)  # traced once for its shapes and for the scan
def advance(algorithm: Algorithm, run: Run) -> tuple[Run, dict[str, Any]]:
    """Take one step of the algorithm. Returns the run and the metrics of the step."""
    step = run.step + 1
    state, metrics = algorithm.step(run.state, jax.random.fold_in(run.key, step))
    return Run(state, run.key, step), metrics


def train(algorithm: Algorithm, run: Run, num_steps: SupportsIndex) -> tuple[Run, dict[str, Any]]:
    """Take `num_steps` steps in one scan, with their metrics folded into one row. That is
    `num_steps * algorithm.env_steps` environment steps.

    Compiled once for each algorithm, number of steps and shape of the run, also across calls from
    Python. `run` is not donated: it may be continued again.

    The function is pure: vmap it over runs, differentiate it (as far as its losses stop no
    gradients), or put it into a jitted function or another scan, where it adds no call of its own.
    """
    return _train(algorithm, run, operator.index(num_steps))


# Inlined where it is traced, so that a program that contains it is the same as without this jit.
@functools.partial(jax.jit, static_argnums=(0, 2), inline=True)
def _train(algorithm: Algorithm, run: Run, num_steps: int) -> tuple[Run, dict[str, Any]]:
    def body(carry, _):
        run, row = carry
        run, metrics = advance(algorithm, run)
        return (run, m.merge(row, metrics)), None

    (run, row), _ = jax.lax.scan(body, (run, empty_row(algorithm, run)), None, num_steps)
    return run, row


def empty_row(algorithm: Algorithm, run: Run) -> dict[str, Any]:
    """Return the metrics of no steps, which the first step of a row is merged with."""
    return m.empty(jax.eval_shape(lambda run: advance(algorithm, run)[1], run))
