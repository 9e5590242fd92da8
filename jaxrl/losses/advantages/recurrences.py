"""Recurrence behind every multi-step estimator: x[t] = increment[t] + decay[t] * x[t + 1]."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = ["reverse_recurrence"]


def reverse_recurrence(
    step: Callable[..., tuple[Array, Array]],
    final: Array | float,
    cut: Array,
    *inputs: Array | float,
    parallel: bool | None = None,
) -> Array:
    """Solve a linear recurrence from the last step to the first, in a loop or a parallel scan.

    x[t] = increment[t] + decay[t] * x[t + 1], the last term 0 where cut[t]; x[T] = final;
    decay, increment = step(*inputs at t)

    Args:
      step: elementwise; receives each input at one step, or at all steps at once.
      final: broadcasts to [...], the value after the last step.
      cut: [T, ...], true where nothing flows back from later steps, not even NaN.
      inputs: [T, ...], or with fewer axes if they are the same at each step.
      parallel: True: an associative scan of logarithmic depth; False: a loop over the steps, with
        `step` inside it. None: on a CPU the loop, which compiles to one loop at memory speed (the
        associative scan was slower at every length tried); elsewhere the scan, since each step of
        a loop would be a kernel of its own.
    Returns: [T, ...].
    Gradients: none are stopped.
    Source: Blelloch, 1990, "Prefix sums and their applications", section 1.4.1.
    Example: `losses.reverse_recurrence(lambda r, d: (d, r), final, cut, reward, decay)`
    """
    final = jnp.broadcast_to(final, cut.shape[1:]).astype(jnp.result_type(final, *inputs))
    if parallel is None:
        parallel = jax.default_backend() != "cpu"
    if parallel and len(cut) > 1:
        decay, increment = jnp.broadcast_arrays(*step(*inputs))
        decay = jnp.where(cut, 0, decay)
        increment = increment.at[-1].add(jnp.where(cut[-1], 0, decay[-1] * final))
        combined = jax.lax.associative_scan(_combine, (decay, increment), reverse=True)
        return combined[1]

    timed = [jnp.ndim(x) == cut.ndim for x in inputs]

    def backward(later, now):
        cut, now = now[0], iter(now[1:])
        decay, increment = step(
            *(next(now) if t else x for t, x in zip(timed, inputs, strict=True))
        )
        total = increment + decay * jnp.where(cut, 0, later)
        return total, total

    slices = (cut, *(x for t, x in zip(timed, inputs, strict=True) if t))
    return jax.lax.scan(backward, final, slices, reverse=True)[1]


def _combine(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    # A decay of 0 may be a cut, but 0 * NaN would pass it.
    flows = (earlier[0] != 0) | jnp.isfinite(later[1])
    decay = earlier[0] * jnp.where(flows, later[0], 0)
    return decay, earlier[1] + earlier[0] * jnp.where(flows, later[1], 0)
