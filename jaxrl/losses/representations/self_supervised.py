"""Losses that shape latents: contrastive, self-predictive, bisimulation, successor features."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.checks import check_arguments
from jaxrl.core.types import Array
from jaxrl.losses.distances import cosine_similarity, euclidean_distance
from jaxrl.losses.values.errors_and_targets import squared_error

__all__ = [
    "bisimulation",
    "info_nce",
    "reward_regression",
    "self_prediction",
    "successor_target",
]


@check_arguments
def info_nce(
    similarity: Array,
    temperature: Array | float = 1.0,
    mask: Array | None = None,
    symmetric: bool = False,
) -> Array:
    """InfoNCE contrastive loss: tell each anchor's positive from the batch's other candidates.

    -log (exp(s_ii / temperature) / sum_j exp(s_ij / temperature))

    With pairs from one trajectory (an observation and a later one) this is the temporal
    contrastive loss; with images and instructions it is CLIP's, if symmetric.

    Args:
      similarity: [..., B, B], of anchor i (row) and candidate j (column); positives are on the
        diagonal.
      temperature: broadcasts to [..., 1, 1].
      mask: [..., B], true where a pair counts, as anchor and as candidate; None: everywhere.
      symmetric: average with the same loss of the candidates against the anchors.
    Returns: [..., B], one loss per anchor; 0 where the mask is false.
    Gradients: none are stopped.
    Source: van den Oord et al., 2018, "Representation learning with contrastive predictive
      coding", eq. 4; Radford et al., 2021, "Learning transferable visual models from natural
      language supervision", figure 3 (symmetric).
    Example: `losses.info_nce(similarity, temperature=0.1).mean()`
    """
    if mask is None:
        logits = similarity / temperature
    else:
        mask = jnp.asarray(mask, bool)
        both = mask[..., :, None] & mask[..., None, :]
        # A row that does not count keeps one candidate, itself: a loss of 0.
        own = jnp.eye(mask.shape[-1], dtype=bool)
        logits = jnp.where(both | own, jnp.where(both, similarity, 0) / temperature, -jnp.inf)
    positive = jnp.diagonal(logits, axis1=-2, axis2=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - positive
    if symmetric:
        loss = 0.5 * (loss + jax.nn.logsumexp(logits, axis=-2) - positive)
    return loss


@check_arguments
def self_prediction(prediction: Array, target: Array, done: Array) -> Array:
    """Loss of self-predictive representations (SPR): align predicted latents with later ones.

    -cos(prediction[k], stop(target[k])), 0 from the first done on

    Args:
      prediction: [T, ..., D], predicted from step 0's latent and the actions 0 to k (projected).
      target: [T, ..., D], the target encoder's latent of step k's next observation (projected).
      done: [T, ...], true where step k ends the episode. Predictions from there on cannot be
        compared, as the next observation may belong to another episode.
    Returns: [T, ...].
    Gradients: none flow into `target`.
    Source: Schwarzer et al., 2021, "Data-efficient reinforcement learning with self-predictive
      representations", section 2.2; Grill et al., 2020, "Bootstrap your own latent".
    Example: `losses.self_prediction(prediction, target, done).sum(0).mean()`
    """
    alive = jnp.cumsum(done.astype(int), axis=0) == 0
    prediction = jnp.where(alive[..., None], prediction, 0)
    target = jnp.where(alive[..., None], jax.lax.stop_gradient(target), 0)
    return jnp.where(alive, -cosine_similarity(prediction, target), 0)


@check_arguments
def bisimulation(
    latent: Array,
    other_latent: Array,
    reward: Array,
    other_reward: Array,
    next_mean: Array,
    other_next_mean: Array,
    next_scale: Array,
    other_next_scale: Array,
    discount: Array | float,
) -> Array:
    """Bisimulation loss (DBC): match latent distances to those of rewards and next latents.

    (|z_i - z_j|_1 - |r_i - r_j| - discount W_2(N(m_i, s_i), N(m_j, s_j)))^2
    W_2^2 = |m_i - m_j|^2 + |s_i - s_j|^2

    The latents may encode states or whole histories of observations.

    Args:
      latent, other_latent: [..., D], of pairs i and j (a batch and its permutation).
      reward, other_reward: [...].
      next_mean, other_next_mean, next_scale, other_next_scale: [..., D], the model's Gaussian
        prediction of each next latent, with independent dimensions.
      discount: broadcasts to [...].
    Returns: [...].
    Gradients: flow only into `latent` and `other_latent`.
    Source: Zhang et al., 2021, "Learning invariant representations for reinforcement learning
      without reconstruction", section 4 (the published code compares each dimension separately).
    Example: `losses.bisimulation(latent, other_latent, reward, other_reward, next_mean,
      other_next_mean, next_scale, other_next_scale, discount).mean()`
    """
    mean = next_mean - other_next_mean
    transition = euclidean_distance(jnp.concatenate([mean, next_scale - other_next_scale], -1), 0.0)
    target = jnp.abs(reward - other_reward) + discount * transition
    distance = jnp.abs(latent - other_latent).sum(-1)
    return jnp.square(distance - jax.lax.stop_gradient(target))


@check_arguments
def successor_target(
    features: Array, next_successor: Array, terminated: Array, discount: Array | float
) -> Array:
    """Temporal-difference target of successor features, for use with `squared_error`.

    phi + discount psi', psi' = 0 where terminated

    Args:
      features: [..., D], phi of the transition.
      next_successor: [..., D], psi of the next state and the policy's next action.
      terminated: [...].
      discount: broadcasts to [...].
    Returns: [..., D].
    Gradients: none.
    Source: Barreto et al., 2017, "Successor features for transfer in reinforcement learning",
      eq. 4.
    Example: `losses.successor_target(features, next_successor, terminated, discount=0.99)`
    """
    discount = jnp.asarray(discount, features.dtype)[..., None]
    later = jnp.where(terminated[..., None], 0, next_successor)
    return jax.lax.stop_gradient(features + discount * later)


@check_arguments
def reward_regression(features: Array, weight: Array, reward: Array) -> Array:
    """Squared error of a reward that is linear in features, as successor features require.

    (<features, weight> - reward)^2 / 2

    Args: features: [..., D]; weight: broadcasts to [..., D]; reward: [...].
    Returns: [...].
    Gradients: none flow into `reward`.
    Source: Barreto et al., 2017, "Successor features for transfer in reinforcement learning",
      eq. 2.
    Example: `losses.reward_regression(features, weight, reward).mean()`
    """
    return squared_error((features * weight).sum(-1), reward)
