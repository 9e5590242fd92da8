"""Generalized Ridge Rider: Lyapunov exponents of any update, and branches at its bifurcations.

An optimizer's path is the path of a dynamical system, x_{t+1} = update(x_t). Where small
differences of the start grow most lies the border between basins of attraction, and branches on
both sides of it end at different solutions.

The exponents are those of finite time: with A the Jacobian of k updates together, log(s_i) / k of
its singular values s_i, of which the first is the largest growth of any direction, max_d log |A d|
/ k. A is never formed: subspace iteration on A'A multiplies by the Jacobians of single updates,
forward (`jax.jvp`) and backward (`jax.vjp`), and orthonormalizes after each. The gradient by the
start holds the directions still, which is exact at singular directions (the derivative of s_i is
u_i' dA v_i).

Source: Lorraine et al., 2022, "Lyapunov exponents for diversity in differentiable games"
(arXiv:2112.14570), which names the method and its truncated exponents. Its equations could not be
read. Public code that extends it (three players) sums log |J_t' d|^2 over updates, with directions
d that are either carried along or tuned at every update; the first, at the best direction, is
twice the exponent here. That gradient, and the one of the sum of exponents, are derived here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.core.errors import UserError, unknown
from jaxrl.core.types import Array, Key, Tree

Update = Callable[[Tree], Tree]  # parameters -> parameters after one update
Step = Callable[[Array], Array]  # the same of raveled parameters, [P] -> [P]

_TINY = 1e-30
_SUMMARIES: dict[str, Callable[[Array], Array]] = {"least": lambda x: x[-1], "sum": jnp.sum}


class Stretch(NamedTuple):
    """Factors by which a number of updates stretches small differences of their start."""

    exponents: Array
    """Logarithms of the factors, for each update: [n], the largest first."""
    directions: Array
    """Directions of the differences that are stretched so, orthonormal: [n, P]; parameters are
    raveled (`jax.flatten_util.ravel_pytree`)."""


class Search(NamedTuple):
    """A start at which small differences grow more than around it."""

    start: Tree
    """Parameters, like the given ones."""
    stretch: Stretch
    """Exponents and directions there."""
    exponents: Array
    """Exponents along the search, [searches, n]."""


class Branches(NamedTuple):
    """Solutions that branches at a bifurcation end at, ranked."""

    search: Search
    """The bifurcation."""
    ends: Tree
    """Parameters with a first axis [2 n], the best first."""
    scores: Array
    """Scores of the ends, [2 n], falling."""


def iterate(update: Update, start: Tree, steps: int) -> Tree:
    """Return the parameters after so many updates."""
    return jax.lax.fori_loop(0, steps, lambda _, x: update(x), start)


def measure_stretch(
    update: Update, start: Tree, steps: int, key: Key, number: int = 1, iterations: int = 20
) -> Stretch:
    """Return the `number` largest exponents of `steps` updates from `start`, and their directions.

    Each of the `iterations` of subspace iteration, from random directions, shrinks what is amiss
    by (s_{i+1} / s_i)^2.
    """
    flat, step = _flatten(update, start)
    directions = _random_directions(key, number, flat)
    directions = _refine(step, flat, steps, directions, iterations)
    return Stretch(_growth(step, flat, steps, directions)[0] / steps, directions)


def seek_bifurcation(
    update: Update,
    start: Tree,
    steps: int,
    key: Key,
    *,
    searches: int,
    rate: float,
    number: int = 1,
    objective: str = "least",
) -> Search:
    """Ascend the exponents of `steps` updates by the start.

    Each of the `searches` is a step along the gradient, of a length that falls linearly from `rate`
    to zero.

    objective: what is ascended of the `number` largest exponents: the "least" of them, so that all
        of their directions part, or their "sum".

    Raises `UserError` for another objective, without searches, and for more exponents than there
    are parameters.
    """
    if objective not in _SUMMARIES:
        raise unknown("objective", objective, _SUMMARIES)
    if searches < 1:
        raise UserError(f"searches is {searches}; it must be at least 1.")
    flat, step = _flatten(update, start)
    directions = _random_directions(key, number, flat)

    def climb(carry, search):
        x, directions = carry
        iterations = jnp.where((search == 0) | (search == searches), 10, 1)
        directions = _refine(step, x, steps, directions, iterations)

        def objective_of(x):
            exponents = _growth(step, x, steps, directions)[0] / steps
            return _SUMMARIES[objective](exponents), exponents

        gradient, exponents = jax.grad(objective_of, has_aux=True)(x)
        length = rate * (1 - search / searches) / jnp.maximum(jnp.linalg.norm(gradient), _TINY)
        return (x + length * gradient, directions), exponents  # the last step has no length

    (x, directions), path = jax.lax.scan(climb, (flat, directions), jnp.arange(searches + 1))
    return Search(ravel_pytree(start)[1](x), Stretch(path[-1], directions), path[:-1])


def branch(start: Tree, directions: Array, size: float) -> Tree:
    """Return starts on both sides of `start`, `size` away along each of the directions [n, P].

    They have a first axis [2 n]: all of one side, then all of the other.
    """
    flat, unravel = ravel_pytree(start)
    offsets = size * directions
    return jax.vmap(unravel)(jnp.concatenate([flat + offsets, flat - offsets]))


def generalized_ridge_rider(
    update: Update,
    start: Tree,
    key: Key,
    score: Callable[[Tree], Array],
    *,
    steps: int,
    searches: int,
    rate: float,
    size: float,
    updates: int,
    number: int = 1,
    objective: str = "least",
) -> Branches:
    """Find solutions on both sides of a bifurcation, and rank them.

    Climb to a start at which differences grow most (`seek_bifurcation`), branch on both sides along
    its directions, run the optimizer on each branch for `updates` updates, and rank the ends.

    score: of parameters, more is better.
    steps, searches, rate, number, objective: see `seek_bifurcation`.
    size: distance of the branches from the bifurcation.

    One level of branches: the paper's archive of bifurcations to branch at again is a repeated
    call from an end or a branch.
    """
    search = seek_bifurcation(
        update,
        start,
        steps,
        key,
        searches=searches,
        rate=rate,
        number=number,
        objective=objective,
    )
    starts = branch(search.start, search.stretch.directions, size)
    ends = jax.vmap(lambda x: iterate(update, x, updates))(starts)
    scores = jax.vmap(score)(ends)
    order = jnp.argsort(-scores)
    return Branches(search, jax.tree.map(lambda x: x[order], ends), scores[order])


def seek_saddle(update: Update, start: Tree, *, searches: int, rate: float) -> Tree:
    """Descend |update(x) - x|^2 to a fixed point of the update, stable or not.

    Each of the `searches` is a step of a length that falls linearly from `rate` to zero. Ridge
    Rider starts at a saddle; in a game that is a fixed point from which some direction is left.
    `measure_stretch` of one step there gives the ridges: in a game of one loss the eigenvectors of
    the Hessian with the most negative curvature.

    Source: Parker-Holder et al., 2020, "Ridge Rider: finding diverse solutions by following
      eigenvectors of the Hessian" (arXiv:2011.06505). Its authors descend the norm of the gradient
      and ascend the policy's entropy, so that states that are alike are treated alike; the entropy
      is left out here.
    """
    flat, step = _flatten(update, start)

    def descend(x, left):
        gradient = jax.grad(lambda x: jnp.sum((step(x) - x) ** 2))(x)
        length = jnp.maximum(jnp.linalg.norm(gradient), _TINY)
        return x - rate * left * gradient / length, None

    left = jnp.linspace(1, 0, searches, endpoint=False, dtype=flat.dtype)
    return ravel_pytree(start)[1](jax.lax.scan(descend, flat, left)[0])


def _flatten(update: Update, start: Tree) -> tuple[Array, Step]:
    """Return raveled parameters [P] and the update of such."""
    flat, unravel = ravel_pytree(start)
    return flat, lambda x: ravel_pytree(update(unravel(x)))[0]


def _random_directions(key: Key, number: int, flat: Array) -> Array:
    if not 1 <= number <= flat.size:
        raise UserError(
            f"number is {number}; {flat.size} parameters have 1 to {flat.size} exponents."
        )
    return _orthonormalize(jax.random.normal(key, (number, *flat.shape), flat.dtype))[0]


def _orthonormalize(rows: Array) -> tuple[Array, Array]:
    """Return orthonormal rows [n, P] that span the same, in order, and how long they were [n]
    without their parts along those before them.

    Gram-Schmidt, twice for each row; `jnp.linalg.qr` cannot be used, since it hangs where this is
    vmapped.
    """
    found, lengths = [], []
    for row in rows:
        for _ in range(2):
            for other in found:
                row = row - (row @ other) * other
        length = jnp.linalg.norm(row)
        lengths.append(length)
        found.append(row / jnp.maximum(length, _TINY))
    return jnp.stack(found), jnp.stack(lengths)


def _growth(step: Step, x: Array, steps: int, directions: Array) -> tuple[Array, Array, Array]:
    """Return the logarithm [n] of how much each direction grows apart from those before it, the
    directions that they end as [n, P], and the parameters before each step [steps, P]."""

    def move(carry, _):
        x, directions, total = carry
        x_next, push = jax.linearize(step, x)
        directions, lengths = _orthonormalize(jax.vmap(push)(directions))
        return (x_next, directions, total + jnp.log(jnp.maximum(lengths, _TINY))), x

    begin = x, directions, jnp.zeros(len(directions), x.dtype)
    (_, ends, total), path = jax.lax.scan(move, begin, None, steps)
    return total, ends, path


def _refine(step: Step, x: Array, steps: int, directions: Array, iterations: Array | int) -> Array:
    """Return directions [n, P] after subspace iteration on A'A."""

    def pull(directions, x):
        _, back = jax.vjp(step, x)
        return _orthonormalize(jax.vmap(lambda d: back(d)[0])(directions))[0], None

    def iteration(_, directions):
        _, ends, path = _growth(step, x, steps, directions)
        return jax.lax.scan(pull, ends, path, reverse=True)[0]

    return jax.lax.fori_loop(0, iterations, iteration, directions)
