"""Novelty bonuses: prediction errors, disagreement, counts, neighbors; adaptive noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core import precise
from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import euclidean_distance
from jaxrl.losses.divergences.entropy_and_kl import categorical_nll
from jaxrl.losses.reductions import masked_mean

__all__ = [
    "action_distance",
    "adapt_noise",
    "count_bonus",
    "elliptical_bonus",
    "elliptical_precision",
    "ensemble_disagreement",
    "exploitation_value",
    "forward_error",
    "icm",
    "novelty",
    "particle_bonus",
    "prediction_gain",
    "pseudo_count",
    "surprisal",
    "ucb_bonus",
    "whiten",
]


@check_arguments
def whiten(
    x: Array, mean: Array | float, scale: Array | float, clip: Array | float = jnp.inf
) -> Array:
    """Scale observations or bonuses by their running deviation, then clip.

    clip((x - mean) / scale, -clip, clip)

    Random network distillation whitens observations with a clip of 5, and divides its bonus by
    the deviation of its returns (mean 0, no clip).

    Args:
      x: [...].
      mean, scale: running statistics, broadcast to [...]; a scale below 1e-8 counts as 1e-8.
      clip: broadcasts to [...].
    Returns: [...].
    Gradients: flow into `x` where it is not clipped; none into the statistics.
    Source: Burda et al., 2019, "Exploration by random network distillation", section 2.4.
    Example: `losses.whiten(x, mean, scale, clip=5.0)`
    """
    mean, scale = jax.lax.stop_gradient((mean, scale))
    return jnp.clip((x - mean) / jnp.maximum(scale, 1e-8), -clip, clip)


@check_arguments
def forward_error(prediction: Array, next_features: Array) -> Array:
    """Forward model's error in feature space, both a loss and a curiosity bonus.

    |prediction - phi(s')|^2 / 2

    Args: prediction, next_features: [..., D].
    Returns: [...].
    Gradients: none are stopped: stop them where it is used as a bonus.
    Source: Pathak et al., 2017, "Curiosity-driven exploration by self-supervised prediction",
      eqs. 5 and 6 (eta = 1).
    Example: `losses.forward_error(prediction, next_features)`
    """
    return 0.5 * jnp.square(prediction - next_features).sum(-1)


@check_arguments
def icm(
    prediction: Array,
    next_features: Array,
    logits: Array,
    action: Array,
    beta: Array | float = 0.2,
) -> Array:
    """Loss of the intrinsic curiosity module (ICM): inverse model plus forward model.

    (1 - beta) categorical_nll(logits, action) + beta forward_error(prediction, phi(s'))

    Args:
      prediction, next_features: [..., D], the forward model's and the true next features.
      logits: [..., A], the inverse model's.
      action: [...], integers.
      beta: weight of the forward loss, broadcasts to [...].
    Returns: [...].
    Gradients: none are stopped; features learn from both parts.
    Source: Pathak et al., 2017, "Curiosity-driven exploration by self-supervised prediction",
      eq. 7.
    Example: `losses.icm(prediction, next_features, logits, action, beta=0.2).mean()`
    """
    inverse = categorical_nll(logits, action)
    return (1 - beta) * inverse + beta * forward_error(prediction, next_features)


@check_arguments
def ensemble_disagreement(prediction: Array) -> Array:
    """Variance over an ensemble's predictions, a novelty signal that noise does not cause.

    mean_e (f_e - mean_e f_e)^2

    Args: prediction: [..., E], members last; average the result over features. Given the members'
      log-probabilities of one next state, it measures their disagreement about it (LL Var).
    Returns: [...].
    Gradients: none are stopped (a policy may follow it through a differentiable model).
    Source: Pathak et al., 2019, "Self-supervised exploration via disagreement", eq. 1; with
      log-probabilities Lu et al., 2022, "Revisiting design choices in offline model-based
      reinforcement learning".
    Example: `losses.ensemble_disagreement(prediction).mean(-1)`
    """
    return jnp.square(prediction - prediction.mean(-1, keepdims=True)).mean(-1)


@check_arguments
def count_bonus(count: Array, offset: Array | float = 0.01) -> Array:
    """Bonus inversely proportional to the square root of the number of visits.

    1 / sqrt(count + offset)

    Args:
      count: [...], visits or pseudo-counts, nonnegative.
      offset: positive where a count may be 0, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Strehl and Littman, 2008, "An analysis of model-based interval estimation for Markov
      decision processes"; Bellemare et al., 2016, "Unifying count-based exploration and intrinsic
      motivation" (offset 0.01).
    Example: `losses.count_bonus(count)`
    """
    return jax.lax.stop_gradient(jax.lax.rsqrt(count + offset))


@check_arguments
def ucb_bonus(count: Array, total: Array) -> Array:
    """Upper confidence bound (UCB) bonus: how much better an arm might be.

    sqrt(2 log(total) / count)

    Args:
      count: [..., A], how often each arm was taken.
      total: broadcasts to [..., A], how often any arm was taken, at least 1.
    Returns: [..., A]; infinite where the count is 0.
    Gradients: none.
    Source: Auer et al., 2002, "Finite-time analysis of the multiarmed bandit problem", figure 1.
    Example: `losses.ucb_bonus(count, total)`
    """
    count, total = jax.lax.stop_gradient((count, total))
    tried = count > 0
    bonus = jnp.sqrt(2 * jnp.log(total) / jnp.where(tried, count, 1))
    return jnp.where(tried, bonus, jnp.inf)


@check_arguments
def elliptical_bonus(features: Array, precision: Array) -> Array:
    """LinUCB's bonus: uncertainty of a linear model of features, a count bonus for features.

    sqrt(phi^T Lambda^-1 phi); for one-hot features 1 / sqrt(count + ridge)

    Args:
      features: [..., D], phi(s, a).
      precision: broadcasts to [..., D, D], Lambda of past features, by `elliptical_precision`.
    Returns: [...].
    Gradients: flow only into `features`; 0 where they are 0.
    Source: Li et al., 2010, "A contextual-bandit approach to personalized news article
      recommendation", algorithm 1; Abbasi-Yadkori et al., 2011, "Improved algorithms for linear
      stochastic bandits".
    Example: `losses.elliptical_bonus(features, precision)`
    """
    wide = jnp.promote_types(features.dtype, jnp.float32)  # the factorization needs it
    root = jnp.linalg.cholesky(jax.lax.stop_gradient(precision).astype(wide))
    identity = jnp.broadcast_to(jnp.eye(root.shape[-1], dtype=wide), root.shape)
    inverse = jax.scipy.linalg.solve_triangular(root, identity, lower=True)
    whitened = precise.matmul(inverse, features.astype(wide)[..., None])[..., 0]
    return euclidean_distance(whitened, 0.0).astype(features.dtype)


@check_arguments
def elliptical_precision(precision: Array, features: Array, mask: Array | None = None) -> Array:
    """Update a linear model's precision with new features, for `elliptical_bonus`.

    Lambda + sum_n phi_n phi_n^T, a rank-one update for each; initially Lambda = ridge * identity

    Args:
      precision: [..., D, D].
      features: [..., N, D].
      mask: [..., N], true where a sample counts; None: everywhere.
    Returns: [..., D, D].
    Gradients: none: these are statistics.
    Source: Li et al., 2010, "A contextual-bandit approach to personalized news article
      recommendation", algorithm 1.
    Example: `losses.elliptical_precision(precision, features)`
    """
    precision, features = jax.lax.stop_gradient((precision, features))
    if mask is not None:
        features = jnp.where(mask[..., None], features, 0)
    return precision + precise.matmul(jnp.swapaxes(features, -1, -2), features)


@check_arguments
def prediction_gain(log_prob: Array, recoding_log_prob: Array) -> Array:
    """Prediction gain: how much a density model learns from seeing an observation once more.

    log rho'(x) - log rho(x)

    Args: log_prob, recoding_log_prob: [...], before and after the update on the observation.
    Returns: [...].
    Gradients: none.
    Source: Bellemare et al., 2016, "Unifying count-based exploration and intrinsic motivation",
      section 3.
    Example: `losses.prediction_gain(log_prob, recoding_log_prob)`
    """
    return jax.lax.stop_gradient(recoding_log_prob - log_prob)


@check_arguments
def pseudo_count(log_prob: Array, recoding_log_prob: Array) -> Array:
    """Pseudo-count: the number of visits implied by the growth of a density model's probability.

    rho (1 - rho') / (rho' - rho) = (1 - rho') / (exp(gain) - 1)

    Args: log_prob, recoding_log_prob: [...], log rho and log rho', before and after the update.
    Returns: [...]; infinite where the probability did not grow.
    Gradients: none.
    Source: Bellemare et al., 2016, "Unifying count-based exploration and intrinsic motivation",
      eq. 2.
    Example: `losses.pseudo_count(log_prob, recoding_log_prob)`
    """
    gain = prediction_gain(log_prob, recoding_log_prob)
    grew = gain > 0
    growth = jnp.expm1(jnp.minimum(jnp.where(grew, gain, 1), 60.0))
    remainder = -jnp.expm1(jax.lax.stop_gradient(recoding_log_prob))
    return jnp.where(grew, remainder / growth, jnp.inf)


@check_arguments
def surprisal(log_prob: Array) -> Array:
    """Negative log-probability of an observation, a reward for surprise or for rare states.

    -log p(x)

    Under a model of the transition it is the surprise reward. Under the density of the states that
    the policy visits it is, up to a constant, the gradient of their entropy with respect to that
    density, so that repeatedly maximizing it maximizes the entropy.

    Args: log_prob: [...], under the model.
    Returns: [...].
    Gradients: none.
    Source: Achiam and Sastry, 2017, "Surprise-based intrinsic motivation for deep reinforcement
      learning"; Hazan et al., 2019, "Provably efficient maximum entropy exploration".
    Example: `losses.surprisal(log_prob)`
    """
    return -jax.lax.stop_gradient(log_prob)


@check_arguments
def novelty(x: Array, archive: Array, neighbors: int, mask: Array | None = None) -> Array:
    """Novelty search's fitness: mean distance to the nearest neighbors in an archive.

    1/k sum_{i=1}^k |x - archive_(i)|, over the k nearest

    Args:
      x: [..., N, D], features or behavior descriptors.
      archive: [..., M, D]; may be x itself, with mask = ~eye so that no entry is its own neighbor.
      neighbors: k; fewer where fewer count.
      mask: broadcasts to [..., N, M], true where the archive's entry counts; None: everywhere.
    Returns: [..., N]; 0 where no entry counts.
    Gradients: none are stopped; 0 at distance 0.
    Source: Lehman and Stanley, 2011, "Abandoning objectives: Evolution through the search for
      novelty alone", eq. 1.
    Example: `losses.novelty(x, archive, neighbors)`
    """
    difference = x[..., :, None, :] - archive[..., None, :, :]
    allowed = jnp.ones(difference.shape[:-1], bool)
    allowed = allowed if mask is None else jnp.broadcast_to(mask, allowed.shape).astype(bool)
    distance = euclidean_distance(jnp.where(allowed[..., None], difference, 0), 0.0)
    number = min(neighbors, archive.shape[-2])
    nearest = -jax.lax.top_k(jnp.where(allowed, -distance, -jnp.inf), number)[0]
    return masked_mean(nearest, nearest < jnp.inf, axis=-1)


@check_arguments
def particle_bonus(
    x: Array, archive: Array, neighbors: int, mask: Array | None = None, offset: float = 1.0
) -> Array:
    """APT's particle estimate of entropy: log-distance to the nearest neighbors.

    log(offset + novelty(x, archive, neighbors, mask))

    Args:
      x: [..., N, D]; archive: [..., M, D]; neighbors: k; mask: broadcasts to [..., N, M]: as in
        `novelty`.
      offset: keeps the logarithm finite.
    Returns: [..., N].
    Gradients: none are stopped: stop them where it is used as a reward.
    Source: Liu and Abbeel, 2021, "Behavior from the void: Unsupervised active pre-training".
    Example: `losses.particle_bonus(x, archive, neighbors)`
    """
    return jnp.log(offset + novelty(x, archive, neighbors, mask))


@check_arguments
def action_distance(action: Array, perturbed_action: Array, mask: Array | None = None) -> Array:
    """Root mean square change of a deterministic policy's actions under parameter noise.

    sqrt(mean_{b,d} (action_bd - perturbed_bd)^2)

    For discrete actions use the mean of `categorical_kl`.

    Args:
      action, perturbed_action: [..., B, D], without and with noise, in the same states.
      mask: [..., B], true where a state counts; None: everywhere.
    Returns: [...].
    Gradients: none.
    Source: Plappert et al., 2018, "Parameter space noise for exploration", appendix C.
    Example: `losses.action_distance(action, perturbed_action)`
    """
    square = jnp.square(jax.lax.stop_gradient(action - perturbed_action)).mean(-1)
    return jnp.sqrt(masked_mean(square, mask, axis=-1))


@check_arguments
def adapt_noise(
    scale: Array, distance: Array, target: Array | float, factor: Array | float = 1.01
) -> Array:
    """Update the scale of parameter noise: larger while actions differ less than wanted.

    scale * factor where distance <= target, else scale / factor

    Args:
      scale, distance: [...], the noise's deviation and the distance it caused.
      target: the wanted distance, broadcasts to [...].
      factor: above 1, broadcasts to [...].
    Returns: [...].
    Gradients: none.
    Source: Plappert et al., 2018, "Parameter space noise for exploration", section 3.
    Example: `losses.adapt_noise(scale, distance, target=0.2)`
    """
    scale = jax.lax.stop_gradient(scale)
    return jnp.where(distance <= target, scale * factor, scale / factor)


@check_arguments
def exploitation_value(cross_value: Array, belief: Array) -> Array:
    """Value of pure exploitation: the best of acting as if one possible environment were true.

    K = max_j sum_i belief_i V_ji

    As the potential of state and belief in `potential_shaping` it gives predictive reward cashing:
    reward is paid when it becomes predictable, so that information pays off immediately.

    Args:
      cross_value: [..., J, I], value in environment i of acting optimally for environment j, from
        this state.
      belief: [..., I], probabilities of the environments.
    Returns: [...].
    Gradients: none.
    Source: derived here from the idea of cross-values in Ambrogioni, 2021, "Knowledge is reward:
      Learning optimal exploration by predictive reward cashing".
    Example: `losses.exploitation_value(cross_value, belief)`
    """
    known = (cross_value * belief[..., None, :]).sum(-1).max(-1)
    return jax.lax.stop_gradient(known)
