"""Optimal transport plans and matchings; a cost or plan is [..., N, M]."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "implicit_sinkhorn",
    "sinkhorn",
    "soft_matching",
]


def _log_masses(mass: Array | None, like: Array, number: int) -> Array:
    """Return the marginals' logarithms, -inf where there is no mass; None: equal masses."""
    if mass is None:
        mass = jnp.full((number,), 1 / number, like.dtype)
    mass = mass.astype(like.dtype)
    positive = mass > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, mass, 1)), -jnp.inf)


def _log_inputs(
    cost: Array,
    regularization: Array | float,
    row_mass: Array | None,
    column_mass: Array | None,
) -> tuple[Array, Array, Array]:
    """Return exponents and log-marginals in at least float32, ignoring costs without mass."""
    wide = cost.astype(jnp.promote_types(cost.dtype, jnp.float32))
    rows = _log_masses(row_mass, wide, cost.shape[-2])
    columns = _log_masses(column_mass, wide, cost.shape[-1])
    present = (rows > -jnp.inf)[..., :, None] & (columns > -jnp.inf)[..., None, :]
    exponent = -jnp.where(present, wide, 0) / jnp.asarray(regularization, wide.dtype)
    batch = exponent.shape[:-2]
    rows = jnp.broadcast_to(rows, (*batch, cost.shape[-2]))
    return exponent, rows, jnp.broadcast_to(columns, (*batch, cost.shape[-1]))


def _safe_logsumexp(x: Array, axis: int) -> Array:
    """Return the logsumexp, with value and gradient 0 where all terms are -inf."""
    some = (x > -jnp.inf).any(axis, keepdims=True)
    total = jax.nn.logsumexp(jnp.where(some, x, 0), axis=axis)
    return jnp.where(some.squeeze(axis), total, 0)


def _scale_to_marginals(exponent: Array, rows: Array, columns: Array, iterations: int) -> Array:
    """Return the plan after `iterations` scalings of the rows, then the columns."""

    def step(column, _):
        row = rows - _safe_logsumexp(exponent + column[..., None, :], -1)
        column = columns - _safe_logsumexp(exponent + row[..., :, None], -2)
        return column, row

    column, row = jax.lax.scan(step, columns, None, length=iterations)
    return jnp.exp(exponent + row[-1][..., :, None] + column[..., None, :])


def sinkhorn(
    cost: Array,
    regularization: Array | float,
    row_mass: Array | None = None,
    column_mass: Array | None = None,
    iterations: int = 100,
) -> Array:
    """Entropy-regularized optimal transport plan, by a fixed number of Sinkhorn iterations.

    argmin_P sum_ij P_ij cost_ij + regularization sum_ij P_ij (log P_ij - 1) over P >= 0 with the
    sums row_mass over j and column_mass over i; in logarithms, so that nothing underflows

    Args:
      cost: [..., N, M].
      regularization: positive, a scalar; toward 0 the plan is that of the linear program, but
        more iterations are needed.
      row_mass: [..., N], the mass that leaves each row; None: 1 / N each. 0 excludes a row,
        whatever its cost.
      column_mass: [..., M], the mass that each column receives, with the same sum; None: 1 / M
        each.
      iterations: number of times that rows, then columns are scaled; the column sums are exact.
    Returns: [..., N, M].
    Gradients: flow through all iterations (unrolled); `implicit_sinkhorn` has cheaper ones.
    Source: Cuturi, 2013, "Sinkhorn distances: lightspeed computation of optimal transport".
    Example: `solvers.sinkhorn(cost, regularization=0.5)`
    """
    parts = _log_inputs(cost, regularization, row_mass, column_mass)
    return _scale_to_marginals(*parts, iterations).astype(cost.dtype)


def _implicit_forward(exponent, rows, columns, iterations):
    """Return the plan, and the plan as the residual of `_implicit_backward`."""
    plan = _scale_to_marginals(exponent, rows, columns, iterations)
    return plan, plan


