"""Gradient surgery for several tasks: remove conflicts, keep old outputs, bargain fairly.

A gradient is a vector [..., P] (a flattened tree); several are [..., K, P].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.types import Array

__all__ = [
    "agem",
    "gem",
    "nash_weights",
    "orthogonal_direction",
    "orthogonal_gradient",
    "pcgrad",
]


def _dot_keepdims(a: Array, b: Array) -> Array:
    return (a * b).sum(-1, keepdims=True)


def agem(gradient: Array, memory_gradient: Array) -> Array:
    """A-GEM: a new task's gradient without the part that raises the loss on stored examples.

    g - min(g . m, 0) m / |m|^2

    Args:
      gradient: [..., P], of the new task.
      memory_gradient: [..., P], of the mean loss on examples of old tasks.
    Returns: [..., P].
    Gradients: none are stopped.
    Source: Chaudhry et al., 2019, "Efficient lifelong learning with A-GEM", eq. 11.
    Example: `gradients.agem(gradient, memory_gradient)`
    """
    size = _dot_keepdims(memory_gradient, memory_gradient)
    share = jnp.minimum(_dot_keepdims(gradient, memory_gradient), 0) / jnp.where(size > 0, size, 1)
    return gradient - share * memory_gradient


def gem(gradient: Array, memory_gradients: Array, iterations: int = 100) -> Array:
    """GEM: the gradient nearest to a new task's that does not raise the loss of any old task.

    argmin_x |x - g|^2 with m_k . x >= 0 for each k, by coordinate ascent on the dual (Hildreth)

    Args:
      gradient: [..., P], g of the new task.
      memory_gradients: [..., K, P], m_k of each old task.
      iterations: number of rounds over the K tasks; the error falls geometrically, but slowly where
        old tasks' gradients are nearly parallel.
    Returns: [..., P]; after any number of rounds x = g + sum_k v_k m_k with v_k >= 0.
    Gradients: none: this is an update.
    Source: Lopez-Paz and Ranzato, 2017, "Gradient episodic memory for continual learning",
      section 3 (without its margin).
    Example: `gradients.gem(gradient, memory_gradients)`
    """
    gradient, memory = jax.lax.stop_gradient((gradient, memory_gradients))

    def task(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, dual = state
        m = jnp.take(memory, k, axis=-2)
        size = _dot_keepdims(m, m)[..., 0]
        old = jnp.take(dual, k, axis=-1)
        new = jnp.maximum(old - _dot_keepdims(m, x)[..., 0] / jnp.where(size > 0, size, 1), 0)
        return x + (new - old)[..., None] * m, dual.at[..., k].set(new)

    number = memory.shape[-2]
    start = gradient, jnp.zeros(memory.shape[:-1], gradient.dtype)
    return jax.lax.fori_loop(0, iterations * number, lambda i, s: task(i % number, s), start)[0]


def pcgrad(task_gradients: Array, order: Array) -> Array:
    """PCGrad: one gradient for several tasks, each projected where it conflicts with another.

    sum_k g'_k, g'_k = g_k, then for each other j in turn: g'_k - min(g'_k . g_j, 0) g_j / |g_j|^2

    Args:
      task_gradients: [..., K, P], g_k of each task.
      order: [..., K, K] integers, row k the order in which task k is compared with all tasks
        (itself is skipped), random in the paper.
    Returns: [..., P].
    Gradients: none are stopped.
    Source: Yu et al., 2020, "Gradient surgery for multi-task learning", algorithm 1.
    Example: `gradients.pcgrad(task_gradients, order)`
    """
    number = task_gradients.shape[-2]
    own = jnp.arange(number)
    changed = task_gradients
    for turn in range(number):
        met = order[..., turn]
        other = jnp.take_along_axis(task_gradients, met[..., None], axis=-2)
        keep = (met == own)[..., None]
        changed = jnp.where(keep, changed, agem(changed, other))
    return changed.sum(-2)


def nash_weights(
    task_gradients: Array, power: Array, ridge: float = 1e-6, iterations: int = 50
) -> Array:
    """Weights of tasks' gradients that make their sum a fair bargain (Nash-MTL, AuxiNash).

    a > 0 with sum_j (g_k . g_j) a_j = power_k / a_k; the update is sum_k a_k g_k

    Args:
      task_gradients: [..., K, P], g_k of each task (of the shared parameters).
      power: [..., K], bargaining powers, positive; equal: Nash-MTL, unequal: AuxiNash.
      ridge: added to the diagonal of the gradients' cosines, so that a solution exists even where
        gradients cancel each other.
      iterations: number of damped Newton steps on |sum_k a_k g_k|^2 / 2 - sum_k power_k log a_k,
        which is convex: the last steps double the number of correct digits.
    Returns: [..., K], large but finite for a gradient of 0; computed in at least float32.
    Gradients: none flow into `task_gradients`; those into `power` are exact, from the solution's
      equation (a last Newton step at the fixed point).
    Source: Shamsian et al., 2023, "Auxiliary learning as an asymmetric bargaining game";
      Navon et al., 2022, "Multi-task learning as a bargaining game", claim 3.1. The solver is
      derived here.
    Example: `gradients.nash_weights(task_gradients, power)`
    """
    dtype = jnp.promote_types(task_gradients.dtype, jnp.float32)
    g = jax.lax.stop_gradient(task_gradients).astype(dtype)
    size = jnp.sqrt(jnp.square(g).sum(-1, keepdims=True))
    g = g / jnp.where(size > 0, size, 1)
    matrix = precise.matmul(g, jnp.swapaxes(g, -1, -2)) + ridge * jnp.eye(g.shape[-2], dtype=dtype)
    p = power.astype(dtype)

    def newton(b: Array, p: Array) -> Array:
        slope = precise.matmul(matrix, b[..., None])[..., 0] - p / b
        hessian = matrix + (p / jnp.square(b))[..., None] * jnp.eye(b.shape[-1], dtype=dtype)
        return jnp.linalg.solve(hessian, slope[..., None])[..., 0]

    def damped_newton_step(_: int, b: Array) -> Array:
        step = newton(b, fixed)
        # The second derivative along the step grows by at most 1 / (1 - t d)^2, where d is the
        # largest step / b, so up to this length the objective decreases and b stays positive.
        return b - step / (1 + jnp.maximum((step / b).max(-1, keepdims=True), 0))

    fixed = jax.lax.stop_gradient(p)
    start = jnp.broadcast_to(jnp.sqrt(fixed), g.shape[:-1])
    solution = jax.lax.fori_loop(0, iterations, damped_newton_step, start)
    # At the fixed point this step is 0, but its derivative for `power` is that of the solution.
    solution = solution - newton(solution, p)
    return (solution / jnp.where(size > 0, size, 1)[..., 0]).astype(task_gradients.dtype)


def orthogonal_gradient(gradient: Array, basis: Array) -> Array:
    """OGD: a gradient without its part along directions on which old tasks' outputs depend.

    g - sum_k (u_k . g) u_k

    Args:
      gradient: [..., P].
      basis: [..., K, P], u_k orthonormal (by `orthogonal_direction`), or 0 where not yet used.
    Returns: [..., P].
    Gradients: none are stopped.
    Source: Farajtabar et al., 2020, "Orthogonal gradient descent for continual learning",
      algorithm 1.
    Example: `gradients.orthogonal_gradient(gradient, basis)`
    """
    along = (basis * gradient[..., None, :]).sum(-1, keepdims=True)
    return gradient - (along * basis).sum(-2)


def orthogonal_direction(gradient: Array, basis: Array) -> Array:
    """Next direction to store: a gradient's part orthogonal to the stored ones, with length 1.

    v / |v|, v = orthogonal_gradient(gradient, basis)

    Args:
      gradient: [..., P], of an old task's output for one example.
      basis: [..., K, P], orthonormal, or 0 where not yet used.
    Returns: [..., P]; 0 where nothing is left: a rest of at most 10 machine epsilons of the
      gradient's length is rounding noise.
    Gradients: none are stopped.
    Source: Farajtabar et al., 2020, "Orthogonal gradient descent for continual learning",
      algorithm 1 (Gram-Schmidt).
    Example: `gradients.orthogonal_direction(gradient, basis)`
    """
    # Twice, since one pass leaves rounding errors along the basis.
    rest = orthogonal_gradient(orthogonal_gradient(gradient, basis), basis)
    size = _dot_keepdims(rest, rest)
    rounding = 10 * jnp.finfo(rest.dtype).eps
    nothing = size <= rounding**2 * _dot_keepdims(gradient, gradient)  # false for NaN
    return jnp.where(nothing, 0, rest / jnp.sqrt(jnp.where(nothing, 1, size)))
