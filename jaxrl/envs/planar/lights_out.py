"""Lights Out: which buttons to press, by linear algebra over the field of two elements.

A press toggles some lights. Presses commute, and two of the same button undo each other, so that a
set of presses is a vector x over GF(2), and the lights change by A x. A goal can be reached if and
only if the change that it asks for is in the range of A; the ways to reach it differ by the kernel.
Anderson and Feil (1998), "Turning lights out with linear algebra".
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Array


def neighbors(rows: int, columns: int) -> np.ndarray:
    """Return A, int32 [N, N], of a board of `rows` x `columns` buttons, row by row: a press of the
    column's button toggles its own light and those beside, above and below it."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    apart = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    return (apart <= 1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Solution:
    """Solution of A x = b over GF(2), for all b at once.

    inverse: int32 [N, N]; x = inverse b solves the equation, if any x does.
    kernel: int32 [2 ** nullity, N], all x with A x = 0.
    """

    inverse: np.ndarray
    kernel: np.ndarray


def solve(matrix: np.ndarray) -> Solution:
    """Solve A x = b over GF(2) for a square `matrix` A, by Gauss-Jordan elimination."""
    size = len(matrix)
    work = np.concatenate([matrix, np.eye(size, dtype=np.int32)], 1) % 2
    pivots: list[int] = []
    for column in range(size):
        row = len(pivots)
        found = np.flatnonzero(work[row:, column])
        if not len(found):
            continue
        work[[row, row + found[0]]] = work[[row + found[0], row]]
        others = np.flatnonzero(work[:, column])
        others = others[others != row]
        work[others] ^= work[row]
        pivots.append(column)
    reduced, done = work[:, :size], work[:, size:]
    # Free unknowns are 0, and each pivot's unknown is what its row says.
    inverse = np.zeros((size, size), np.int32)
    inverse[pivots] = done[: len(pivots)]
    basis = []
    for free in sorted(set(range(size)) - set(pivots)):
        vector = np.zeros(size, np.int32)
        vector[free] = 1
        vector[pivots] = reduced[: len(pivots), free]
        basis.append(vector)
    kernel = np.zeros((1, size), np.int32)
    for vector in basis:
        kernel = np.concatenate([kernel, kernel ^ vector])
    return Solution(inverse, kernel)


@functools.cache
def board_solution(rows: int, columns: int) -> Solution:
    """Return the solution of the board of `rows` x `columns` buttons."""
    return solve(neighbors(rows, columns))


def fewest_presses(solution: Solution, change: Array) -> Array:
    """Return the buttons to press, int32 [N] of 0 and 1, as few as possible, for a `change` of
    lights [N] that can be reached."""
    one = jnp.asarray(solution.inverse) @ change.astype(jnp.int32) % 2
    every = jnp.bitwise_xor(one, jnp.asarray(solution.kernel))
    return every[every.sum(1).argmin()]