def _implicit_backward(_, plan, cotangent):
    """Gradients of the converged plan, by the implicit function theorem.

    At the fixed point P = exp(exponent + f_i + g_j) the marginals hold, so df and dg solve

    [diag(P 1)   P        ] [df]   [d row_mass    - (P * d exponent) 1  ]
    [P^T         diag(1 P)] [dg] = [d column_mass - (P * d exponent)^T 1].

    The matrix is scaled to eigenvalues from 0 to 2. Directions with eigenvalue 0 change no entry of
    the plan (one: f + c, g - c) and are left out.
    """
    weighted = cotangent * plan
    masses = jnp.concatenate([plan.sum(-1), plan.sum(-2)], -1)
    number = plan.shape[-2]
    some = masses > 0
    root = jnp.where(some, jnp.sqrt(jnp.where(some, masses, 1)), 1)
    scaled = plan / root[..., :number, None] / root[..., None, number:]
    ones = some.astype(plan.dtype)[..., None] * jnp.eye(masses.shape[-1], dtype=plan.dtype)
    row_ones, column_ones = ones[..., :number, :number], ones[..., number:, number:]
    matrix = jnp.block([[row_ones, scaled], [scaled.mT, column_ones]])
    values, vectors = jnp.linalg.eigh(matrix)
    tolerance = 100 * masses.shape[-1] * jnp.finfo(plan.dtype).eps
    kept = values > tolerance
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
    side = jnp.concatenate([weighted.sum(-1), weighted.sum(-2)], -1) / root
    projected = inverse * (vectors * side[..., :, None]).sum(-2)
    solution = (vectors * projected[..., None, :]).sum(-1) / root
    row, column = solution[..., :number], solution[..., number:]
    exponent = weighted - plan * (row[..., :, None] + column[..., None, :])
    # The arguments are log-masses: d mass = mass * d log mass.
    return exponent, row * masses[..., :number], column * masses[..., number:]


_implicit_plan = jax.custom_vjp(_scale_to_marginals, nondiff_argnums=(3,))
_implicit_plan.defvjp(_implicit_forward, _implicit_backward)


def implicit_sinkhorn(
    cost: Array,
    regularization: Array | float,
    row_mass: Array | None = None,
    column_mass: Array | None = None,
    iterations: int = 100,
) -> Array:
    """Sinkhorn's plan with the exact gradient of the converged plan, without backpropagation.

    The plan of `sinkhorn`; its derivative follows from the marginal constraints at the optimum.

    Args: cost, regularization, row_mass, column_mass, iterations: as in `sinkhorn`.
    Returns: [..., N, M].
    Gradients: by the implicit function theorem, those of infinitely many iterations; they are off
      if `iterations` are too few. Those of the masses are defined up to a constant, as both sums
      must stay equal. Memory does not grow with `iterations`.
    Source: Guerrero-Pena et al., 2023, "Re-basin via implicit Sinkhorn differentiation";
      Eisenberger et al., 2022, "A unified framework for implicit Sinkhorn differentiation".
      The linear system is derived here.
    Example: `solvers.implicit_sinkhorn(cost, regularization=0.5)`
    """
    parts = _log_inputs(cost, regularization, row_mass, column_mass)
    return _implicit_plan(*parts, iterations).astype(cost.dtype)


def soft_matching(
    cost: Array,
    regularization: Array | float,
    row_mask: Array | None = None,
    column_mask: Array | None = None,
    iterations: int = 100,
) -> Array:
    """Soft one-to-one matching of the rows and columns of a cost; some may stay unmatched.

    Partial transport of unit masses: argmin_P sum_ij P_ij cost_ij - regularization * entropy with
    row and column sums of at most 1 and min(rows, columns) in total; the excess goes to a dummy
    row or column of constant cost

    Args:
      cost: [..., N, M].
      regularization: positive, a scalar; toward 0 the plan is an assignment.
      row_mask: [..., N], true where a row exists; None: everywhere.
      column_mask: [..., M], the same for columns.
      iterations: as in `sinkhorn`.
    Returns: [..., N, M], from 0 to 1; entries above 0.5 are matches.
    Gradients: flow through all iterations.
    Source: Moon et al., 2023, "Discovering hierarchical achievements in reinforcement learning via
      contrastive learning" (matches above 0.5); the dummies as in Chapel et al., 2020, "Partial
      optimal transport with applications on positive-unlabeled learning".
    Example: `solvers.soft_matching(cost, regularization=0.05)`
    """

    def masses(mask, axis):
        shape = cost.shape[:-2] + cost.shape[axis : axis + 1 or None]
        return jnp.ones(shape, cost.dtype) if mask is None else jnp.broadcast_to(mask, shape)

    row, column = (
        masses(mask, axis).astype(jnp.promote_types(cost.dtype, jnp.float32))
        for mask, axis in ((row_mask, -2), (column_mask, -1))
    )
    missing = column.sum(-1, keepdims=True) - row.sum(-1, keepdims=True)
    row = jnp.concatenate([row, jnp.maximum(missing, 0)], -1)
    column = jnp.concatenate([column, jnp.maximum(-missing, 0)], -1)
    padded = jnp.pad(cost, [(0, 0)] * (cost.ndim - 2) + [(0, 1), (0, 1)])
    return sinkhorn(padded, regularization, row, column, iterations)[..., :-1, :-1]
