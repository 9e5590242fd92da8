"""Predictors of preferences: a score of a whole segment, which need not be a sum of rewards."""

from __future__ import annotations

import flax.linen as nn

from jaxrl.core.spaces import Space
from jaxrl.core.types import Array, TimeStep, Tree
from jaxrl.kit import group, static
from jaxrl.networks import encoders


@group
class Predictor:
    """Transformer that scores segments."""

    width: int = static(256, low=1)
    """Width of each step's embedding. 256: authors' code of DPPO."""
    layers: int = static(1, low=1)
    """Number of layers. 1: authors' code of DPPO."""
    heads: int = static(4, low=1)
    """Number of attention heads; must divide the width. 4: authors' code of DPPO."""


class SegmentScore(nn.Module):
    """A score of a segment: time step [T, B], action [T, B, ...] -> [B].

    Each step attends to all steps of its segment; the score is the mean of the steps' outputs.
    Where a bias would change no difference of scores there is none, since its gradient would be
    rounding errors.
    """

    observation_space: Space
    action_space: Space
    width: int
    layers: int = 1
    heads: int = 4

    @nn.compact
    def __call__(self, timestep: TimeStep, action: Tree) -> Array:
        x = encoders.state_action_features(
            self.observation_space, self.action_space, timestep, action
        )
        x = nn.Dense(self.width)(x)
        place = nn.initializers.normal(0.02)
        x = (x + self.param("place", place, (len(x), 1, self.width))).swapaxes(0, 1)
        for _ in range(self.layers):
            attention = nn.MultiHeadDotProductAttention(self.heads, use_bias=False)
            x = x + attention(nn.LayerNorm()(x))
            hidden = nn.relu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        x = nn.LayerNorm(use_bias=False)(x)
        return nn.Dense(1, use_bias=False)(x)[..., 0].mean(1)
