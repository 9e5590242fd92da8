"""Eigenvectors of small symmetric matrices by Jacobi rotations."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl.core.types import Array


@functools.partial(jax.jit, static_argnums=1)
def eigh(matrix: Array, sweeps: int = 12) -> tuple[Array, Array]:
    """Return the eigenvalues [n], unordered, and the eigenvectors, columns of [n, n], of a
    symmetric `matrix` [n, n].

    Cyclic Jacobi with the parallel ordering of Brent and Luk (1985): n / 2 disjoint rotations at
    once (Golub and Van Loan, section 8.5). `jnp.linalg.eigh` is a LAPACK call, which hung on the
    CPU when vmap batched it inside a jitted training program. 12 sweeps reach float32's precision,
    about 1e-6 of the largest entry, up to 256 dimensions, even for a condition number of 1e6 and
    for equal eigenvalues (8 sweeps do not beyond 16 dimensions); each costs about 6 n^3 operations.
    """
    n = matrix.shape[0]
    even = n + n % 2
    partners = jnp.asarray(_tournament(even))
    a = jnp.zeros((even, even), matrix.dtype).at[:n, :n].set(matrix)
    index = jnp.arange(even)

    def rotate(step, carry):
        a, vectors = carry
        partner = partners[step % (even - 1)]
        lower = index < partner
        diagonal = jnp.diagonal(a)
        # Both of a pair rotate by the same angle, although rounding makes `a` slightly asymmetric:
        # if two eigenvalues are equal, the remaining off-diagonal entries may have opposite signs,
        # and two angles of opposite signs are not a rotation.
        twice_off = a[index, partner] + a[partner, index]
        gap = jnp.where(lower, diagonal[partner] - diagonal, diagonal - diagonal[partner])
        there = twice_off != 0
        tau = gap / jnp.where(there, twice_off, 1)
        sign = jnp.where(tau < 0, -1.0, 1.0)
        tangent = jnp.where(there, sign / (jnp.abs(tau) + jnp.hypot(1.0, tau)), 0)
        cosine = 1 / jnp.sqrt(1 + tangent**2)
        sine = jnp.where(lower, -1, 1) * tangent * cosine
        a = cosine[:, None] * a + sine[:, None] * a[partner]
        a = cosine * a + sine * a[:, partner]
        return a, cosine * vectors + sine * vectors[:, partner]

    identity = jnp.eye(even, dtype=matrix.dtype)
    _, vectors = lax.fori_loop(0, sweeps * (even - 1), rotate, (a, identity))
    vectors = vectors[:n, :n]
    # Rounding errors add up over the rotations; one Newton step restores orthogonality (Higham,
    # 1986).
    vectors = 1.5 * vectors - 0.5 * vectors @ (vectors.T @ vectors)
    return (vectors * (matrix @ vectors)).sum(0), vectors


def assemble(values: Array, vectors: Array) -> Array:
    """Return the symmetric matrix [n, n] with these eigenvalues [n] and eigenvectors [n, n]. With
    f(values) from the `eigh` of a matrix, it is the function f of that matrix, which is as
    continuous as f, unlike the eigenvectors."""
    return (vectors * values) @ vectors.T


def _tournament(n: int) -> np.ndarray:
    """Return the partners in each round of a round-robin tournament, int32 [n - 1, n], n even."""
    circle, rounds = list(range(n)), []
    for _ in range(n - 1):
        partner = np.zeros(n, np.int32)
        for i in range(n // 2):
            a, b = circle[i], circle[n - 1 - i]
            partner[a], partner[b] = b, a
        rounds.append(partner)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return np.stack(rounds)
