"""Points at which learning dynamics part: finite-time Lyapunov exponents of any update, and starts
beside a point from which small differences grow most (Lorraine et al., 2022, "Lyapunov exponents
for diversity in differentiable games", arXiv:2112.14570)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

Update = Callable[[Array], Array]  # parameters [P] -> parameters after one update


class Stretch(NamedTuple):
    """Factors by which a number of updates stretches small differences of their start."""

    exponents: Array
    """Logarithms of the factors, for each update: [n], the largest first."""
    directions: Array
    """Directions of the differences that are stretched so, of length 1: [n, P]."""


def iterate(update: Update, start: Array, steps: int) -> Array:
    """Return the parameters [P] after so many updates."""
    return jax.lax.fori_loop(0, steps, lambda _, x: update(x), start)


def measure_stretch(update: Update, start: Array, steps: int, number: int = 1) -> Stretch:
    """Return the `number` largest exponents of `steps` updates from `start` [P], and their
    directions.

    They follow from the singular values of the Jacobian of all updates together, which is computed
    whole: for tens of parameters.
    """

    def run(x):
        return jax.lax.scan(lambda x, _: (update(x), None), x, None, steps)[0]

    _, stretched, directions = jnp.linalg.svd(jax.jacfwd(run)(start))
    return Stretch(jnp.log(stretched[:number]) / steps, directions[:number])


def seek_bifurcation(
    update: Update, start: Array, steps: int, searches: int, rate: float, number: int = 1
) -> Array:
    """Return a start [P] near the given one whose smallest of the `number` largest exponents is
    larger, after so many steps of gradient ascent, each of the length `rate`."""

    def exponent(x):
        return measure_stretch(update, x, steps, number).exponents[-1]

    def climb(_, x):
        gradient = jax.grad(exponent)(x)
        return x + rate * gradient / jnp.maximum(jnp.linalg.norm(gradient), 1e-12)

    return jax.lax.fori_loop(0, searches, climb, start)


def branch(update: Update, start: Array, steps: int, size: float, number: int = 1) -> Array:
    """Return starts [2 * number, P] on both sides of a start [P], `size` away, in the directions
    that so many updates stretch most."""
    offsets = size * measure_stretch(update, start, steps, number).directions
    return jnp.concatenate([start + offsets, start - offsets])
