"""Reverse step of masked token diffusion."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl.core.types import Array

__all__ = [
    "unmasking_probs",
]


def unmasking_probs(logits: Array, alpha: Array, next_alpha: Array) -> Array:
    """Probabilities of a masked token after one reverse step: each token, or still masked.

    (next_alpha - alpha) / (1 - alpha) softmax(logits), and (1 - next_alpha) / (1 - alpha) for mask

    Args:
      logits: [..., V], of the clean token; -inf where impossible.
      alpha: [...], the probability that a token is not masked now, below 1.
      next_alpha: [...], the same at the less noisy time, at least `alpha`.
    Returns: [..., V + 1], probabilities, the mask last. Tokens without a mask stay unchanged.
    Gradients: none are stopped.
    Source: Sahoo et al., 2024, "Simple and effective masked diffusion language models",
      section 3.
    Example: `diffusion.unmasking_probs(logits, alpha, next_alpha)`
    """
    reveal = jnp.expand_dims((next_alpha - alpha) / (1 - alpha), -1)
    masked = jnp.expand_dims((1 - next_alpha) / (1 - alpha), -1)  # exactly 0 at the end
    prob = reveal * jax.nn.softmax(logits)
    return jnp.concatenate([prob, jnp.broadcast_to(masked, (*prob.shape[:-1], 1))], -1)
