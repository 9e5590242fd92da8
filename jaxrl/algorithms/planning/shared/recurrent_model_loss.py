"""The loss of Dreamer's recurrent world model."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import losses
from jaxrl.core.spaces import Box, Space, is_space
from jaxrl.core.types import Array, Key, Transition
from jaxrl.networks import encoders
from jaxrl.networks.apply import Apply
from jaxrl.networks.recurrent_world_model import RecurrentWorldModel, Unrolled


def recurrent_model_loss(
    model: RecurrentWorldModel,
    apply: Apply,
    transitions: Transition,
    atoms: Array,
    key: Key,
    free_nats: Array | float = 1.0,
) -> tuple[Unrolled, dict[str, Array]]:
    """Compute the terms of the world model's loss for each step of a window [T, B]
    (arXiv:2301.04104, equations 2 and 3).

    Prediction: the sum over the observation's features of cross-entropies (binary features) or
    squared errors of their symlog (all others); the two-hot cross-entropy of the reward on `atoms`
    [K]; and the cross-entropy of continuing, which a truncated episode does. Latents: the
    divergences of the dynamics and of the representation, each with `free_nats`, with weights 1
    and 0.1. First time steps of episodes and windows count for observations and latents,
    successors for everything.

    apply: `model.apply` with the parameters bound.

    Returns the model's beliefs about the window, and the terms by name.
    """
    unrolled: Any = apply(transitions, key, method="unroll")
    binary = binary_features(model.observation_space, model.size)

    def errors(beliefs, timestep):
        decoded = apply(beliefs.latent.features, method="decode")
        features = encoders.features(model.observation_space, timestep)
        certain = losses.symlog_squared_error(decoded, features)
        likely = losses.binary_cross_entropy(decoded, features)
        error = jnp.where(binary, likely, certain).sum(-1)
        divergence = losses.categorical_kl_balancing(
            beliefs.posterior, beliefs.prior, 1.0, 0.1, free_nats
        )
        return error, divergence

    first_error, first_divergence = errors(unrolled.start, transitions.timestep)
    error, divergence = errors(unrolled.after, transitions.next_timestep)
    with_first = lambda first, x: jnp.where(unrolled.first, first, 0) + x
    reward, continue_logit = apply(unrolled.after.latent.features, method="outcome")
    return unrolled, {
        "observation_loss": with_first(first_error, error),
        "latent_loss": with_first(first_divergence, divergence),
        "reward_loss": losses.two_hot_cross_entropy(reward, transitions.reward, atoms),
        "continue_loss": losses.binary_cross_entropy(continue_logit, ~transitions.terminated),
    }


def binary_features(space: Space, size: int) -> np.ndarray:
    """Return which of the `size` features (D) of a `space` are always 0 or 1: bool [D].

    These are boolean cells, and integers, which are one-hot. The last features, beyond those of
    the space, belong to the goal and are not binary.
    """
    parts = []
    for part in jax.tree.leaves(space, is_leaf=is_space):
        flat = functools.partial(encoders.flatten, part)
        width = jax.eval_shape(flat, jax.ShapeDtypeStruct(part.shape, part.dtype)).shape[-1]
        parts.append(np.full(width, not isinstance(part, Box) or part.dtype == jnp.bool_))
    binary = np.concatenate(parts)
    return np.pad(binary, (0, size - len(binary)))  # the rest is the goal
