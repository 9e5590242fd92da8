"""Mutual information: bounds, a bottleneck, and information about parameters."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.divergences.entropy_and_kl import gaussian_kl
from jaxrl.losses.policies.policy_gradients import importance_ratio
from jaxrl.losses.representations.self_supervised import info_nce

__all__ = [
    "barber_agakov",
    "donsker_varadhan",
    "experimental_design",
    "fisher_information",
    "info_nce_bound",
    "information_gain",
    "nwj",
    "standard_normal_kl",
]


@check_arguments
def barber_agakov(log_prob: Array, prior_log_prob: Array) -> Array:
    """Variational lower bound on mutual information, from a model that predicts z from x.

    I(z; x) >= E[log q(z | x) - log p(z)], one sample's term; exact where q is the posterior

    Args: log_prob, prior_log_prob: [...], log q(z | x) and log p(z) of pairs from the joint.
    Returns: [...], to be maximized (the model's loss is its negative).
    Gradients: none are stopped.
    Source: Barber and Agakov, 2003, "The IM algorithm: A variational approach to information
      maximization"; for skills Gregor et al., 2017, "Variational intrinsic control".
    Example: `losses.barber_agakov(log_prob, prior_log_prob).mean()`
    """
    return log_prob - prior_log_prob


@check_arguments
def donsker_varadhan(joint_score: Array, marginal_score: Array) -> Array:
    """MINE's lower bound on mutual information from a critic's scores, the tightest one here.

    mean_n T(x_n, z_n) - log mean_m exp(T(x_m, z'_m))

    Args:
      joint_score: [..., N], the critic's, of pairs from the joint distribution.
      marginal_score: [..., M], of pairs sampled independently (one side shuffled).
    Returns: [...], to be maximized.
    Gradients: none are stopped; the logarithm of a batch's mean makes them biased.
    Source: Belghazi et al., 2018, "Mutual information neural estimation"; Donsker and
      Varadhan, 1983.
    Example: `losses.donsker_varadhan(joint_score, marginal_score)`
    """
    normalizer = jax.nn.logsumexp(marginal_score, axis=-1) - math.log(marginal_score.shape[-1])
    return joint_score.mean(-1) - normalizer


@check_arguments
def nwj(joint_score: Array, marginal_score: Array) -> Array:
    """Lower bound on mutual information whose estimate is unbiased but has high variance.

    mean_n T(x_n, z_n) - mean_m exp(T(x_m, z'_m) - 1)

    Tight where T = 1 + log p(x, z) / (p(x) p(z)).

    Args:
      joint_score: [..., N], the critic's, of pairs from the joint distribution.
      marginal_score: [..., M], of pairs sampled independently (one side shuffled).
    Returns: [...], to be maximized.
    Gradients: none are stopped; 0 through scores above 61.
    Source: Nguyen et al., 2010, "Estimating divergence functionals and the likelihood ratio by
      convex risk minimization"; Poole et al., 2019, "On variational bounds of mutual
      information".
    Example: `losses.nwj(joint_score, marginal_score)`
    """
    one = jnp.ones_like(marginal_score)
    return joint_score.mean(-1) - importance_ratio(marginal_score, one).mean(-1)


@check_arguments
def info_nce_bound(similarity: Array, temperature: Array | float = 1.0) -> Array:
    """Contrastive lower bound on mutual information: low variance, at most log B.

    log B - mean_i info_nce(similarity, temperature)_i

    Args:
      similarity: [..., B, B], of each x (row) and each z, pairs from the joint on the diagonal.
      temperature: broadcasts to [..., 1, 1].
    Returns: [...], to be maximized.
    Gradients: none are stopped.
    Source: van den Oord et al., 2018, "Representation learning with contrastive predictive
      coding", section 2.3; Poole et al., 2019, "On variational bounds of mutual information".
    Example: `losses.info_nce_bound(similarity, temperature=0.1)`
    """
    return math.log(similarity.shape[-1]) - info_nce(similarity, temperature).mean(-1)


@check_arguments
def standard_normal_kl(mean: Array, scale: Array) -> Array:
    """Divergence of a Gaussian encoding from a standard normal, the bottleneck cost in VIB.

    KL(N(mean, scale^2) || N(0, 1)); its mean over inputs bounds the encoding's information from
    above

    Args: mean, scale: [..., D], the encoder's, with independent dimensions; scales are positive.
    Returns: [...].
    Gradients: none are stopped.
    Source: Alemi et al., 2017, "Deep variational information bottleneck", eq. 17.
    Example: `losses.standard_normal_kl(mean, scale).mean()`
    """
    return gaussian_kl(mean, scale, jnp.zeros_like(mean), jnp.ones_like(scale))


@check_arguments
def information_gain(scale: Array, noise_scale: Array) -> Array:
    """OPAX's bonus: information that a noisy Gaussian observation adds to a Gaussian belief.

    sum_d log(1 + scale_d^2 / noise_d^2) / 2

    Args:
      scale: [..., D], deviation of the belief (such as an ensemble's), nonnegative.
      noise_scale: broadcasts to [..., D], deviation of the observation's noise, positive.
    Returns: [...], the entropy that the belief loses, in nats.
    Gradients: none are stopped.
    Source: Srinivas et al., 2010, "Gaussian process optimization in the bandit setting",
      section 2; as a bonus Sukhija et al., 2023, "Optimistic active exploration of dynamical
      systems".
    Example: `losses.information_gain(scale, noise_scale)`
    """
    return 0.5 * jnp.log1p(jnp.square(scale / noise_scale)).sum(-1)


@check_arguments
def fisher_information(jacobian: Array, scale: Array) -> Array:
    """Fisher information of parameters in one step of dynamics with Gaussian noise.

    J^T diag(scale^-2) J; add the matrices of a trajectory's steps

    Args:
      jacobian: [..., D, P], of the next state's mean with respect to the parameters.
      scale: broadcasts to [..., D], the noise's deviation, positive.
    Returns: [..., P, P].
    Gradients: none are stopped.
    Source: Memmel et al., 2024, "ASID: Active exploration for system identification in robotic
      manipulation", section 4; common usage in optimal experimental design.
    Example: `losses.fisher_information(jacobian, scale)`
    """
    weighted = jacobian / scale[..., None]
    return precise.matmul(jnp.swapaxes(weighted, -1, -2), weighted)


@check_arguments
def experimental_design(information: Array, criterion: str, ridge: float = 1e-6) -> Array:
    """Score of how well parameters are identified, a reward for information-seeking exploration.

    "trace": tr(I); "log_det": log det(I + ridge); "inverse_trace": -tr((I + ridge)^-1)

    Args:
      information: [..., P, P], Fisher information of a trajectory, symmetric.
      criterion: "trace" (a sum over steps, which may be paid step by step), "log_det" (D-optimal)
        or "inverse_trace" (A-optimal: minus the smallest total variance of an unbiased estimate).
      ridge: the prior's precision, added to the diagonal.
    Returns: [...], to be maximized.
    Gradients: none are stopped.
    Source: Memmel et al., 2024, "ASID: Active exploration for system identification in robotic
      manipulation", section 4; Pukelsheim, 1993, "Optimal design of experiments".
    Example: `losses.experimental_design(information, criterion)`
    """
    if criterion not in ("trace", "log_det", "inverse_trace"):
        raise ValueError(f"criterion must be trace, log_det or inverse_trace, not {criterion!r}")
    if criterion == "trace":
        return jnp.trace(information, axis1=-2, axis2=-1)
    wide = information.astype(jnp.promote_types(information.dtype, jnp.float32))
    eigenvalue = jnp.maximum(jnp.linalg.eigvalsh(wide), 0) + ridge
    score = jnp.log(eigenvalue) if criterion == "log_det" else -1 / eigenvalue
    return score.sum(-1).astype(information.dtype)
